# SPDX-License-Identifier: MIT OR Apache-2.0
"""`rondo tune --device cuda`: the products it sweeps, the table it writes, and what it says without a GPU."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from test_cli import run_json

from engine.cli import FAILED, OK, USAGE
from engine.measure.shapes import named_shape
from kernels.cuda_build import target_named
from kernels.fp8_linear.tiles import Fp8Tile, Fp8Tiles
from kernels.nvfp4_linear.tiles import SkinnyTile, TileTables
from kernels.tile_sweep import Swept

pytest.importorskip("triton")

from engine.measure import tune_cuda as tuning


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tiles.json"
    code, values = run_json(capsys, "tune", "--device", "cuda", "--out", str(path))
    assert code == FAILED
    assert "The GPU cannot compute: " in values["error"]["cause"]
    assert "--device cpu" in values["error"]["next_step"]
    assert not path.exists()


def test_options_of_the_processor_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_json(capsys, "tune", "--device", "cuda", "--threads", "2")[0] == USAGE


def test_joined_products_of_a_shape_are_met_once_each() -> None:
    config = named_shape("demo").config
    cpu = torch.device("cpu")
    hidden, inner = config.hidden_size, config.intermediate_size
    for weight_format in ("nvfp4", "fp8"):
        shapes = tuning.product_shapes(config, weight_format, cpu)
        assert len(shapes) == len(set(shapes))
        # Gates are BF16 and the head has a scale a row: neither is in these tables.
        assert {(2 * inner, hidden), (hidden, inner)} <= set(shapes)
        assert (2 * config.value_heads, hidden) not in shapes


@dataclass
class _Library:
    target = target_named("sm_121a")
    device = torch.device("cpu")

    def __init__(self, **_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("options", "tile", "switch"),
    [
        ((), SkinnyTile(4, 8), "QWEN38_SKINNY_TILES"),
        (("--wide",), SkinnyTile(2, 8, 0), "QWEN38_SKINNY_TILES_WIDE"),
        (("--weights", "fp8"), Fp8Tile(bn=32), "QWEN38_FP8_TILES"),
    ],
)
def test_a_table_is_written_beside_the_processors(
    options: tuple[str, ...],
    tile: SkinnyTile | Fp8Tile,
    switch: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "tiles.json"
    path.write_text('{"tiles": {"16x16": {}}}')
    found = iter([Swept(tile, 8.0, 10.0, 6, ()), Swept(tile, 10.0, 10.0, 6, ())])
    shapes = [(4096, 2048), (2048, 1024)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("kernels.cuda_build.CudaLibrary", _Library)
    monkeypatch.setattr(tuning, "cold_copies", lambda library, each: 1)
    monkeypatch.setattr("kernels.cuda_bench.cold_copies", lambda library, each: 1)
    monkeypatch.setattr(tuning, "product_shapes", lambda *_: shapes)
    monkeypatch.setattr(tuning, "sweep_nvfp4", lambda library, weights, *, shares: next(found))
    monkeypatch.setattr(tuning, "sweep_fp8", lambda weights, *, shares: next(found))
    monkeypatch.setattr(tuning, "gpu_record", lambda library: {"gpu": "a GPU"})
    code, values = run_json(capsys, "tune", "--device", "cuda", *options, "--out", str(path))
    assert code == OK
    written = json.loads(path.read_text("utf-8"))
    assert written["tiles"] == {"16x16": {}}
    origin = written["cuda_from"]
    assert (origin["switch"], origin["gpu"], origin["shape"]) == (switch, "a GPU", "demo")
    assert origin["date"].endswith("Z")
    assert len(origin["code_sha256_12"]) == 12
    # The engine reads it; what gains nothing is left to the default.
    if "fp8" in options:
        assert Fp8Tiles.read(path).tiles == {shapes[0]: tile}
    else:
        tables = TileTables.read(*((None, path) if "--wide" in options else (path, None)))
        assert (tables.wide or tables.base) == {shapes[0]: tile}
    entry = written["cuda"]["4096x2048"]
    assert entry["tuned_gbps"] == pytest.approx(entry["default_gbps"] * 10 / 8)
    assert [row["key"] for row in values["rows"]] == ["4096x2048", "2048x1024"]
    assert values["cuda"] == written["cuda"]
