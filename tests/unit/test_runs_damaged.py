# SPDX-License-Identifier: MIT OR Apache-2.0
"""A stored run whose values are not what they were: named, left as it is, and no crash elsewhere."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.api import CompareRequest
from engine.measure.ab_noise import NoiseStore
from engine.measure.records import plain, record
from engine.measure.runs import RunStore, RunStoreError
from engine.measure.runs_handle import keep_report

DEEP = 100_000


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "runs")


def damage(store: RunStore, place: tuple[str, ...], value: Any) -> str:
    bench = {"rows": [{"suite": "verify", "rows": 1}], "seconds": 1.0, "machine": {"cores": 2}}
    run_id = store.save_bench(bench, [{"suite": "verify"}], {"shape": "demo"})
    path = store.folder / run_id / "run.json"
    values = json.loads(path.read_text("utf-8"))
    inner = values
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    path.write_text(json.dumps(values))
    return run_id


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("machine",), 5, "machine is no object"),
        (("request",), [1], "request is no object"),
        (("bench",), "x", "bench is no object"),
        (("bench", "rows"), 5, "bench.rows is no list of objects"),
        (("bench", "rows"), [5], "bench.rows is no list of objects"),
        (("bench", "csv_rows"), {"a": 1}, "bench.csv_rows is no list of objects"),
    ],
)
def test_a_part_of_another_type_is_named(
    store: RunStore, place: tuple[str, ...], value: Any, words: str
) -> None:
    run_id = damage(store, place, value)
    with pytest.raises(RunStoreError, match="damaged") as caught:
        store.read(run_id)
    assert words in caught.value.cause


def test_a_file_of_brackets_is_damaged_and_not_a_crash(store: RunStore, tmp_path: Path) -> None:
    run_id = damage(store, ("machine",), {})
    for name in ("run.json", "summary.json"):
        (store.folder / run_id / name).write_text("[" * DEEP)
    [summary] = store.list()
    assert "nested too deeply" in summary.damaged
    with pytest.raises(RunStoreError, match="nested too deeply"):
        store.read(run_id)
    (tmp_path / "key.json").write_text("[" * DEEP)
    assert NoiseStore(tmp_path).recent("key") is None


def test_a_folder_whose_name_is_no_time_is_listed(store: RunStore) -> None:
    (store.folder / "99999999T999999Z-abcdef").mkdir(parents=True)
    [summary] = store.list()
    assert summary.test_time == ""
    assert summary.damaged


def test_a_number_beyond_any_float_is_refused(tmp_path: Path) -> None:
    huge = 10**400
    values = {**plain(CompareRequest()), "min_effect_pct": huge}
    with pytest.raises(ValueError, match=r"CompareRequest\.min_effect_pct is too large"):
        record(CompareRequest, values)
    noise = {"schema_version": 1, "measured_s": huge, "log_ratios": [0.1]}
    (tmp_path / "key.json").write_text(json.dumps(noise))
    assert NoiseStore(tmp_path).recent("key") is None


def test_a_run_that_is_whole_is_read(store: RunStore) -> None:
    run_id = damage(store, ("machine",), {"cores": 4})
    found = store.read(run_id)
    assert found.machine == {"cores": 4}
    assert found.bench is not None


@dataclass(frozen=True)
class Report:
    not_stored: str = ""
    verdict: str = "worse"
    pairs: int = 6


def test_a_fault_while_storing_leaves_the_report(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save_compare(report: object) -> object:
        raise ValueError("no such column")

    monkeypatch.setattr(store, "save_compare", save_compare)
    kept = keep_report(store, Report())
    assert kept == Report(not_stored="ValueError: no such column")
