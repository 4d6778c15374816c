# SPDX-License-Identifier: MIT OR Apache-2.0
"""The switches that choose between two ways of computing an operation of the native forward."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.knobs import KnobSet
from engine.model.tiles import TileTable, read_tiles


@dataclass(frozen=True, slots=True)
class Switches:
    """Which way each operation takes; the defaults are the kernels. Effects: `engine.knob_table`."""

    norm: bool = True
    add_norm: bool = True
    head: bool = True
    narrow_nvfp4: bool = True
    wide_nvfp4: bool = True
    wide_nvfp4_until: int = 65536
    attention: bool = True
    attention_library_from: int = 0
    attention_prepare: bool = True
    delta_prepare_one: bool = True
    delta_prepare_more: bool = True
    delta_one: bool = True
    delta_chain: bool = True
    delta_tree: bool = True
    delta_prefill: bool = True
    prefill_chunk: int = 64
    prefill_solve: bool = True
    commit: bool = True
    solve: bool = False
    solve_tree_rows: int = 32
    solve_chain_rows: int = 32
    narrow_tiles: TileTable = field(default_factory=TileTable)
    wide_tiles: TileTable = field(default_factory=TileTable)
    fp8_tiles: TileTable = field(default_factory=TileTable)

    @staticmethod
    def of(knobs: KnobSet, level: str) -> Switches:
        """The ways that these values ask for at an instruction level; UsageError where a table is not one."""
        return Switches(
            norm=knobs.flag("FUSED_NORM"),
            add_norm=knobs.flag("FUSED_ADDNORM"),
            head=knobs.flag("FUSED_HEAD"),
            narrow_nvfp4=knobs.flag("NVFP4_SKINNY"),
            wide_nvfp4=knobs.flag("NVFP4_PREFILL_V2"),
            wide_nvfp4_until=knobs.number("NVFP4_PREFILL_V2_UNTIL"),
            attention=knobs.flag("DECODE_ATTN"),
            attention_library_from=knobs.number("GQA_FROM"),
            attention_prepare=knobs.flag("FUSED_ATTN_PREP"),
            delta_prepare_one=knobs.flag("FUSED_GDNPRE"),
            delta_prepare_more=knobs.flag("FUSED_GDNVERIFY"),
            delta_one=knobs.flag("FUSED_GDN"),
            delta_chain=knobs.flag("FUSED_GDNBLOCK"),
            delta_tree=knobs.flag("FUSED_GDNTREE"),
            delta_prefill=knobs.flag("FUSED_GDNPREFILL"),
            prefill_chunk=knobs.number("GDN_CHUNK"),
            prefill_solve=knobs.flag("UT_INVERSE"),
            commit=knobs.flag("FUSED_COMMIT"),
            solve=knobs.flag("GDNV_WY"),
            solve_tree_rows=knobs.number("GDNV_WY_MAXT"),
            solve_chain_rows=knobs.number("GDNV_WY_CHAIN_MAXT"),
            narrow_tiles=read_tiles(knobs.path("SKINNY_TILES"), level),
            wide_tiles=read_tiles(knobs.path("SKINNY_TILES_WIDE"), level),
            fp8_tiles=read_tiles(knobs.path("FP8_TILES"), level),
        )

    @property
    def contents(self) -> tuple[tuple[str, str], ...]:
        """What a recording depends on besides the values of the switches: the tables' contents."""
        return (
            ("narrow tiles", self.narrow_tiles.digest),
            ("wide tiles", self.wide_tiles.digest),
            ("FP8 tiles", self.fp8_tiles.digest),
        )
