# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the switches of both backends choose between: which way an operation takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.knobs import KnobSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """The way of each operation; the defaults are the kernels. Effects: `engine.knob_table`."""

    norm: bool = True
    add_norm: bool = True
    head: bool = True
    narrow_nvfp4: bool = True
    wide_nvfp4: bool = True
    wide_nvfp4_until: int = 1024
    attention: bool = True
    attention_prepare: bool = True
    delta_prepare_one: bool = True
    delta_prepare_more: bool = True
    delta_one: bool = True
    delta_chain: bool = True
    delta_tree: bool = True
    delta_prefill: bool = True
    prefill_chunk: int = 64
    commit: bool = True
    solve: bool = False
    solve_tree_rows: int = 32
    solve_chain_rows: int = 32


def ways_of(knobs: KnobSet) -> dict[str, Any]:
    """The fields of `Ways` as these values ask for them."""
    return {
        "norm": knobs.flag("FUSED_NORM"),
        "add_norm": knobs.flag("FUSED_ADDNORM"),
        "head": knobs.flag("FUSED_HEAD"),
        "narrow_nvfp4": knobs.flag("NVFP4_SKINNY"),
        "wide_nvfp4": knobs.flag("NVFP4_PREFILL_V2"),
        "attention": knobs.flag("DECODE_ATTN"),
        "attention_prepare": knobs.flag("FUSED_ATTN_PREP"),
        "delta_prepare_one": knobs.flag("FUSED_GDNPRE"),
        "delta_prepare_more": knobs.flag("FUSED_GDNVERIFY"),
        "delta_one": knobs.flag("FUSED_GDN"),
        "delta_chain": knobs.flag("FUSED_GDNBLOCK"),
        "delta_tree": knobs.flag("FUSED_GDNTREE"),
        "delta_prefill": knobs.flag("FUSED_GDNPREFILL"),
        "commit": knobs.flag("FUSED_COMMIT"),
        "solve": knobs.flag("GDNV_WY"),
        "wide_nvfp4_until": knobs.number("NVFP4_PREFILL_V2_UNTIL"),
        "prefill_chunk": knobs.number("GDN_CHUNK"),
        "solve_tree_rows": knobs.number("GDNV_WY_MAXT"),
        "solve_chain_rows": knobs.number("GDNV_WY_CHAIN_MAXT"),
    }
