# SPDX-License-Identifier: MIT OR Apache-2.0
"""CSV export: schema, exact numbers, harmless text, and files that are whole or absent."""

from __future__ import annotations

import csv
import errno
import io
import locale
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.measure.export_csv import (
    KERNEL_COLUMNS,
    RUN_COLUMNS,
    ExportError,
    cell,
    csv_text,
    require_new,
    write_csv,
    write_json,
)


def parsed(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_schema_starts_with_its_version_and_names_no_column_twice() -> None:
    for columns in (RUN_COLUMNS, KERNEL_COLUMNS):
        assert columns[0] == "schema_version"
        assert len(set(columns)) == len(columns)
    assert RUN_COLUMNS[-12:-10] == ("suite", "rows")
    assert {"ms_per_round_median", "achieved_gbps", "roof_gbps", "peer"} <= set(RUN_COLUMNS)


def test_missing_values_are_empty_and_the_version_is_filled_in() -> None:
    [row] = parsed(csv_text(RUN_COLUMNS, [{"run_id": "a", "ttft_ms": None}]))
    assert row["schema_version"] == "1"
    assert row["run_id"] == "a"
    assert {value for name, value in row.items() if name not in ("schema_version", "run_id")} == {
        ""
    }


def test_an_unknown_column_is_an_error() -> None:
    with pytest.raises(ValueError, match="round_us"):
        csv_text(RUN_COLUMNS, [{"round_us": 1}])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (False, "false"),
        (0.1, "0.1"),
        (-2.5, "-2.5"),
        (1e-9, "1e-09"),
        (1 << 60, "1152921504606846976"),
        (-3, "-3"),
        (float("nan"), ""),
        (float("inf"), ""),
        (None, ""),
        (np.float32(0.5), "0.5"),
        (np.float64(0.1), "0.1"),
        (np.int64(-7), "-7"),
        (np.bool_(True), "true"),
    ],
)
def test_values_as_text(value: object, text: str) -> None:
    assert cell(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_keep_every_bit(value: float) -> None:
    assert float(cell(value)) == value


@given(st.text(st.characters(codec="utf-8")) | st.text("=+-@\t\r\n\"',;x"))
def test_text_never_starts_a_formula_and_survives_the_round_trip(text: str) -> None:
    [row] = parsed(csv_text(("schema_version", "label"), [{"label": text}]))
    stored = row["label"]
    assert not stored.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
    expected = text.replace("\0", "\N{REPLACEMENT CHARACTER}").replace("\r\n", "\n")
    assert stored in (expected.replace("\r", "\n"), "'" + expected.replace("\r", "\n"))


@pytest.mark.parametrize("text", ["=1+1", "+1", "-cmd", "@SUM(A1)", "\t=1", "\n=1"])
def test_formulas_become_text(text: str) -> None:
    assert cell(text) == "'" + text


def test_decimal_point_in_a_comma_locale() -> None:
    before = locale.setlocale(locale.LC_NUMERIC)
    for name in ("de_DE.UTF-8", "fr_FR.UTF-8"):
        try:
            locale.setlocale(locale.LC_NUMERIC, name)
            break
        except locale.Error:
            continue
    try:
        assert cell(1234.5) == "1234.5"
        assert cell(1234567) == "1234567"
    finally:
        locale.setlocale(locale.LC_NUMERIC, before)


def test_a_file_is_written_whole_and_never_replaced(tmp_path: Path) -> None:
    target = tmp_path / "größe run.csv"
    write_csv(target, RUN_COLUMNS, [{"label": 'naïve, "quoted"\nline', "rounds": 3}])
    data = target.read_bytes()
    assert data.startswith(b"schema_version,run_id,")
    assert b"\r" not in data
    assert parsed(data.decode("utf-8"))[0]["label"] == 'naïve, "quoted"\nline'
    with pytest.raises(ExportError) as error:
        write_csv(target, RUN_COLUMNS, [])
    assert "exists already" in error.value.cause
    assert error.value.next_step
    assert target.read_bytes() == data
    assert [p.name for p in tmp_path.iterdir()] == [target.name]


def test_a_dangling_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    target.symlink_to(tmp_path / "elsewhere.csv")
    for act in (lambda: require_new(target), lambda: write_csv(target, RUN_COLUMNS, [])):
        with pytest.raises(ExportError, match="exists already"):
            act()
    assert not (tmp_path / "elsewhere.csv").exists()


def test_a_name_taken_while_writing_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out.csv"
    sync = os.fsync

    def someone_else_writes(handle: int) -> None:
        sync(handle)
        target.write_text("theirs", encoding="utf-8")

    monkeypatch.setattr(os, "fsync", someone_else_writes)
    with pytest.raises(ExportError, match="exists already"):
        write_csv(target, RUN_COLUMNS, [])
    assert target.read_text(encoding="utf-8") == "theirs"
    assert [p.name for p in tmp_path.iterdir()] == ["out.csv"]


def test_without_hard_links_the_rules_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    target = tmp_path / "out.csv"
    write_csv(target, RUN_COLUMNS, [{"rounds": 1}])
    assert parsed(target.read_text(encoding="utf-8"))[0]["rounds"] == "1"
    with pytest.raises(ExportError, match="exists already"):
        write_csv(target, RUN_COLUMNS, [])
    assert [p.name for p in tmp_path.iterdir()] == ["out.csv"]

    def no_move(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "replace", no_move)
    with pytest.raises(ExportError, match="cannot be written"):
        write_csv(tmp_path / "other.csv", RUN_COLUMNS, [])
    assert [p.name for p in tmp_path.iterdir()] == ["out.csv"]


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.ENOSPC, "Free some space"), (errno.EROFS, "may write"), (errno.EACCES, "may write")],
)
def test_a_disk_that_refuses_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, advice: str
) -> None:
    def refuse(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(ExportError) as error:
        write_csv(tmp_path / "out.csv", RUN_COLUMNS, [{"rounds": 1}])
    assert os.strerror(number) in error.value.cause
    assert "No partial file" in error.value.kept
    assert advice in error.value.next_step
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_known_before_measuring(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="cannot be written") as error:
        require_new(tmp_path / "none" / "out.csv")
    assert "Create the folder" in error.value.next_step
    require_new(tmp_path / "out.csv")
    assert not list(tmp_path.iterdir())


def test_json_refuses_what_is_not_a_number_and_never_replaces(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "a.json", {"x": float("nan")})
    write_json(tmp_path / "a.json", {"x": 1})
    with pytest.raises(ExportError):
        write_json(tmp_path / "a.json", {"x": 2})


def test_half_a_surrogate_pair_does_not_stop_the_export(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", RUN_COLUMNS, [{"label": "a\ud800b"}])
    assert parsed((tmp_path / "a.csv").read_text(encoding="utf-8"))[0]["label"] == "a?b"
