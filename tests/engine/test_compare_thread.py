# SPDX-License-Identifier: MIT OR Apache-2.0
"""An A/B in the engine's thread: its events, its stored run, and what ends it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import make_checkpoint

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
)
from engine.engine import Engine
from engine.errors import UsageError
from engine.runner import ThreadedEngine

FLIP = {"QWEN38_VERIFY_GRAPH": "0"}
SHORT = {"workload": "prompt", "prompt": "Why?", "tokens": 8, "pairs": 6, "repeats": 1}
PATIENCE_S = 60.0


class Listener:
    """Collects a handle's events."""

    def __init__(self, handle: ThreadedEngine) -> None:
        self.handle = handle
        self.seen: list[Event] = []

    def wait(self, wanted: Callable[[Event], bool] | type[Event]) -> Event:
        is_wanted = (lambda e: isinstance(e, wanted)) if isinstance(wanted, type) else wanted
        end_s = time.monotonic() + PATIENCE_S
        at = 0
        while time.monotonic() < end_s:
            self.seen += self.handle.events()
            for event in self.seen[at:]:
                if is_wanted(event):
                    return event
            at = len(self.seen)
            time.sleep(0.005)
        raise AssertionError(f"not seen in {PATIENCE_S} s: {self.seen}")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_checkpoint(folder, max_position_embeddings=4096)
    return folder


@pytest.fixture
def handle(model: Path) -> Iterator[ThreadedEngine]:
    opened = ThreadedEngine(threads=1)
    opened.load(str(model))
    Listener(opened).wait(Loaded)
    yield opened
    assert opened.close(PATIENCE_S)


def test_the_thread_runs_it_stores_it_and_shows_the_rounds_it_reports(
    handle: ThreadedEngine,
) -> None:
    listener, cursor = Listener(handle), handle.ring.count
    compare_id = handle.compare(CompareRequest(candidate=FLIP, label="thread", **SHORT))
    listener.wait(CompareProgressed)
    assert handle.snapshot().state == "comparing"
    request_id = handle.generate(GenerateRequest(messages=(Message("user", "Hello"),)))
    handle.set_knobs({"QWEN38_MTP_DEPTH": "1"})
    done = listener.wait(CompareFinished)
    assert done.compare_id == compare_id
    [failed] = [event for event in listener.seen if isinstance(event, Failed)]
    assert (failed.request_id, failed.report.title) == (request_id, "The engine is busy")
    assert [e for e in listener.seen if isinstance(e, KnobsRefused)]
    rows, _, lost = handle.ring.since(cursor)
    reported = [ms for block in done.report.blocks for ms in block.round_ms]
    assert lost == 0
    assert rows["round_ms"][-len(reported) :].tolist() == reported
    assert set(rows["request_id"].tolist()) == {0}
    run = handle.run(done.report.run_id)
    assert run.compare == done.report
    assert [summary.label for summary in handle.runs()] == ["thread"]
    again = handle.generate(GenerateRequest(messages=(Message("user", "Hello"),), max_tokens=2))
    assert again == request_id + 1
    listener.wait(lambda e: getattr(e, "request_id", 0) == again and not isinstance(e, Failed))


def test_opening_another_model_ends_it_and_keeps_the_pairs(
    handle: ThreadedEngine, model: Path
) -> None:
    listener = Listener(handle)
    handle.compare(CompareRequest(candidate=FLIP, **{**SHORT, "pairs": 200}))
    listener.wait(lambda e: isinstance(e, CompareProgressed) and e.progress.done_pairs == 1)
    handle.load(str(model))
    done = listener.wait(CompareFinished)
    assert done.report.n_pairs >= 1
    assert "Opening a model ended it after" in done.report.reason
    listener.wait(Loaded)


def test_without_a_model_it_fails_in_words() -> None:
    handle = ThreadedEngine(threads=1)
    try:
        handle.compare(CompareRequest(candidate=FLIP, **SHORT))
        failed = Listener(handle).wait(CompareFailed)
        assert failed.error.cause == "No model is loaded."
    finally:
        assert handle.close(PATIENCE_S)


def test_the_thread_loads_again_with_the_suffix_store(
    handle: ThreadedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[dict[str, Any]] = []

    def compare(*_: object, reopen: Callable[..., object], **options: object) -> None:
        monkeypatch.setattr(Engine, "open", lambda path, **given: opened.append(given))
        reopen("a model", threads=1)
        raise UsageError("Enough.")

    monkeypatch.setattr("engine.measure.ab_session.compare_on", compare)
    handle.compare(CompareRequest(candidate=FLIP, **SHORT))
    Listener(handle).wait(CompareFailed)
    assert (opened[0]["remember"], opened[0]["threads"]) == (True, 1)
    assert callable(opened[0]["on_trouble"])
