# SPDX-License-Identifier: MIT OR Apache-2.0
"""`rondo tune` writes a table that its switch reads, keeps the others in the file, and says where it is."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_cli import run_json
from tune_world import FASTER, given_products, make_small, make_timed, one, wrong_bits

from engine.cli import main
from engine.commands import tune as command
from engine.measure import tune as tuning
from engine.measure.shapes import Shape, named_shape
from engine.model.tiles import read_tiles
from kernels.build import load_library
from kernels.cpu.product import PackedLinear


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    make_timed(monkeypatch)


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
    level = load_library().isa
    assert list(written["levels"]) == [level]
    table = written["levels"][level]
    assert values["tiles"] == table["tiles"]
    origin = table["tiles_from"]
    assert origin["isa"] == level
    assert (origin["switch"], origin["shape"], origin["threads"]) == (switch, "demo", 1)
    assert origin["machine"]["cpu_model"]
    assert origin["date"].endswith("Z")
    assert len(origin["code_sha256_12"]) == 12
    assert read_tiles(path, level).sizes == {"48x512": FASTER}
    assert read_tiles(path, "another").unfit == f"measured at {level}, this is another"
    entry = table["tiles"]["48x512"]
    assert entry["measured_rows"] == rows
    assert entry["tuned_gbps"] == pytest.approx(entry["default_gbps"] / 0.8)


ELSEWHERE = {"tiles": {"16x16": {}}, "tiles_from": {"isa": "another"}}


@pytest.mark.usefixtures("small", "timed")
@pytest.mark.parametrize(
    ("present", "kept"),
    [
        ({"about": "both", "cuda": {"16x16": {"wk": 8}}, "tiles": {}}, None),
        ({"levels": {"another": ELSEWHERE}}, None),
        (ELSEWHERE, {"levels": {"another": ELSEWHERE}}),
        ({"tiles": {"16x16": {}}}, None),
    ],
)
def test_tables_of_other_devices_and_levels_are_kept(
    present: dict[str, Any],
    kept: dict[str, Any] | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "tiles.json"
    path.write_text(json.dumps(present), "utf-8")
    for _ in range(2):  # the second replaces what the first wrote
        options = ("--threads", "1", "--turns", "1", "--out", str(path))
        assert run_json(capsys, "tune", *options)[0] == 0
        written = json.loads(path.read_text("utf-8"))
        here = written["levels"].pop(load_library().isa)
        assert list(here["tiles"]) == ["48x512"]
        about = present.get("about", written["about"])
        wanted = {"levels": {}, **(kept or present), "about": about}
        if wanted.get("tiles") == {}:
            del wanted["tiles"]
        assert written == wanted


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


def test_a_place_that_takes_no_file_is_refused_before_the_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(dir: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(command.tempfile, "TemporaryFile", full)
    monkeypatch.setattr(command, "_on_processor", lambda *args: pytest.fail("the sweep began"))
    assert main(["tune", "--out", str(tmp_path / "tiles.json")]) == 2
    told = capsys.readouterr().err
    assert "nothing can be written there: Read-only file system" in told
    assert "Nothing was measured." in told


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


@pytest.mark.usefixtures("small", "timed")
@pytest.mark.parametrize("present", [True, False])
def test_ctrl_c_writes_nothing(
    present: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "tiles.json"
    if present:
        path.write_text('{"tiles": {}}')

    def interrupt(*_: object, **__: object) -> Iterator[PackedLinear]:
        yield one("nvfp4")
        os.kill(os.getpid(), signal.SIGINT)
        yield one("nvfp4")

    monkeypatch.setattr(tuning, "products", interrupt)
    assert main(["tune", "--threads", "1", "--turns", "1", "--out", str(path)]) == 130
    told = capsys.readouterr().err
    assert (f"{path} is as it was" if present else "No table was written") in told
    assert path.exists() == present
    assert not present or path.read_text() == '{"tiles": {}}'


@pytest.mark.usefixtures("small", "timed")
def test_a_chosen_setting_that_changes_a_bit_ends_the_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong_bits(monkeypatch, inputs=FASTER.inputs)
    path = tmp_path / "tiles.json"
    code, values = run_json(capsys, "tune", "--threads", "1", "--turns", "1", "--out", str(path))
    assert code == 1
    assert "changes the bits of 48x512 at 31 rows" in values["error"]["cause"]
    assert not path.exists()


@pytest.mark.usefixtures("small", "timed")
def test_progress_goes_to_stderr_with_parameter_and_settings_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--threads", "1", "--turns", "1", "--out", str(tmp_path / "tiles.json")]
    assert main(["tune", *options]) == 0
    said = capsys.readouterr()
    assert "product" not in said.out
    assert said.err.splitlines() == [
        "finding the products",
        "product 1 of 1 (48x512): begun",
        "product 1 of 1 (48x512): rows, 3 of 3 settings left",
        "product 1 of 1 (48x512): inputs, 2 of 2 settings left",
        "product 1 of 1 (48x512): comparing the bits of the best setting at every row count",
        "product 1 of 1 (48x512): +25.0 %",
    ]


@pytest.mark.usefixtures("small", "timed")
def test_several_shapes_make_one_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def products(shapes: list[Shape], *arguments: Any, **options: Any) -> Iterator[PackedLinear]:
        asked[:] = [(shape.name, shape.config.vocab_size) for shape in shapes]
        return given_products(shapes, *arguments, **options)

    monkeypatch.setattr(tuning, "products", products)
    path = tmp_path / "tiles.json"
    options = ("--threads", "1", "--turns", "1", "--out", str(path), "--vocab", "8000")
    names = "demo, qwen3.8-27b:4,demo,qwen3.5-0.8b"
    code, values = run_json(capsys, "tune", "--shape", names, *options)
    assert code == 0
    # The vocabulary is capped, not set: the demo's own is smaller.
    demo = named_shape("demo").config.vocab_size
    assert demo < 8000
    assert asked == [("demo", demo), ("qwen3.8-27b:4", 8000), ("qwen3.5-0.8b", 8000)]
    origin = values["tiles_from"]
    assert origin["shape"] == "demo,qwen3.8-27b:4,qwen3.5-0.8b"
    assert origin["cut"][0].startswith("qwen3.8-27b:4: 4 of 64 layers, vocabulary 8000")


@pytest.mark.parametrize(
    "options",
    [
        ("--weights", "fp8", "--wide"),
        ("--turns", "0"),
        ("--threads", "999"),
        ("--shape", "no"),
        ("--shape", "demo,"),
    ],
)
def test_a_wrong_request_is_a_usage_error(
    options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, values = run_json(capsys, "tune", *options)
    assert code == 2
    assert values["error"]["next_step"]
