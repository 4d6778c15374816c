# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the switches of both backends choose between: which way an operation takes."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from engine.knobs import PREFIX, KnobSet, knob_named

_SWITCH = "switch"


def way(switch: str) -> Any:
    """A field that takes the value of a switch, whose default is its own too."""
    knob = knob_named(PREFIX + switch)
    return field(default=knob.parse(knob.default), metadata={_SWITCH: switch})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """The way of each operation. Effects: `engine.knob_table`."""

    norm: bool = way("FUSED_NORM")
    add_norm: bool = way("FUSED_ADDNORM")
    head: bool = way("FUSED_HEAD")
    narrow_nvfp4: bool = way("NVFP4_SKINNY")
    wide_nvfp4: bool = way("NVFP4_PREFILL_V2")
    wide_nvfp4_until: int = way("NVFP4_PREFILL_V2_UNTIL")
    attention: bool = way("DECODE_ATTN")
    attention_prepare: bool = way("FUSED_ATTN_PREP")
    delta_prepare_one: bool = way("FUSED_GDNPRE")
    delta_prepare_more: bool = way("FUSED_GDNVERIFY")
    delta_one: bool = way("FUSED_GDN")
    delta_chain: bool = way("FUSED_GDNBLOCK")
    delta_tree: bool = way("FUSED_GDNTREE")
    delta_prefill: bool = way("FUSED_GDNPREFILL")
    prefill_chunk: int = way("GDN_CHUNK")
    commit: bool = way("FUSED_COMMIT")
    solve: bool = way("GDNV_WY")
    solve_tree_rows: int = way("GDNV_WY_MAXT")
    solve_chain_rows: int = way("GDNV_WY_CHAIN_MAXT")


def ways_of(kind: type[Ways], knobs: KnobSet) -> dict[str, Any]:
    """Every `way` of `kind` as these values ask for it, by its field's name."""
    switches = {each.name: each.metadata.get(_SWITCH) for each in fields(kind)}
    return {name: knobs.value(switch) for name, switch in switches.items() if switch}
