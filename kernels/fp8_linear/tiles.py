# SPDX-License-Identifier: MIT OR Apache-2.0
"""How the Triton FP8 product is launched for a shape, by a table of settings.

A table is JSON: {"cuda": {"17408x5120": {"bn": 128, "warps": 4, "stages": 3}}}, keyed by outputs x inputs and
never by rows. A step is always 128 inputs wide, so no setting is meant to touch a bit; the sweep that fills the
table (kernels/tile_sweep.py) keeps only those that did not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECTION = "cuda"
ROW_SHARES = {1: 0.1, 16: 0.4, 24: 0.3, 32: 0.2}  # of a round's verifies, as served
_CHOICES = {"bn": (32, 64, 128), "warps": (4, 8), "stages": (2, 3, 4)}
_FIGURES = ("measured_rows", "default_gbps", "tuned_gbps", "note")


@dataclass(frozen=True)
class Fp8Tile:
    """One launch setting.

    Attributes:
        bn: outputs of a program.
        warps: of a program; stages: steps of weights in flight.
    """

    bn: int = 64
    warps: int = 4
    stages: int = 3


DEFAULT = Fp8Tile()


@dataclass(frozen=True)
class Fp8Tiles:
    """Settings by shape (outputs, inputs)."""

    tiles: dict[tuple[int, int], Fp8Tile]

    @staticmethod
    def read(path: Path | None) -> Fp8Tiles:
        """The table of a file; None is an empty table.

        Raises:
            ValueError: a file or an entry that cannot be used.
        """
        if path is None:
            return Fp8Tiles({})
        try:
            sections = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{path}: cannot be read as a tile table: {error}") from error
        entries = sections.get(SECTION, {}) if isinstance(sections, dict) else None
        if not isinstance(entries, dict):
            raise ValueError(f'{path}: expected {{"{SECTION}": {{"NxK": {{...}}}}}}')
        return Fp8Tiles({_shape(path, n): _tile(path, n, entry) for n, entry in entries.items()})

    def tile(self, outputs: int, inputs: int) -> Fp8Tile:
        """The setting of a shape, for every number of rows."""
        return self.tiles.get((outputs, inputs), DEFAULT)


def candidates() -> Iterator[Fp8Tile]:
    """Every setting a sweep tries, the default among them."""
    for bn in _CHOICES["bn"]:
        for warps in _CHOICES["warps"]:
            for stages in _CHOICES["stages"]:
                yield Fp8Tile(bn, warps, stages)


def _shape(path: Path, name: str) -> tuple[int, int]:
    parts = name.split("x")
    if len(parts) == 2 and all(part.isascii() and part.isdigit() for part in parts):
        outputs, inputs = map(int, parts)
        if outputs and inputs:
            return outputs, inputs
    raise ValueError(f"{path}: {name!r} is no shape: outputs x inputs")


def _tile(path: Path, name: str, entry: Any) -> Fp8Tile:
    if not isinstance(entry, dict):
        raise ValueError(f"{path}: {name}: expected an object of settings")
    values = {key: value for key, value in entry.items() if key not in _FIGURES}
    for key, value in values.items():
        if key not in _CHOICES:
            raise ValueError(f"{path}: {name}: unknown setting {key!r}; known: {list(_CHOICES)}")
        if type(value) is not int or value not in _CHOICES[key]:
            raise ValueError(f"{path}: {name}: {key} must be one of {list(_CHOICES[key])}")
    return Fp8Tile(**values)
