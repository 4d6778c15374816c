# SPDX-License-Identifier: MIT OR Apache-2.0
"""The switches that choose between two ways of computing an operation of the GPU's forward."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.errors import UsageError
from engine.knobs import KnobSet
from kernels.nvfp4_linear.tiles import TileTables


@dataclass(frozen=True, slots=True)
class CudaSwitches:
    """Which way each operation takes; the defaults are the kernels. Effects: `engine.knob_table`."""

    narrow_nvfp4: bool = True
    prefill_chunk: int = 64
    timed: bool = False
    tiles: TileTables = field(default_factory=lambda: TileTables({}, {}))

    @staticmethod
    def of(knobs: KnobSet) -> CudaSwitches:
        """The ways that these values ask for; UsageError where a table is not one."""
        try:
            tiles = TileTables.read(knobs.path("SKINNY_TILES"), knobs.path("SKINNY_TILES_WIDE"))
        except ValueError as error:
            raise UsageError(f"{error}.", kept="The tables in use stay.") from None
        return CudaSwitches(
            narrow_nvfp4=knobs.flag("NVFP4_SKINNY"),
            prefill_chunk=knobs.number("GDN_CHUNK"),
            timed=knobs.flag("OP_TIMES"),
            tiles=tiles,
        )
