# SPDX-License-Identifier: MIT OR Apache-2.0
"""The table of launch settings of the FP8 product on a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernels.fp8_linear.tiles import DEFAULT, Fp8Tile, Fp8Tiles, candidates

SHIPPED = Path(__file__).parents[2] / "ops" / "fp8-tiles.json"


def test_the_shipped_table_is_read() -> None:
    tiles = Fp8Tiles.read(SHIPPED)
    assert tiles.tile(17408, 5120) == DEFAULT
    assert tiles.tile(1024, 5120) == Fp8Tile(bn=32)
    assert tiles.tile(48, 64) == DEFAULT
    assert Fp8Tiles.read(None).tiles == {}
    assert set(tiles.tiles.values()) <= set(candidates())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"cuda": {"5120": {}}}, "no shape"),
        ({"cuda": {"0x128": {}}}, "no shape"),
        ({"cuda": {"64x128": {"bn": 48}}}, r"bn must be one of \[32, 64, 128\]"),
        ({"cuda": {"64x128": {"warps": True}}}, "warps must be one of"),
        ({"cuda": {"64x128": {"nt": 1}}}, "unknown setting 'nt'"),
        ({"cuda": {"64x128": 3}}, "expected an object"),
        ({"cuda": []}, "expected"),
        ([], "expected"),
        (None, "cannot be read"),
    ],
)
def test_a_table_with_a_fault_is_refused(tmp_path: Path, content: object, message: str) -> None:
    file = tmp_path / "tiles.json"
    file.write_text("{" if content is None else json.dumps(content))
    with pytest.raises(ValueError, match=f"tiles.json: .*{message}"):
        Fp8Tiles.read(file)
