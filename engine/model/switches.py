# SPDX-License-Identifier: MIT OR Apache-2.0
"""The switches that choose between two ways of computing an operation of the native forward."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.knobs import KnobSet
from engine.model.tiles import TileTable, read_tiles
from engine.model.ways import Ways, way, ways_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches(Ways):
    """The ways of the native forward, with the tables of its products."""

    attention_library_from: int = way("GQA_FROM")
    int8_inputs: bool = way("NVFP4_INT8")
    prefill_solve: bool = way("UT_INVERSE")
    narrow_tiles: TileTable = field(default_factory=TileTable)
    wide_tiles: TileTable = field(default_factory=TileTable)
    fp8_tiles: TileTable = field(default_factory=TileTable)

    @staticmethod
    def of(knobs: KnobSet, level: str) -> Switches:
        """The ways that these values ask for at an instruction level; UsageError where a table is not one."""
        return Switches(
            **ways_of(Switches, knobs),
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
