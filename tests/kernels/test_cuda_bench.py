# SPDX-License-Identifier: MIT OR Apache-2.0
"""The served tile tables, and the choice of a table from measured rates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from engine.model.tiles import read_tiles
from kernels.build import ISA_LEVELS
from kernels.cuda_bench import SHAPES, Rate, best_tables, main
from kernels.nvfp4_linear.tiles import SkinnyTile, TileTables

OPS = Path(__file__).parents[2] / "ops"


def test_the_served_tables_are_read_and_keep_one_order() -> None:
    files = OPS / "skinny-tiles.json", OPS / "skinny-tiles-wide.json"
    tables = TileTables.read(*files)
    assert tables.base.keys() == tables.wide.keys() >= set(SHAPES)
    for shape in tables.base:
        assert len({tables.tile(*shape, rows).order for rows in range(1, 33)}) == 1
    # The same files serve the CPU, which reads sections of its own.
    for file in files:
        assert all(read_tiles(file, level.name).digest for level in ISA_LEVELS)


def rates(times: dict[tuple[str, int], float]) -> list[Rate]:
    return [
        Rate("nvfp4_linear", 64, 256, rows, us, 1.0, tile) for (tile, rows), us in times.items()
    ]


def test_the_tables_share_the_fastest_order_over_all_rows(tmp_path: Path) -> None:
    found = best_tables(
        rates(
            {
                ("1/4/0/0", 1): 10, ("1/4/0/0", 32): 40,
                ("2/4/0/0", 1): 11, ("2/4/0/0", 32): 20,
                # Faster for one row, but its order costs more over both widths.
                ("1/8/1/1", 1): 5, ("1/8/1/1", 32): 50,
            }
        )
    )  # fmt: skip
    assert found["base"]["cuda"]["64x256"] == {"nt": 1, "wk": 4, "pf": 0, "il": 0}
    assert found["wide"]["cuda"]["64x256"] == {"nt": 2, "wk": 4, "pf": 0, "il": 0}
    for name, table in found.items():
        (tmp_path / name).write_text(json.dumps(table))
    tables = TileTables.read(tmp_path / "base", tmp_path / "wide")
    assert tables.tile(64, 256, 20) == SkinnyTile(nt=2, wk=4, pf=0, il=0)


def test_a_setting_that_missed_a_row_count_is_not_chosen() -> None:
    found = best_tables(
        rates({("1/4/0/0", 1): 10, ("1/4/0/0", 8): 10, ("2/4/0/0", 1): 1, ("1/4/0/0", 32): 9})
    )
    assert found["base"]["cuda"]["64x256"]["nt"] == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_the_bench_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 1
    assert "not available: PyTorch sees no GPU" in capsys.readouterr().err
