# SPDX-License-Identifier: MIT OR Apache-2.0
"""The bench: order of turns, the figures of its rows, what it refuses."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence

import pytest
from bench_world import (
    reference,
    request,
    run,
    tiny_shape,
)

from engine.errors import MemoryShortError, UsageError
from engine.load.synthetic import synthetic_weights
from engine.measure import bench
from engine.measure.bench import linear_flops, run_bench, stored_bytes
from engine.measure.bench_export import run_rows
from engine.measure.bench_report import BenchRequest
from engine.measure.export_csv import RUN_COLUMNS, csv_text
from engine.measure.peers import worker
from engine.measure.rounds import CONTEXT_SPAN, RoundTimer
from engine.measure.shapes import Shape, named_shape
from engine.model.byte_model import ByteModel

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def shape() -> Shape:
    return tiny_shape()


def test_rows_hold_what_was_measured(shape: Shape) -> None:
    report = run(request(shape), backend=reference)
    assert report.backend == "reference"
    assert [(r.suite, r.rows) for r in report.rows] == [
        ("decode", 1),
        ("verify", 1),
        ("verify", 4),
        ("prefill", 16),
    ]
    for row in report.rows:
        assert row.peer is None
        assert row.n == len(row.samples_ms) >= 5
        assert row.ms_median == statistics.median(row.samples_ms)
        assert 0 < row.ms_min <= row.ms_median <= row.ms_max
        assert row.tokens_per_s == pytest.approx(1e3 * row.rows / row.ms_median)
        assert (row.roof_gbps, row.peak_gflops, row.threads) == (20.0, 100.0, 1)
        head_rows = 1 if row.suite == "prefill" else row.rows
        flops = linear_flops(shape.config, row.rows, head_rows)
        assert row.gflops == pytest.approx(flops / (row.ms_median * 1e6))
        if row.suite == "prefill":
            assert row.read_gbps is None
        else:
            weights = synthetic_weights(shape.config, "bf16")
            model = ByteModel.of(shape.config, weights)
            least = model.round_bytes(row.rows, 0, row.context_tokens)
            most = model.round_bytes(row.rows, 0, row.context_tokens + CONTEXT_SPAN)
            assert least <= row.read_gbps * row.ms_median * 1e6 <= most + 1


def test_the_json_row_has_the_agreed_keys(shape: Shape) -> None:
    report = run(request(shape, suites=("decode",)))
    values = json.loads(json.dumps(report.to_json(), allow_nan=False))
    agreed = (
        "suite rows threads ms_median ms_min ms_max read_gbps roof_gbps gflops peak_gflops "
        "tokens_per_s peer n shape weight_format context_tokens"
    )
    assert set(agreed.split()) <= set(values["rows"][0])
    assert values["machine"] == {"cpu_model": "a"}
    assert values["barrier_samples_ns"] == [150.0] * 5
    assert "samples_ms" not in values["rows"][0]
    assert report.to_json(samples=True)["rows"][0]["samples_ms"]


def test_probes_alternate_with_every_case(shape: Shape) -> None:
    log: list[str] = []
    report = run(request(shape, turns=3), log)
    repetitions = [i for i, entry in enumerate(log) if entry == "read"]
    assert len(repetitions) == report.turns == 3
    assert log.pop() == "close"
    for start, end in zip(repetitions, [*repetitions[1:], len(log)], strict=True):
        turn = log[start:end]
        assert turn[1:5] == ["dot", "dot", "dot", "barrier"]
        order = list(dict.fromkeys(entry for entry in turn[5:] if entry != "prefill 32"))
        assert order == ["verify 1", "verify 4", "prefill 16"]


def test_progress_says_what_runs(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(long_s: float, **changes: object) -> list[str]:
        lines: list[str] = []
        monkeypatch.setattr(bench, "_LONG_S", long_s)
        run(request(shape, **changes), on_progress=lines.append)
        return lines[1:]  # behind the making of weights

    first = [
        "the machine's roof, turn 1 of 2",
        "decode, 1 row, turn 1 of 2",
        "verify, 1 row, turn 1 of 2",
        "verify, 4 rows, turn 1 of 2",
        "prefill, 16 tokens, turn 1 of 2",
    ]
    every = [line.replace("turn 1", "turn 2") for line in first]
    assert told(0.0, turns=2) == [*first, *every]
    assert told(1e9, turns=2) == [*first, every[0]]
    more = told(1e9, turns=2, budget_s=1e6)
    assert more[len(first) + 1] == "the machine's roof, turn 3 until 1e+06 s are used"


def test_linear_flops_of_the_27b_match_its_matrices() -> None:
    config = named_shape("qwen3.8-27b").config
    # Twice the weights of all linears and the head, small vectors left out.
    products = 13.684e9 / 0.5625 + 2 * 48 * 48 * 5120 + 248320 * 5120
    assert linear_flops(config, 1, 1) == pytest.approx(2 * products, rel=1e-4)
    assert linear_flops(config, 8, 8) == 8 * linear_flops(config, 1, 1)


def test_the_time_budget_adds_turns(shape: Shape) -> None:
    few = run(request(shape, suites=("decode",), turns=2))
    more = run(request(shape, suites=("decode",), turns=2, budget_s=1e6))
    assert few.turns == 2
    assert more.turns == len(more.roof_samples_gbps) == 50  # the most there are


@pytest.mark.parametrize(
    "changes",
    [
        {"suites": ()},
        {"suites": ("decode", "speed")},
        {"rows": (0,)},
        {"rows": (33,)},
        {"rows": ()},
        {"prefill_tokens": (2000,)},
        {"threads": 0},
        {"context_tokens": 0},
        {"context_tokens": 1024},
        {"turns": 0},
        {"weight_format": "int3"},
        {"peers": ("vllm",)},
        {"peers": ("llama.cpp:Q9",)},
    ],
)
def test_requests_that_measure_nothing_are_refused(shape: Shape, changes: dict) -> None:
    with pytest.raises(UsageError) as error:
        run(request(shape, **changes))
    assert error.value.next_step


class CountingModel:
    """Keeps a position as an engine would and refuses to leave its room."""

    vocab_size = 10

    def __init__(self, capacity: int) -> None:
        self.capacity, self.length, self.restarts, self.rounds = capacity, 0, 0, 0

    def restart(self, ids: Sequence[int]) -> None:
        self.length, self.restarts = len(ids), self.restarts + 1

    def advance(self, ids: Sequence[int]) -> None:
        assert all(0 <= i < self.vocab_size for i in ids)
        self.length += len(ids)
        self.rounds += 1
        assert self.length <= self.capacity

    def prefill(self, ids: Sequence[int]) -> None:
        assert self.length == 0
        self.length = len(ids)


def test_the_timer_stays_in_its_room_and_goes_on_where_it_was() -> None:
    model = CountingModel(32 + CONTEXT_SPAN)
    timer = RoundTimer(model, context_tokens=32)
    first = timer.turn("verify", 32)
    assert len(first) == 64  # rounds of no length: the burst ends by count
    assert model.restarts == 9  # eight rounds of 32 rows fill the span
    restarts = model.restarts
    model.length = 0  # what follows must not depend on the model's own idea
    assert len(timer.turn("prefill", 100)) == 1
    assert model.restarts == restarts + 1
    timer.turn("decode", 1)
    assert model.restarts == restarts + 2  # a prefill's sequence is not one to decode on


def test_runs_become_csv_rows(shape: Shape) -> None:
    report = run(request(shape))
    rows = run_rows(report, label="a run")
    text = csv_text(RUN_COLUMNS, rows)
    assert len(text.splitlines()) == 1 + len(report.rows)
    assert [row["workload"] for row in rows] == ["decode-1", "verify-1", "verify-4", "prefill-16"]
    assert rows[-1]["prefill_tps"] == report.rows[-1].tokens_per_s
    assert rows[0]["decode_tps"] == report.rows[0].tokens_per_s
    assert {row["side"] for row in rows} == {"rondo"}
    assert len({row["run_id"] for row in rows}) == len(rows)


@pytest.mark.parametrize("weight_format", ["nvfp4", "fp8", "bf16"])
def test_a_shape_that_does_not_fit_is_refused_before_a_weight_is_made(
    monkeypatch: pytest.MonkeyPatch, shape: Shape, weight_format: str
) -> None:
    made = synthetic_weights(shape.config, weight_format)
    assert stored_bytes(shape.config, weight_format) == pytest.approx(made.nbytes, rel=0.1)
    monkeypatch.setattr(worker, "available_memory_bytes", lambda: 5_000_000_000)
    monkeypatch.setattr(bench, "synthetic_weights", lambda *_: pytest.fail("weights were made"))
    request = BenchRequest(shape=named_shape("qwen3.8-27b"), weight_format=weight_format)
    with pytest.raises(MemoryShortError, match="5\\.0 GB are free"):
        run_bench(request, lambda *_, **__: pytest.fail("opened"), probes=None, machine={})
