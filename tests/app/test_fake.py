# SPDX-License-Identifier: MIT OR Apache-2.0
"""The scripted engine keeps the promises of the handle."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from engine.api import (
    Event,
    Failed,
    Finished,
    GenerateRequest,
    Loaded,
    LoadFailed,
    Message,
    Started,
)
from engine.fake import FakeEngine
from engine.fake_script import SCRIPTS, Script

ASK = GenerateRequest(messages=(Message("user", "hello there"),))


def _until(engine: FakeEngine, kind: type[Event], timeout_s: float = 30.0) -> list[Event]:
    seen: list[Event] = []
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        seen += engine.events()
        if any(isinstance(event, kind) for event in seen):
            return seen
        time.sleep(0.005)
    raise AssertionError(f"no {kind.__name__} among {[type(event).__name__ for event in seen]}")


@pytest.fixture
def made():
    engines: list[FakeEngine] = []

    def make(script: Script | str = "steady", *, load: bool = True) -> FakeEngine:
        engines.append(FakeEngine(script))
        if load:
            engines[-1].load("models/x")
            _until(engines[-1], Loaded)
        return engines[-1]

    yield make
    assert all(engine.close() for engine in engines)


def test_text_and_rounds_add_up(made) -> None:
    engine = made(Script(answer="word " * 40, round_ms=1.0))
    request = engine.generate(ASK)
    events = _until(engine, Finished)
    done = events[-1].generation if isinstance(events[-1], Finished) else events[-2].generation
    text, end = engine.text_since(request, 0)
    assert text == done.text == "word " * 40
    assert engine.text_since(request, end) == ("", end)
    for cursor in (1, 7, 100):
        assert engine.text_since(request, cursor)[0] == text[cursor:]
    rows, _, lost = engine.ring.since(0)
    assert lost == 0
    assert done.rounds == len(rows)
    assert done.tokens_per_round == pytest.approx(rows["committed_tokens"].mean())
    assert done.accepted_tokens == rows["accepted_tokens"].sum()
    assert any(isinstance(event, Started) for event in events)


@pytest.mark.parametrize("script", ["slow-prefill", Script(repeat=30)])
def test_cancel_ends_an_answer(made, script) -> None:
    engine = made(script)
    engine.generate(GenerateRequest(prompt="word " * 500, max_tokens=4000))
    _until(engine, Started)
    begin = time.monotonic()
    engine.cancel()
    done = next(e for e in _until(engine, Finished) if isinstance(e, Finished))
    assert done.generation.finish_reason == "cancelled"
    assert time.monotonic() - begin < 1.0


def test_a_cancel_before_it_begins_counts(made) -> None:
    engine = made(Script(repeat=30))
    engine.generate(ASK)
    engine.generate(ASK)
    engine.cancel()
    seen = _until(engine, Finished)
    while len([e for e in seen if isinstance(e, Finished)]) < 2:
        seen += _until(engine, Finished)
    ends = [e.generation.finish_reason for e in seen if isinstance(e, Finished)]
    assert ends == ["cancelled", "cancelled"]


def test_a_failed_load_keeps_the_model(made) -> None:
    engine = made(replace(SCRIPTS["load-failure"], fail_loads_after=1))
    engine.load("models/broken")
    _until(engine, LoadFailed)
    assert engine.snapshot().model.path == "models/x"


@pytest.mark.parametrize(
    ("request_", "cause"),
    [
        (GenerateRequest(prompt=""), "empty"),
        (GenerateRequest(prompt="x" * 80_000), "20\u202f008 tokens; the context holds 8\u202f192"),
    ],
)
def test_bad_prompts_fail_with_a_reason(made, request_, cause) -> None:
    engine = made()
    engine.generate(request_)
    failed = next(e for e in _until(engine, Failed) if isinstance(e, Failed))
    assert cause in failed.report.cause


def test_without_a_model_there_is_no_answer(made) -> None:
    engine = made(load=False)
    engine.generate(ASK)
    failed = next(e for e in _until(engine, Failed) if isinstance(e, Failed))
    assert "No model" in failed.report.cause
