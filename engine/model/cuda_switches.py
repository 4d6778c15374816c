# SPDX-License-Identifier: MIT OR Apache-2.0
"""The switches that choose between two ways of computing an operation of the GPU's forward."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.errors import UsageError
from engine.knobs import KnobSet
from engine.model.ways import Ways, way, ways_of
from kernels.fp8_linear.tiles import Fp8Tiles
from kernels.nvfp4_linear.tiles import TileTables


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaSwitches(Ways):
    """The ways of the GPU's forward, with the tables of its products."""

    exact: bool = way("GDNV_EXACT")
    timed: bool = way("OP_TIMES")
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
        return CudaSwitches(**ways_of(CudaSwitches, knobs), tiles=tiles, fp8_tiles=fp8_tiles)
