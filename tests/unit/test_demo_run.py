# SPDX-License-Identifier: MIT OR Apache-2.0
"""The demonstration without a display, on the scripted engine."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

from engine.fake import FakeEngine
from engine.measure.telemetry import DRAFTERS, ROUND_DTYPE, ROUTES, RoundRing
from ops import demo_run, demo_turn


@pytest.fixture
def no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine where Qt's libraries do not load."""
    monkeypatch.setitem(sys.modules, "ops.demo_window", None)


def play(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put the scripted engine behind the door."""
    monkeypatch.setattr(demo_turn, "open_handle", lambda **_: FakeEngine(script))


def test_rounds_are_written_as_they_were_recorded(tmp_path: Path) -> None:
    ring = RoundRing(8)
    ring.append(committed_tokens=4, drafter=DRAFTERS.index("mtp"), round_ms=0.1, bytes_read=1 << 40)
    ring.append(end_s=1234.5678901234, committed_tokens=1, route=ROUTES.index("mtp line"))
    path = tmp_path / "rounds.csv"
    demo_run.write_rounds(path, ring.since(0)[0])
    with path.open(encoding="utf-8", newline="") as file:
        first, second = csv.DictReader(file)
    assert list(first) == ["schema_version", *(ROUND_DTYPE.names or ())]
    assert (first["drafter"], first["round_ms"], first["bytes_read"]) == (
        "mtp",
        "0.1",
        str(1 << 40),
    )
    assert (first["route"], second["route"]) == ("", "mtp line")
    assert (second["drafter"], float(second["end_s"])) == ("none", 1234.5678901234)
    with pytest.raises(FileExistsError):
        demo_run.write_rounds(path, ring.since(0)[0])


@pytest.mark.usefixtures("no_window")
def test_a_turn_without_qt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    play(monkeypatch, "steady")
    out = tmp_path / "a new folder"
    assert demo_run.main(["--out", str(out)]) == 0
    told, errors = capfd.readouterr()
    assert demo_run.PROMPT in told
    assert "tok/s" in told
    assert str(out / "rounds.csv") in told
    assert "no picture" in errors
    rows = (out / "rounds.csv").read_text("utf-8").splitlines()
    assert len(rows) > 2


@pytest.mark.usefixtures("no_window")
def test_a_folder_with_something_in_it_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").touch()
    assert demo_run.main(["--out", str(tmp_path)]) == 2
    assert "not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.usefixtures("no_window")
@pytest.mark.parametrize("script", ["load-failure", "error"])
def test_a_failure_is_told_and_its_report_kept(
    script: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    play(monkeypatch, script)
    assert demo_run.main(["--out", str(tmp_path / "out")]) == 1
    assert "rondo: " in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--knob", "QWEN38_MTP_DEPTH"], ["--out", "/dev/null/x"]])
def test_a_wrong_option_is_a_usage_error(arguments: list[str]) -> None:
    assert demo_run.main(arguments) == 2
