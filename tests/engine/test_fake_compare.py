# SPDX-License-Identifier: MIT OR Apache-2.0
"""The scripted A/B behind the handle: the events, the refusals and the store a console sees."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from engine.api import (
    CompareFailed,
    CompareFinished,
    CompareProgressed,
    CompareRequest,
    Event,
    Failed,
    GenerateRequest,
    KnobsRefused,
    Loaded,
    Message,
    StateChanged,
)
from engine.compare_handle import rerun_request
from engine.errors import UsageError
from engine.fake import FakeEngine
from engine.measure.runs import RunStoreError
from engine.paths import data_dir

REQUEST = CompareRequest(
    candidate={"QWEN38_VERIFY_GRAPH": "0"}, workload="copy", tokens=16, pairs=6, label="scripted"
)


@pytest.fixture
def open_fake() -> Iterator[Callable[[str], FakeEngine]]:
    opened = []

    def make(script: str = "steady", *, load: bool = True) -> FakeEngine:
        engine = FakeEngine(script)
        opened.append(engine)
        if load:
            engine.load("model")
            wait(engine, Loaded)
        return engine

    yield make
    for engine in opened:
        assert engine.close()


class Heard(queue.SimpleQueue):
    """Events of an engine, each followed by `act` in the engine's own thread, before anything else happens.

    A test that acts when it sees an event acts late on a busy machine, and the run has gone on meanwhile.
    """

    def __init__(self, act: Callable[[Event], None]) -> None:
        self._act = act

    def put(self, item: Event, *_: object) -> None:
        super().put(item)
        self._act(item)


def wait(engine: FakeEngine, *kinds: type[Event], timeout_s: float = 60.0) -> list[Event]:
    """Events up to the first of these kinds."""
    seen: list[Event] = []
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        seen += engine.events()
        if any(isinstance(event, kinds) for event in seen):
            return seen
        time.sleep(0.002)
    raise AssertionError(f"no {kinds} in {seen}")


def test_an_ab_tells_its_progress_its_end_and_is_stored(open_fake: Callable) -> None:
    engine = open_fake()
    compare_id = engine.compare(REQUEST)
    events = wait(engine, CompareFinished)
    [done] = [event for event in events if isinstance(event, CompareFinished)]
    assert done.compare_id == compare_id
    assert done.report.verdict == "better"
    assert done.report.model_name == "Scripted engine"
    told = [event.progress for event in events if isinstance(event, CompareProgressed)]
    assert told[-1].done_pairs == 5
    assert len(told[-1].pairs) == 5
    assert StateChanged("comparing") in events
    [summary] = engine.runs()
    assert summary.run_id == done.report.run_id
    assert summary.label == "scripted"
    assert engine.run(summary.run_id).compare == done.report
    assert not (data_dir() / "runs").exists()


def test_rounds_in_the_ring_are_those_of_the_report(open_fake: Callable) -> None:
    engine = open_fake()
    cursor = engine.ring.count
    engine.compare(REQUEST)
    [done] = [e for e in wait(engine, CompareFinished) if isinstance(e, CompareFinished)]
    rows, _, lost = engine.ring.since(cursor)
    assert lost == 0
    reported = [ms for block in done.report.blocks for ms in block.round_ms]
    assert rows["round_ms"][-len(reported) :].tolist() == reported


def test_answers_and_switches_are_refused_meanwhile(open_fake: Callable) -> None:
    engine = open_fake()
    engine.compare(REQUEST)
    request_id = engine.generate(GenerateRequest(messages=(Message("user", "Hello"),)))
    engine.set_knobs({"QWEN38_MTP_DEPTH": "1"})
    events = wait(engine, CompareFinished)
    [failed] = [event for event in events if isinstance(event, Failed)]
    assert failed.request_id == request_id
    assert "comparison is running" in failed.report.cause
    [refused] = [event for event in events if isinstance(event, KnobsRefused)]
    assert refused.report.title == "The engine is busy"
    assert {row.name: row.value for row in engine.knobs()}["QWEN38_MTP_DEPTH"] == "3"


def test_a_cancel_keeps_what_is_complete(open_fake: Callable) -> None:
    engine = open_fake()

    def cancel_in_the_third_pair(event: Event) -> None:
        if isinstance(event, CompareProgressed) and event.progress.done_pairs == 2:
            engine.cancel()

    engine._events = Heard(cancel_in_the_third_pair)
    engine.compare(CompareRequest(candidate=REQUEST.candidate, workload="copy", pairs=200))
    [done] = [e for e in wait(engine, CompareFinished) if isinstance(e, CompareFinished)]
    assert done.report.verdict == "not resolved"
    assert done.report.reason.startswith("Cancelled after 2 pairs")
    assert done.report.n_pairs == 2
    assert engine.snapshot().state in ("comparing", "ready")


def test_a_load_ends_it_and_says_so(open_fake: Callable) -> None:
    engine = open_fake()
    loads: list[str] = []

    def load_once(event: Event) -> None:
        if isinstance(event, CompareProgressed) and not loads:
            loads.append("another")
            engine.load(*loads)

    engine._events = Heard(load_once)
    engine.compare(CompareRequest(candidate=REQUEST.candidate, pairs=200))
    events = wait(engine, Loaded)
    [done] = [event for event in events if isinstance(event, CompareFinished)]
    assert done.report.verdict == "cancelled"
    assert "Opening a model ended it" in done.report.reason


def test_without_a_model_or_with_a_bad_request_it_fails_clearly(open_fake: Callable) -> None:
    engine = open_fake(load=False)
    engine.compare(REQUEST)
    [failed] = [e for e in wait(engine, CompareFailed) if isinstance(e, CompareFailed)]
    assert failed.error.cause == "No model is loaded."
    assert failed.partial is None
    engine = open_fake()
    engine.compare(CompareRequest(candidate={"QWEN38_NO_SUCH": "1"}))
    [failed] = [e for e in wait(engine, CompareFailed) if isinstance(e, CompareFailed)]
    assert "QWEN38_NO_SUCH" in failed.error.cause


def test_a_failure_keeps_the_pairs(open_fake: Callable) -> None:
    engine = open_fake("compare-failure")
    engine.compare(CompareRequest(candidate=REQUEST.candidate, tokens=16))
    [failed] = [e for e in wait(engine, CompareFailed) if isinstance(e, CompareFailed)]
    assert "NaN" in failed.error.cause
    assert failed.partial.n_pairs == 5
    assert failed.error.kept.startswith("5 complete pairs are kept.")
    assert engine.runs()[0].run_id == failed.partial.run_id


@pytest.mark.parametrize(
    ("script", "verdict"),
    [
        ("compare-worse", "worse"),
        ("compare-equal", "not resolved"),
        ("compare-texts-differ", "invalid"),
        ("compare-same-path", "invalid"),
    ],
)
def test_every_verdict_has_a_script(open_fake: Callable, script: str, verdict: str) -> None:
    engine = open_fake(script)
    engine.compare(CompareRequest(candidate=REQUEST.candidate, tokens=16))
    [done] = [e for e in wait(engine, CompareFinished) if isinstance(e, CompareFinished)]
    assert done.report.verdict == verdict


def test_a_rerun_sets_every_switch_as_it_was(open_fake: Callable) -> None:
    engine = open_fake()
    engine.compare(REQUEST)
    [first] = [e for e in wait(engine, CompareFinished) if isinstance(e, CompareFinished)]
    while engine.snapshot().state != "ready":
        time.sleep(0.002)
    card = engine.snapshot().model
    assert (first.report.backend, first.report.context_tokens) == (
        card.backend,
        card.context_tokens,
    )
    engine.set_knobs({"QWEN38_VERIFY_GRAPH": "0"})
    while {row.name: row.value for row in engine.knobs()}["QWEN38_VERIFY_GRAPH"] != "0":
        time.sleep(0.002)
    engine.rerun(first.report.run_id)
    [again] = [e for e in wait(engine, CompareFinished) if isinstance(e, CompareFinished)]
    request = again.report.request
    assert request.base == (("QWEN38_VERIFY_GRAPH", "1"),)
    assert request.candidate == ()
    assert (request.pairs, request.tokens, request.label) == (6, 16, "scripted")
    assert len(engine.runs()) == 2
    run = engine.run(first.report.run_id)
    on_gpu = replace(run, compare=replace(run.compare, backend="cuda"))
    with pytest.raises(
        UsageError, match="on the cuda backend, and the model is loaded on reference"
    ):
        rerun_request(on_gpu, card, {})
    engine.load("another")
    wait(engine, Loaded)
    with pytest.raises(UsageError, match="not loaded"):
        engine.rerun(first.report.run_id)
    with pytest.raises(RunStoreError, match="no run"):
        engine.rerun("20260101T000000Z-000000")
