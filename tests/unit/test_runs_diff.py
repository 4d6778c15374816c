# SPDX-License-Identifier: MIT OR Apache-2.0
"""What differs between two stored runs: by value, in readable numbers, and of two kinds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from stored_runs import MACHINE, make_report

from engine.api import CompareReport
from engine.cli import OK, main
from engine.measure.runs import RunStore
from engine.measure.runs_handle import StoredRuns
from engine.paths import data_dir


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> CompareReport:
    return make_report(tmp_path_factory.mktemp("report"), label="first")


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "runs")


def save_bench(store: RunStore, **machine: object) -> str:
    bench = {
        "rows": [{"suite": "decode", "rows": 1, "ms_median": 2.0, "peer": None}],
        "machine": {**MACHINE, **machine},
    }
    return store.save_bench(bench, [], {"shape": "demo"})


def test_the_difference_of_two_runs(store: RunStore, report: CompareReport, tmp_path: Path) -> None:
    first = store.save_compare(report).run_id
    other = make_report(tmp_path, effect_pct=-5.0, tokens=48)
    second = store.save_compare(replace(other, machine={**MACHINE, "cpu_model": "another"})).run_id
    handle = StoredRuns(store)
    assert handle.diff_runs(first, first) == ()
    found = {(row.section, row.name): row for row in handle.diff_runs(first, second)}
    assert found["request", "tokens"].first == "32"
    assert found["request", "tokens"].delta_pct == pytest.approx(50.0)
    assert found["machine", "cpu_model"].second == "another"
    assert found["figures", "verdict"].first == "worse"
    assert found["figures", "verdict"].second == "better"
    assert found["figures", "candidate ms_per_round"].delta_pct < -5
    assert ("kernels", "gated_delta, candidate ms a round") in found
    assert not any(section == "switches" for section, _ in found)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3e-05, "0.00003"),
        (-1.23456789e-7, "-0.000000123457"),
        (0.1, "0.1"),
        (12.3456789, "12.3457"),
        (2.0, "2"),
        (987654.4321, "987654"),
        (4.5e9, "4500000000"),
        (0.0, "0"),
    ],
)
def test_a_number_has_no_exponent(
    store: RunStore, report: CompareReport, value: float, text: str
) -> None:
    first = store.save_compare(report).run_id
    second = store.save_compare(replace(report, p_signflip=value)).run_id
    [row] = StoredRuns(store).diff_runs(first, second)
    assert (row.name, row.second) == ("p_signflip", text)


@pytest.mark.parametrize("cores", [None, 8])
def test_an_ab_and_a_bench_differ_in_kind_and_machine_alone(
    report: CompareReport, capsys: pytest.CaptureFixture[str], cores: int | None
) -> None:
    store = RunStore()
    assert store.folder == data_dir() / "runs"
    first = store.save_compare(report).run_id
    second = save_bench(store, **({"cores": cores} if cores else {}))
    kind, *machine = StoredRuns(store).diff_runs(first, second)
    assert (kind.section, kind.name) == ("request", "kind of run")
    assert (kind.first, kind.second, kind.delta_pct) == ("A/B", "bench", None)
    assert [(row.section, row.name, row.first, row.second) for row in machine] == (
        [("machine", "cores", "", "8")] if cores else []
    )
    assert main(["runs", "diff", first, second]) == OK
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading == (
        f"{first} is of the kind A/B, {second} of the kind bench: they have no figures in common; "
        f"their machines {'differ' if cores else 'do not differ'}"
    )
    assert rows == (["machine   cores: - | 8"] if cores else [])
    assert main(["runs", "diff", first, first]) == OK
    assert capsys.readouterr().out == "nothing differs\n"
