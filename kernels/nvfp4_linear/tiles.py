# SPDX-License-Identifier: MIT OR Apache-2.0
"""How the skinny CUDA product is launched for a weight's shape, from a table or by rule.

A table is JSON: {"cuda": {"17408x5120": {"nt": 2, "wk": 16, "pf": 1, "il": 0}}}, keyed by outputs x inputs,
never by rows. `wk` and `il` fix the order of the sum, so every row count of a shape has to share them; `nt` and
`pf` do not touch a bit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECTION = "cuda"
STEP = 128
_CHOICES = {"nt": (1, 2, 4), "wk": (1, 2, 4, 8, 16), "pf": (0, 1), "il": (0, 1)}
_FIGURES = ("measured_rows", "default_gbps", "tuned_gbps", "gbps", "note")  # beside a choice


@dataclass(frozen=True)
class SkinnyTile:
    """One launch setting.

    Attributes:
        nt: weight tiles of 8 outputs a warp.
        wk: warps that share the inputs of an output; their sums are added in order.
        pf: steps of weights requested ahead.
        il: 0, a warp takes neighbouring steps; 1, every wk-th step.
    """

    nt: int
    wk: int
    pf: int = 1
    il: int = 0

    @property
    def order(self) -> tuple[int, int]:
        """What the order of a sum depends on besides the shape."""
        return (self.wk, self.il)


def default_tile(outputs: int, inputs: int) -> SkinnyTile:
    """The setting of a shape that no table names: a function of the shape alone.

    Eight warps split the inputs of the served model evenly, and two such blocks fit a multiprocessor's
    registers: one reads while the other adds its sums.
    """
    warps = 8
    while warps > 1 and warps * 2 > inputs // STEP:
        warps //= 2
    return SkinnyTile(nt=2 if outputs >= 4096 else 1, wk=warps)


def candidates(outputs: int, inputs: int) -> Iterator[SkinnyTile]:
    """Every setting with the default's order of the sum, hence with its bits."""
    wk, il = default_tile(outputs, inputs).order
    for nt in _CHOICES["nt"]:
        for pf in _CHOICES["pf"]:
            yield SkinnyTile(nt, wk, pf, il)


@dataclass(frozen=True)
class TileTables:
    """Settings for 1 to 16 rows and for 17 to 32, by shape."""

    base: dict[tuple[int, int], SkinnyTile]
    wide: dict[tuple[int, int], SkinnyTile]

    @staticmethod
    def read(base: Path | None = None, wide: Path | None = None) -> TileTables:
        """The tables of two files; None is an empty table.

        Raises:
            ValueError: a file or an entry that cannot be used, or a wide entry whose order of the sum
                differs from the one of up to 16 rows.
        """
        tables = TileTables(_read(base) if base else {}, _read(wide) if wide else {})
        for shape, tile in tables.wide.items():
            narrow = tables.base.get(shape) or default_tile(*shape)
            if tile.order != narrow.order:
                raise ValueError(
                    f"{wide}: {_name(shape)} has wk {tile.wk} and il {tile.il}, up to 16 rows have wk"
                    f" {narrow.wk} and il {narrow.il}: a row's sum would depend on the number of rows"
                )
        return tables

    def tile(self, outputs: int, inputs: int, rows: int) -> SkinnyTile:
        """The setting for a product of `rows` rows."""
        shape = (outputs, inputs)
        base = self.base.get(shape) or default_tile(outputs, inputs)
        tile = self.wide.get(shape, base) if rows > 16 else base
        return fitted(tile, outputs, rows)


def fitted(tile: SkinnyTile, outputs: int, rows: int) -> SkinnyTile:
    """The nearest setting that has a kernel and fits the shape; the order of the sum stays."""
    nt = tile.nt
    while nt > 1 and 8 * nt > outputs:
        nt //= 2
    pf = 0 if nt == 4 and rows > 16 else tile.pf  # its registers would spill
    return SkinnyTile(nt=nt, wk=tile.wk, pf=pf, il=tile.il)


def _read(path: Path) -> dict[tuple[int, int], SkinnyTile]:
    try:
        sections = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read as a tile table: {error}") from error
    entries = sections.get(SECTION, {}) if isinstance(sections, dict) else None
    if not isinstance(entries, dict):
        raise ValueError(f'{path}: expected {{"{SECTION}": {{"NxK": {{...}}}}}}')
    return {_shape(path, name): _tile(path, name, entry) for name, entry in entries.items()}


def _shape(path: Path, name: str) -> tuple[int, int]:
    parts = name.split("x")
    if len(parts) == 2 and all(part.isascii() and part.isdigit() for part in parts):
        outputs, inputs = map(int, parts)
        if outputs >= 8 and inputs >= STEP and inputs % STEP == 0:
            return outputs, inputs
    raise ValueError(
        f"{path}: {name!r} is no shape: NxK with at least 8 outputs, inputs in multiples of {STEP}"
    )


def _tile(path: Path, name: str, entry: Any) -> SkinnyTile:
    if not isinstance(entry, dict):
        raise ValueError(f"{path}: {name}: expected an object of settings")
    values = {key: value for key, value in entry.items() if key not in _FIGURES}
    for key, value in values.items():
        if key not in _CHOICES:
            raise ValueError(f"{path}: {name}: unknown setting {key!r}; known: {list(_CHOICES)}")
        if type(value) is not int or value not in _CHOICES[key]:
            raise ValueError(f"{path}: {name}: {key} must be one of {list(_CHOICES[key])}")
    if not {"nt", "wk"} <= values.keys():
        raise ValueError(f"{path}: {name}: nt and wk are needed")
    return SkinnyTile(**values)


def _name(shape: tuple[int, int]) -> str:
    return f"{shape[0]}x{shape[1]}"
