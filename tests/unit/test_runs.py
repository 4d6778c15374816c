# SPDX-License-Identifier: MIT OR Apache-2.0
"""The runs store: whole runs or none, damaged ones listed as such, and the CSV that comes out of it."""

from __future__ import annotations

import errno
import json
import locale
import math
import os
import statistics
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from stored_runs import MACHINE, make_report, read_csv

from engine.api import CompareReport, CompareRequest, RunSummary
from engine.errors import UsageError
from engine.measure import runs as runs_module
from engine.measure.export_csv import COMPARE_COLUMNS, KERNEL_COLUMNS, RUN_COLUMNS, ExportError
from engine.measure.records import plain, record
from engine.measure.runs import RunStore, RunStoreError, new_run_id
from engine.measure.runs_handle import StoredRuns
from engine.paths import data_dir


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> CompareReport:
    return make_report(tmp_path_factory.mktemp("report"), label="first")


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "deep" / "runs")


def test_a_report_comes_back_as_it_was(store: RunStore, report: CompareReport) -> None:
    saved = store.save_compare(report)
    found = store.read(saved.run_id)
    assert found.compare == saved == replace(report, run_id=saved.run_id)
    assert found.request == plain(report.request)
    assert found.bench is None
    [summary] = store.list()
    assert summary == found.summary
    assert (summary.kind, summary.verdict, summary.label) == ("compare", "worse", "first")
    delta = 100 * (report.ratio_median - 1)
    assert summary.headline == f"QWEN38_VERIFY_GRAPH=0: worse, {delta:+.2f} % ms per round"
    names = {path.name for path in (store.folder / saved.run_id).iterdir()}
    assert names == {
        "summary.json",
        "run.json",
        "bench_runs.csv",
        "bench_compare.csv",
        "kernels.csv",
    }
    for name in ("summary.json", "run.json"):
        text = (store.folder / saved.run_id / name).read_text("utf-8")
        assert next(iter(json.loads(text))) == "schema_version"


def test_an_empty_or_absent_store_lists_nothing(store: RunStore) -> None:
    assert store.list() == ()
    store.folder.mkdir(parents=True)
    (store.folder / ".writing-abc").mkdir()
    (store.folder / "notes.txt").write_text("mine")
    assert store.list() == ()


def test_runs_are_listed_newest_first_and_only_the_page_is_read(
    store: RunStore, report: CompareReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"20260101T0000{n:02}Z-00000{n % 10}" for n in range(30)]
    for run_id in ids:
        monkeypatch.setattr(runs_module, "new_run_id", lambda run_id=run_id: run_id)
        store.save_compare(report)
    read = []
    real = runs_module._read_json
    monkeypatch.setattr(runs_module, "_read_json", lambda path: read.append(path) or real(path))
    page = store.list(offset=5, limit=3)
    assert [summary.run_id for summary in page] == ids[::-1][5:8]
    assert len(read) == 3
    assert {path.name for path in read} == {"summary.json"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Expecting value"),
        ("[]", "not a JSON object"),
        ('{"schema_version": 2}', "schema version 2"),
        ('{"schema_version": 1, "run_id": "x"}', "RunSummary.kind is missing"),
        ('{"schema_version": 1, "run_id": 3}', "RunSummary.run_id is int"),
        (None, "No such file"),
    ],
)
def test_a_damaged_summary_is_listed_with_its_fault(
    store: RunStore, report: CompareReport, text: str | None, words: str
) -> None:
    good = store.save_compare(report).run_id
    bad = store.save_compare(report).run_id
    path = store.folder / bad / "summary.json"
    path.unlink()
    if text is not None:
        path.write_text(text)
    by_id = {summary.run_id: summary for summary in store.list()}
    assert by_id[good].damaged == ""
    assert words in by_id[bad].damaged
    assert by_id[bad].test_time.endswith("Z")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("n_pairs", "ten", "CompareReport.n_pairs is str"),
        ("pairs", [{"index": 1}], "CompareReport.pairs[0].order is missing"),
        ("tokens_identical", 1, "CompareReport.tokens_identical is int"),
    ],
)
def test_a_damaged_run_is_an_error_that_leaves_it(
    store: RunStore, report: CompareReport, field: str, value: object, words: str
) -> None:
    run_id = store.save_compare(report).run_id
    path = store.folder / run_id / "run.json"
    values = json.loads(path.read_text("utf-8"))
    values["compare"][field] = value
    path.write_text(json.dumps(values))
    with pytest.raises(RunStoreError, match="damaged") as caught:
        store.read(run_id)
    assert words in caught.value.cause
    assert path.exists()


@pytest.mark.parametrize("run_id", ["", "..", "../other", "20260101T000000Z-00000g", "a/b"])
def test_an_id_that_is_no_run_is_refused(store: RunStore, run_id: str) -> None:
    store.folder.mkdir(parents=True)
    for call in (store.read, store.delete, lambda name: store.label(name, "x")):
        with pytest.raises(RunStoreError, match="no run"):
            call(run_id)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_full_or_read_only_disk_keeps_the_report_and_leaves_no_part(
    store: RunStore, report: CompareReport, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    store.save_compare(report)

    def refuse(handle: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    kept = StoredRuns(store).keep_run(report)
    assert replace(kept, not_stored="") == report
    assert os.strerror(code) in kept.not_stored
    assert "The report stays in memory." in kept.not_stored
    assert "another folder" in kept.not_stored
    assert len(list(store.folder.iterdir())) == 1


def test_a_store_that_is_a_file_is_a_clear_error(tmp_path: Path, report: CompareReport) -> None:
    (tmp_path / "runs").write_text("")
    store = RunStore(tmp_path / "runs")
    with pytest.raises(RunStoreError, match="not stored"):
        store.save_compare(report)
    with pytest.raises(RunStoreError, match="cannot be read"):
        store.list()


def test_two_processes_store_side_by_side(store: RunStore, report: CompareReport) -> None:
    run_id = store.save_compare(report).run_id
    script = """
import sys
from pathlib import Path
from engine.measure.runs import RunStore
store = RunStore(Path(sys.argv[1]))
report = store.read(sys.argv[2]).compare
for _ in range(10):
    store.save_compare(report)
    assert all(not summary.damaged for summary in store.list())
"""
    arguments = [sys.executable, "-c", script, str(store.folder), run_id]
    both = [subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    assert len(store.list()) == 21
    assert not [name for name in os.listdir(store.folder) if name.startswith(".")]


def test_label_and_delete(store: RunStore, report: CompareReport) -> None:
    run_id = store.save_compare(report).run_id
    store.label(run_id, "  quiet\nmachine " + "x" * 300)
    label = store.read(run_id).summary.label
    assert label.startswith("quiet machine xxx")
    assert len(label) == 200
    assert store.read(run_id).compare.label == label
    named = store.save_compare(replace(report, label=" two\nlines ")).run_id
    assert store.read(named).summary.label == "two lines"
    bench = store.save_bench({"rows": []}, [], {"shape": "demo"}, label="a\tb\n")
    assert store.read(bench).summary.label == "a b"
    for one in (bench, named):
        store.delete(one)
    store.delete(run_id)
    assert store.list() == ()
    assert os.listdir(store.folder) == []


@pytest.mark.parametrize(
    ("named", "folder"),
    [
        ("/data", "/data/rondo"),
        ("~/data", "/people/me/data/rondo"),
        ("", "/people/me/.local/share/rondo"),
        ("relative/data", "/people/me/.local/share/rondo"),
    ],
)
def test_the_data_folder_does_not_go_with_the_present_one(
    monkeypatch: pytest.MonkeyPatch, named: str, folder: str
) -> None:
    monkeypatch.setenv("HOME", "/people/me")
    monkeypatch.setenv("XDG_DATA_HOME", named)
    assert data_dir() == Path(folder)


def test_an_exported_run_holds_every_raw_value(
    store: RunStore, report: CompareReport, tmp_path: Path
) -> None:
    saved = store.save_compare(report)
    paths = StoredRuns(store).export_runs((saved.run_id,), str(tmp_path))
    by_name = {Path(path).name.split("-")[0]: path for path in paths}
    assert set(by_name) == {"bench_runs", "bench_compare", "kernels"}
    assert all(Path(path).name.endswith("Z-first.csv") for path in paths)
    rows = read_csv(by_name["bench_runs"])
    assert tuple(rows[0])[: len(RUN_COLUMNS)] == RUN_COLUMNS
    assert next(iter(rows[0])) == "schema_version"
    assert len(rows) == len(report.blocks) == 20
    for row, block in zip(rows, report.blocks, strict=True):
        assert (row["side"], int(row["pair_index"])) == (block.side, block.pair_index)
        assert float(row["ms_per_round_mean"]) == math.fsum(block.round_ms) / block.rounds
        assert float(row["ms_per_round_median"]) == statistics.median(block.round_ms)
        assert float(row["ttft_ms"]) == block.ttft_ms
        assert row["prefill_tps"] == row["gpu_info"] == ""
        assert row["git_dirty"] == "false"
        graph = "0" if block.side == "candidate" else ""
        assert row["knob:QWEN38_VERIFY_GRAPH"] == graph
    base, candidate = (
        math.fsum(
            float(row["ms_per_round_mean"]) * int(row["rounds"])
            for row in rows
            if row["side"] == side
        )
        / sum(int(row["rounds"]) for row in rows if row["side"] == side)
        for side in ("base", "candidate")
    )
    assert base == pytest.approx(report.base.ms_per_round, rel=1e-12)
    assert candidate == pytest.approx(report.candidate.ms_per_round, rel=1e-12)


def test_the_comparison_file_has_one_verdict_and_says_the_rest_is_exploratory(
    store: RunStore, report: CompareReport
) -> None:
    saved = store.save_compare(report)
    rows = read_csv(store.folder / saved.run_id / "bench_compare.csv")
    assert tuple(rows[0]) == COMPARE_COLUMNS
    assert [(row["workload"], row["metric"]) for row in rows] == [
        (workload, metric)
        for workload in ("all", "copy")
        for metric in ("ms_per_round", "ms_per_token", "tokens_per_round")
    ]
    headline, *others = rows
    assert headline["verdict"] == "worse"
    assert headline["reason"] == report.reason
    assert float(headline["ratio_median"]) == report.ratio_median
    assert float(headline["ci95_low_pct"]) == report.ci95_low_pct
    assert float(headline["p_signflip"]) == report.p_signflip
    assert float(headline["noise_floor_pct"]) == report.noise_floor_pct
    assert headline["tokens_identical"] == headline["engaged_differs"] == "true"
    assert {row["reason"] for row in others} == {"exploratory"}
    assert {row["verdict"] for row in others} == {""}
    assert [row["better"] for row in rows] == ["lower", "lower", "higher"] * 2
    kernels = read_csv(store.folder / saved.run_id / "kernels.csv")
    assert tuple(kernels[0]) == KERNEL_COLUMNS
    total = sum(float(r["total_ms_per_round"]) for r in kernels if r["run_id"].endswith("-base"))
    assert total == pytest.approx(report.base.ms_per_round)


def test_text_that_looks_like_a_formula_is_made_harmless(
    store: RunStore, report: CompareReport, tmp_path: Path
) -> None:
    run_id = store.save_compare(report).run_id
    store.label(run_id, '=HYPERLINK("http://example.org"),"x"\r\n')
    paths = StoredRuns(store).export_runs((run_id,), str(tmp_path))
    rows = [row for path in paths for row in read_csv(path)]
    assert any("label" in row for row in rows)
    for row in rows:
        assert not any(value.startswith(("=", "+", "@", "\t")) for value in row.values())
        if "label" in row:
            assert row["label"] == '\'=HYPERLINK("http://example.org"),"x"'


def test_the_decimal_point_does_not_follow_the_locale(
    report: CompareReport, store: RunStore, tmp_path: Path
) -> None:
    names = ("de_DE.UTF-8", "fr_FR.UTF-8", "de_DE.utf8", "fr_FR.utf8")
    before = locale.setlocale(locale.LC_ALL)
    for name in names:
        try:
            locale.setlocale(locale.LC_ALL, name)
        except locale.Error:
            continue
        break
    try:
        saved = store.save_compare(report)
        [path, *_] = StoredRuns(store).export_runs((saved.run_id,), str(tmp_path))
    finally:
        locale.setlocale(locale.LC_ALL, before)
    first = read_csv(path)[0]
    assert float(first["ms_per_round_mean"]) > 0
    assert "," not in first["ms_per_round_mean"]


def test_an_export_overwrites_nothing_and_several_runs_share_a_file(
    store: RunStore, report: CompareReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = tuple(store.save_compare(report).run_id for _ in range(2))
    handle = StoredRuns(store)
    paths = handle.export_runs(ids, str(tmp_path))
    rows = read_csv(paths[0])
    assert {row["session_id"] for row in rows} == set(ids)
    assert len({row["run_id"] for row in rows}) == len(rows) == 40
    monkeypatch.setattr("engine.measure.runs_text.datetime", _Frozen)
    handle.export_runs(ids, str(tmp_path))
    with pytest.raises(ExportError, match="exists already"):
        handle.export_runs(ids, str(tmp_path))
    with pytest.raises(ExportError, match="cannot be written"):
        handle.export_runs(ids, str(tmp_path / "absent"))
    with pytest.raises(UsageError):
        handle.export_runs((), str(tmp_path))


class _Frozen:
    """A clock that stands still."""

    @staticmethod
    def now(zone: object) -> datetime:
        return datetime(2026, 1, 2, 3, 4, 5, tzinfo=zone)


def test_a_report_in_memory_can_be_exported(report: CompareReport, tmp_path: Path) -> None:
    paths = StoredRuns(RunStore(tmp_path / "runs")).export_report(report, str(tmp_path))
    assert len(paths) == 3
    assert not (tmp_path / "runs").exists()


def test_a_bench_is_stored_with_its_rows(store: RunStore, tmp_path: Path) -> None:
    bench = {
        "rows": [{"suite": "decode", "rows": 1, "ms_median": 2.0, "peer": None}],
        "seconds": 3.2,
        "machine": MACHINE,
    }
    rows = [{"suite": "decode", "rows": 1, "ms_per_round_median": 2.0, "label": "-b"}]
    run_id = store.save_bench(bench, rows, {"shape": "demo", "rows": "1"}, label="-b")
    found = store.read(run_id)
    assert (found.summary.kind, found.summary.model_name) == ("bench", "demo")
    assert found.summary.headline == "1 cases, 3 s"
    assert found.request == {"shape": "demo", "rows": "1"}
    [path] = StoredRuns(store).export_runs((run_id,), str(tmp_path))
    [row] = read_csv(path)
    assert row["session_id"] == run_id
    assert (row["ms_per_round_median"], row["label"]) == ("2.0", "'-b")


def test_records_refuse_what_is_not_theirs() -> None:
    summary = RunSummary(new_run_id(), "bench", "t", "", "", "", "", "")
    assert record(RunSummary, plain(summary)) == summary
    later = {**plain(summary), "a_later_field": 1}
    assert record(RunSummary, later) == summary
    assert plain({"x": (math.nan, 1.5, True)}) == {"x": [None, 1.5, True]}
    request = CompareRequest(candidate={"QWEN38_B": "1"})
    assert record(CompareRequest, json.loads(json.dumps(plain(request)))) == request
    with pytest.raises(ValueError, match=r"CompareRequest\.pairs is str"):
        record(CompareRequest, {"pairs": "7"})
    with pytest.raises(ValueError, match=r"candidate\[0\] has 1 items, not 2"):
        record(CompareRequest, {"candidate": [["QWEN38_B"]]})
