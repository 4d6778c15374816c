# SPDX-License-Identifier: MIT OR Apache-2.0
"""`rondo ab` and `rondo runs` from the command line: JSON, exit codes, files and the store."""

from __future__ import annotations

import csv
import json
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from checkpoints import make_checkpoint

from engine.api import CompareProgress, CompareRequest
from engine.cli import FAILED, GATE, OK, USAGE, main
from engine.commands import ab
from engine.errors import UsageError
from engine.fake_compare import CompareScript, ScriptedSides
from engine.interrupt import INTERRUPTED
from engine.measure.ab import run_ab
from engine.measure.ab_noise import NoiseStore
from engine.measure.export_csv import ExportError
from engine.measure.runs import RunStore
from engine.measure.workloads import workloads_of
from engine.paths import data_dir

FLIP = "QWEN38_VERIFY_GRAPH=0"
KEYS = {
    "verdict", "reason", "n_pairs", "ratio_median", "ci95_low_pct", "ci95_high_pct", "p_signflip",
    "noise_floor_pct", "tokens_identical", "engaged_differs", "kernels",
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    make_checkpoint(folder, max_position_embeddings=1024)
    return str(folder)


@pytest.fixture
def short(model: str) -> list[str]:
    words = ["--prompt", "the pace", "--tokens", "8", "--repeats", "1", "--context", "300"]
    return ["--model", model, "--threads", "1", *words]


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict]:
    code = main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def run_ids() -> list[str]:
    return sorted(path.name for path in (data_dir() / "runs").iterdir())


def test_an_ab_prints_stores_and_writes_and_runs_reads_it_again(
    capsys: pytest.CaptureFixture[str],
    short: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = {"cpu_model": "this one", "code_sha256_12": "0" * 12}  # whatever is edited meanwhile
    monkeypatch.setattr("engine.measure.ab_session.machine_record", lambda: machine)
    out = tmp_path / "ab.csv"
    arguments = ("ab", *short, "--candidate", FLIP, "--pairs", "6", "--label", "mine")
    code, values = run_json(capsys, *arguments, "--csv", str(out))
    assert code == OK
    assert values.keys() >= KEYS
    assert values["verdict"] in ("better", "worse", "not resolved")
    assert values["n_pairs"] == 6
    assert values["engaged_differs"] is True
    assert values["request"]["candidate"] == [["QWEN38_VERIFY_GRAPH", "0"]]
    assert "round_ms" not in values["blocks"][0]
    run_id = values["run_id"]
    assert run_ids() == [run_id]
    with out.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    assert {(row["repeat"], row["interrupted_rounds"].isdigit()) for row in rows} == {("0", True)}
    with (tmp_path / "ab-compare.csv").open(newline="", encoding="utf-8") as file:
        compared = list(csv.DictReader(file))
    assert {(row["estimator"], row["repeats"]) for row in compared} == {(values["estimator"], "1")}
    assert (tmp_path / "ab-kernels.csv").is_file()

    # Nothing is measured where a file is in the way.
    code, refused = run_json(capsys, *arguments, "--csv", str(out))
    assert code == FAILED
    assert "exists already" in refused["error"]["cause"]
    assert run_ids() == [run_id]

    code, listed = run_json(capsys, "runs")
    assert (code, [row["run_id"] for row in listed["runs"]]) == (OK, [run_id])
    assert listed["runs"][0]["label"] == "mine"
    code, shown = run_json(capsys, "runs", "show", run_id)
    assert (code, shown["compare"]["reason"]) == (OK, values["reason"])
    assert main(["runs", "show", run_id]) == OK
    assert values["reason"] in capsys.readouterr().out
    assert main(["runs", "label", run_id, "another", "name"]) == OK
    code, exported = run_json(capsys, "runs", "export", run_id, "--out", str(tmp_path))
    assert code == OK
    assert [Path(name).name.rpartition("Z-")[2] for name in exported["files"]] == [
        "another-name.csv"
    ] * 3

    code, again = run_json(capsys, "runs", "rerun", run_id)
    assert code == OK
    assert again["request"] == values["request"] | {"label": "another name"}
    assert values["context_tokens"] == 300
    for name in ("model_path", "backend", "context_tokens", "threads"):
        assert again[name] == values[name]
    assert "min before" in again["noise_source"]
    code, differing = run_json(capsys, "runs", "diff", run_id, again["run_id"])
    sections = {row["section"] for row in differing["differences"]}
    assert "figures" in sections
    assert not sections & {"request", "switches", "machine"}
    code, gone = run_json(capsys, "runs", "delete", run_id)
    assert (code, gone["deleted"], run_ids()) == (OK, [run_id], [again["run_id"]])
    assert main(["runs"]) == OK
    assert again["run_id"] in capsys.readouterr().out


def test_a_bench_is_stored_and_runs_again_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--shape", "demo:4", "--suite", "decode", "--turns", "1", "--budget", "0")
    code, first = run_json(capsys, "bench", *options, "--threads", "1", "--no-roof", "--label", "b")
    assert code == OK
    [run_id] = run_ids()
    code, again = run_json(capsys, "runs", "rerun", run_id)
    assert code == OK
    assert len(run_ids()) == 2
    names = ("suite", "rows", "threads", "shape", "weight_format")
    assert [[row[n] for n in names] for row in again["rows"]] == [
        [row[n] for n in names] for row in first["rows"]
    ]
    code, listed = run_json(capsys, "runs", "list")
    assert {(row["kind"], row["label"]) for row in listed["runs"]} == {("bench", "b")}


def test_an_invalid_comparison_is_a_gate_that_did_not_hold(
    capsys: pytest.CaptureFixture[str], short: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A switch that takes effect nowhere: both sides replay the tape."""
    monkeypatch.setattr("engine.engine.Engine.restore_knobs", lambda self, knobs: None)
    code, values = run_json(capsys, "ab", *short, "--candidate", FLIP, "--pairs", "6")
    assert (code, values["verdict"]) == (GATE, "invalid")
    assert "changed nothing here" in values["reason"]


def test_a_cancel_before_a_pair_fails_and_stores_nothing(
    capsys: pytest.CaptureFixture[str], short: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel = threading.Event()
    monkeypatch.setattr("engine.cli.threading.Event", lambda: cancel)
    real = ab._Stages.show

    def show(self: object, progress: object) -> None:
        real(self, progress)
        if progress.stage.startswith("noise"):
            cancel.set()

    monkeypatch.setattr(ab._Stages, "show", show)
    code, values = run_json(capsys, "ab", *short, "--candidate", FLIP, "--pairs", "6")
    assert (code, values["verdict"]) == (INTERRUPTED, "cancelled")
    assert values["reason"].startswith(
        "Cancelled before a pair was complete, so there are no figures; nothing is kept. Start it again"
    )
    assert (values["run_id"], values["not_stored"]) == (
        "",
        "No pair was complete, so there is no run to store.",
    )
    assert RunStore().list() == ()


def test_a_run_without_a_pair_prints_its_reason_and_no_table(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = CompareRequest(candidate={"QWEN38_VERIFY_GRAPH": "0"}, tokens=32, repeats=1)
    cancel = threading.Event()

    def stop_at_the_first_pair(progress: CompareProgress) -> None:
        if progress.stage.startswith("pair 1"):
            cancel.set()

    report = run_ab(
        request,
        ScriptedSides(request, CompareScript()),
        workloads_of(request),
        noise_store=NoiseStore(tmp_path),
        machine={},
        on_progress=stop_at_the_first_pair,
        cancel=cancel,
    )
    monkeypatch.setattr("engine.measure.ab_session.compare_on", lambda *_, **__: report)
    engine = SimpleNamespace(card=None, close=lambda: None)
    assert ab.measure([engine], request, {}, cancel, as_json=False) == FAILED
    printed = capsys.readouterr()
    assert printed.out == f"cancelled: {report.reason}\n"
    assert "only the noise floor is kept, for an hour (A against A, 10 pairs" in report.reason
    assert printed.err.strip() == "No pair was complete, so there is no run to store."


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--candidate", "QWEN38_VERIFY_GRAPH"], "not KEY=value"),
        (["--pairs", "5"], "5 pairs"),
        (["--tokens", "4"], "4 tokens"),
        (["--workload", "copy"], "A prompt and a workload"),
        (
            ["--reference", "/no/such/file"],
            "cannot read the reference text: No such file or directory.",
        ),
        (["--candidate", "QWEN38_NO_SUCH=1"], "QWEN38_NO_SUCH"),
        (["--candidate", "QWEN38_VERIFY_GRAPH=1"], "what the base is already"),
    ],
)
def test_a_wrong_option_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], short: list[str], arguments: list[str], words: str
) -> None:
    code, values = run_json(capsys, "ab", *short, *arguments)
    assert code == USAGE
    assert words in values["error"]["cause"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["show"], USAGE, "does not take 0 words"),
        (["diff", "a"], USAGE, "does not take 1 words"),
        (["list", "x"], USAGE, "does not take 1 words"),
        (["list", "--limit", "0"], USAGE, "--limit"),
        (["show", "20260101T000000Z-000000"], FAILED, "There is no run"),
        (["delete", "../../etc"], FAILED, "There is no run"),
    ],
)
def test_runs_refuses_what_it_cannot_do(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    found, values = run_json(capsys, "runs", *arguments)
    assert found == code
    assert words in values["error"]["cause"]


def test_a_value_may_hold_commas() -> None:
    texts = ["QWEN38_TREE_MS=8:1.0,16:2.0,QWEN38_LOOKUP=1", "QWEN38_DEEP=4"]
    assert ab.parse_changes(texts, "--candidate") == {
        "QWEN38_TREE_MS": "8:1.0,16:2.0",
        "QWEN38_LOOKUP": "1",
        "QWEN38_DEEP": "4",
    }
    with pytest.raises(UsageError, match="--base 'x' is not"):
        ab.parse_changes(["x"], "--base")


def test_figures_are_printed_although_their_file_cannot_be_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = CompareRequest(tokens=32, workload="copy")
    report = run_ab(
        request,
        ScriptedSides(request, CompareScript()),
        workloads_of(request),
        noise_store=NoiseStore(tmp_path),
        machine={},
    )
    monkeypatch.setattr("engine.measure.ab_session.compare_on", lambda *_, **__: report)
    engine = SimpleNamespace(card=None, close=lambda: None)
    files = {"bench_runs": tmp_path / "missing" / "ab.csv"}
    with pytest.raises(ExportError):
        ab.measure([engine], request, files, threading.Event(), as_json=True)
    assert json.loads(capsys.readouterr().out)["verdict"] == report.verdict
    assert ab.measure([engine], request, {}, threading.Event(), as_json=False) == OK
    assert f"ms per round: {report.estimator}\n" in capsys.readouterr().out
