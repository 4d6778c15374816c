# SPDX-License-Identifier: MIT OR Apache-2.0
"""The switches that choose between two ways of computing an operation of the GPU's forward."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.errors import UsageError
from engine.knobs import KnobSet
from kernels.fp8_linear.tiles import Fp8Tiles
from kernels.nvfp4_linear.tiles import TileTables


@dataclass(frozen=True, slots=True)
class CudaSwitches:
    """Which way each operation takes; the defaults are the kernels. Effects: `engine.knob_table`."""

    norm: bool = True
    add_norm: bool = True
    head: bool = True
    attention: bool = True
    attention_prepare: bool = True
    delta_prepare_one: bool = True
    delta_prepare_more: bool = True
    delta_one: bool = True
    delta_chain: bool = True
    delta_tree: bool = True
    delta_prefill: bool = True
    commit: bool = True
    exact: bool = True
    solve: bool = False
    solve_tree_rows: int = 32
    solve_chain_rows: int = 32
    narrow_nvfp4: bool = True
    wide_nvfp4: bool = True
    wide_nvfp4_until: int = 65536
    prefill_chunk: int = 64
    timed: bool = False
    tiles: TileTables = field(default_factory=lambda: TileTables({}, {}))
    fp8_tiles: Fp8Tiles = field(default_factory=lambda: Fp8Tiles({}))

    @staticmethod
    def of(knobs: KnobSet) -> CudaSwitches:
        """The ways that these values ask for; UsageError where a table is not one."""
        try:
            tiles = TileTables.read(knobs.path("SKINNY_TILES"), knobs.path("SKINNY_TILES_WIDE"))
            fp8_tiles = Fp8Tiles.read(knobs.path("FP8_TILES"))
        except ValueError as error:
            raise UsageError(f"{error}.", kept="The tables in use stay.") from None
        return CudaSwitches(
            norm=knobs.flag("FUSED_NORM"),
            add_norm=knobs.flag("FUSED_ADDNORM"),
            head=knobs.flag("FUSED_HEAD"),
            attention=knobs.flag("DECODE_ATTN"),
            attention_prepare=knobs.flag("FUSED_ATTN_PREP"),
            delta_prepare_one=knobs.flag("FUSED_GDNPRE"),
            delta_prepare_more=knobs.flag("FUSED_GDNVERIFY"),
            delta_one=knobs.flag("FUSED_GDN"),
            delta_chain=knobs.flag("FUSED_GDNBLOCK"),
            delta_tree=knobs.flag("FUSED_GDNTREE"),
            delta_prefill=knobs.flag("FUSED_GDNPREFILL"),
            commit=knobs.flag("FUSED_COMMIT"),
            exact=knobs.flag("GDNV_EXACT"),
            solve=knobs.flag("GDNV_WY"),
            solve_tree_rows=knobs.number("GDNV_WY_MAXT"),
            solve_chain_rows=knobs.number("GDNV_WY_CHAIN_MAXT"),
            narrow_nvfp4=knobs.flag("NVFP4_SKINNY"),
            wide_nvfp4=knobs.flag("NVFP4_PREFILL_V2"),
            wide_nvfp4_until=knobs.number("NVFP4_PREFILL_V2_UNTIL"),
            prefill_chunk=knobs.number("GDN_CHUNK"),
            timed=knobs.flag("OP_TIMES"),
            tiles=tiles,
            fp8_tiles=fp8_tiles,
        )
