# SPDX-License-Identifier: MIT OR Apache-2.0
"""`rondo tune` writes a table that its switch reads, and keeps only settings with the default's bits."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
import torch
from test_cli import run_json

from engine.cli import main
from engine.commands import tune as command
from engine.errors import RondoError
from engine.measure import tune as tuning
from engine.measure.shapes import named_shape
from engine.model.projection import Packing
from engine.model.tiles import read_tiles, shape_key
from kernels.build import load_library
from kernels.cpu.blocking import DEFAULT, Blocking
from kernels.cpu.product import PackedLinear
from kernels.fp8_linear.pack import pack_fp8_rows
from kernels.nvfp4_linear.pack import pack_nvfp4
from kernels.tape import Pool

FASTER = Blocking(rows=1, inputs=256)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short sweep over few copies of one product, so that it takes moments."""
    monkeypatch.setattr(tuning, "_LEAST_COLD_BYTES", 1 << 16)
    monkeypatch.setattr(tuning, "last_level_cache_bytes", lambda: 0)
    monkeypatch.setattr(tuning, "SWEEP", (("rows", (1, 4)), ("inputs", (256,))))
    monkeypatch.setattr(
        tuning, "products", lambda shape, weight_format, packing, seed: [one(weight_format)]
    )


def one(weight_format: str) -> PackedLinear:
    draw = torch.Generator().manual_seed(1)
    if weight_format == "fp8":
        codes = torch.randn(48, 512, generator=draw).to(torch.float8_e4m3fn)
        return pack_fp8_rows([(codes, 0.5)])
    codes = torch.randint(0, 256, (48, 256), generator=draw).to(torch.uint8)
    scales = torch.rand(48, 32, generator=draw).to(torch.float8_e4m3fn)
    return pack_nvfp4([(codes, scales, 0.5)])


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times by the setting alone: each size of FASTER takes a tenth off."""

    def run(case: object, rows: int, setting: Blocking) -> float:
        hits = (setting.rows == FASTER.rows) + (setting.inputs == FASTER.inputs)
        return rows * (1.0 - 0.1 * hits)

    monkeypatch.setattr(tuning._Case, "_run", run)


def run_tune(pool: Pool, turns: int = 1) -> list[tuning.TuneRow]:
    return tuning.tune(
        named_shape("demo"), weight_format="nvfp4", rows=(1, 2), pool=pool, turns=turns
    )


@pytest.mark.usefixtures("small", "timed")
@pytest.mark.parametrize(
    ("options", "switch", "rows"),
    [
        ((), "QWEN38_SKINNY_TILES", [1, 4, 8, 16]),
        (("--wide",), "QWEN38_SKINNY_TILES_WIDE", [17, 24, 32]),
        (("--weights", "fp8"), "QWEN38_FP8_TILES", [1, 4, 8, 16, 17, 24, 32]),
    ],
)
def test_a_table_is_written_and_read(
    options: tuple[str, ...],
    switch: str,
    rows: list[int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "new" / "tiles.json"
    code, values = run_json(
        capsys, "tune", *options, "--threads", "1", "--turns", "1", "--out", str(path)
    )
    assert code == 0
    written = json.loads(path.read_text("utf-8"))
    assert values["file"] == str(path)
    assert values["tiles"] == written["tiles"]
    origin = written["tiles_from"]
    assert (origin["switch"], origin["shape"], origin["threads"]) == (switch, "demo", 1)
    assert origin["machine"]["cpu_model"]
    assert origin["date"].endswith("Z")
    assert len(origin["code_sha256_12"]) == 12
    assert read_tiles(path).sizes == {"48x512": FASTER}
    entry = written["tiles"]["48x512"]
    assert entry["measured_rows"] == rows
    assert entry["tuned_gbps"] == pytest.approx(entry["default_gbps"] / 0.8)


@pytest.mark.usefixtures("small", "timed")
def test_another_devices_table_in_the_file_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tiles.json"
    path.write_text('{"about": "both", "cuda": {"16x16": {"wk": 8}}, "tiles": {"16x16": {}}}')
    assert run_json(capsys, "tune", "--threads", "1", "--turns", "1", "--out", str(path))[0] == 0
    written = json.loads(path.read_text("utf-8"))
    assert (written["about"], written["cuda"]) == ("both", {"16x16": {"wk": 8}})
    assert list(written["tiles"]) == ["48x512"]


@pytest.mark.parametrize("text", ["a letter", "[1]", '{"a": 1}', "[" * 100_000, "\xff"])
def test_a_file_that_is_no_table_is_not_replaced(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "letter.txt"
    path.write_text(text, encoding="latin-1")
    code, values = run_json(capsys, "tune", "--threads", "1", "--out", str(path))
    assert code == 2
    assert "no table of product sizes" in values["error"]["cause"]
    assert path.read_text(encoding="latin-1") == text


@pytest.mark.usefixtures("small", "timed")
def test_a_table_that_cannot_be_written_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(command, "replace_text", full)
    path = tmp_path / "tiles.json"
    assert main(["tune", "--threads", "1", "--turns", "1", "--out", str(path)]) == 1
    told = capsys.readouterr().err
    assert "cannot be written: No space left" in told
    assert '"48x512"' in told


@pytest.mark.usefixtures("small")
def test_a_setting_that_gains_less_than_the_margin_stays_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        tuning._Case, "_run", lambda case, rows, setting: 1.0 - 0.01 * (setting.rows == 1)
    )
    with Pool(load_library(), 1) as pool:
        (row,) = run_tune(pool)
    assert row.blocking == DEFAULT
    assert row.tuned_gbps == row.default_gbps
    assert row.settings == 4


@pytest.mark.usefixtures("small")
def test_a_gain_that_shows_in_one_comparison_alone_stays_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, last_fast = [], [0]

    def times(case: object, settings: list[Blocking], *_: object) -> list[float]:
        calls.append(settings)
        fast = 0.5 if len(calls) <= last_fast[0] else 1.0
        return [fast if setting.rows == 1 else 1.0 for setting in settings]

    monkeypatch.setattr(tuning._Case, "times", times)
    monkeypatch.setattr(tuning, "SWEEP", (("rows", (1,)), ("inputs", (256,))))
    for lasting, kept in ((3, DEFAULT), (4, Blocking(rows=1))):
        calls.clear()
        last_fast[0] = lasting
        with Pool(load_library(), 1) as pool:
            (row,) = run_tune(pool)
        assert len(calls) == 4
        assert row.blocking == kept


@pytest.mark.usefixtures("small")
def test_a_setting_that_changes_a_bit_ends_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    result = tuning._Case._result

    def wrong(case: object, rows: int, setting: Blocking) -> torch.Tensor:
        out = result(case, rows, setting)
        return out + 1 if setting.inputs == 256 and rows == 31 else out

    monkeypatch.setattr(tuning._Case, "_result", wrong)
    with Pool(load_library(), 1) as pool, pytest.raises(RondoError, match="at 31 rows"):
        run_tune(pool)


def test_every_product_of_a_shape_is_met_once_and_timed_over_cold_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuning, "_LEAST_COLD_BYTES", 1 << 20)
    monkeypatch.setattr(tuning, "last_level_cache_bytes", lambda: 0)
    shape = named_shape("demo:4", vocab=64)
    found = {shape_key(packed): packed for packed in tuning.products(shape, "nvfp4", Packing())}
    config = shape.config
    inner, hidden = config.intermediate_size, config.hidden_size
    assert {f"{2 * inner}x{hidden}", f"{hidden}x{inner}"} <= set(found)
    packed = found[f"{hidden}x{inner}"]
    with Pool(load_library(), 1) as pool:
        case = tuning._Case(packed, (1, 3), pool, 0)
        assert sum(each.weight_bytes for each in case._copies) >= 1 << 20
        assert all(shape_key(each) == shape_key(packed) for each in case._copies)
        assert len({each.weight.data_ptr() for each in case._copies}) == len(case._copies)
        assert all(ms > 0 for ms in case.times([DEFAULT, FASTER], 2, None))


@pytest.mark.parametrize(
    "options",
    [("--weights", "fp8", "--wide"), ("--turns", "0"), ("--threads", "999"), ("--shape", "no")],
)
def test_a_wrong_request_is_a_usage_error(
    options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, values = run_json(capsys, "tune", *options)
    assert code == 2
    assert values["error"]["next_step"]
