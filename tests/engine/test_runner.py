# SPDX-License-Identifier: MIT OR Apache-2.0
"""The engine thread behind its handle: loads, generations, cancels, failures and the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import NoReturn

import pytest
from checkpoints import make_checkpoint

from engine.api import (
    CompareFailed,
    CompareRequest,
    ErrorReport,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    KnobsRefused,
    Loaded,
    LoadFailed,
    LoadProgressed,
    Message,
    Started,
    StateChanged,
)
from engine.errors import BusyError
from engine.runner import ThreadedEngine
from engine.spec.decode import DecodeLoop, Round

PATIENCE_S = 60.0


class Listener:
    """Collects a handle's events and waits for one of a kind."""

    def __init__(self, handle: ThreadedEngine) -> None:
        self.handle = handle
        self.seen: list[Event] = []

    def wait(self, wanted: type[Event] | Callable[[Event], bool]) -> Event:
        is_wanted = (lambda e: isinstance(e, wanted)) if isinstance(wanted, type) else wanted
        start = len(self.seen)
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            self.seen += self.handle.events()
            for event in self.seen[start:]:
                if is_wanted(event):
                    return event
            time.sleep(0.005)
        raise AssertionError(f"no such event in {PATIENCE_S} s; seen {self.seen[start:]}")

    def finished(self, request_id: int) -> Finished:
        """The end of a request, whether it was seen already or is still to come."""

        def is_it(event: Event) -> bool:
            return isinstance(event, Finished) and event.request_id == request_id

        return next(filter(is_it, self.seen), None) or self.wait(is_it)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_checkpoint(folder, max_position_embeddings=4096)
    return folder


@pytest.fixture
def handle() -> Iterator[ThreadedEngine]:
    engine = ThreadedEngine(knobs={"QWEN38_CPU_ISA": "reference"}, threads=1)
    yield engine
    assert engine.close(PATIENCE_S)


@pytest.fixture
def listener(handle: ThreadedEngine, model: Path) -> Listener:
    listener = Listener(handle)
    handle.load(str(model))
    listener.wait(Loaded)
    return listener


def ask(text: str, max_tokens: int = 8) -> GenerateRequest:
    return GenerateRequest(messages=(Message("user", text),), max_tokens=max_tokens)


def test_a_load_tells_its_progress_and_its_card(listener: Listener, model: Path) -> None:
    progress = [e.progress for e in listener.seen if isinstance(e, LoadProgressed)]
    assert progress[-1].done_bytes == progress[-1].total_bytes > 0
    card = listener.handle.snapshot().model
    assert card is not None
    assert card.path == str(model)
    assert not card.speculation.startswith("off")


def test_a_generation_streams_records_rounds_and_ends(listener: Listener) -> None:
    handle = listener.handle
    request_id = handle.generate(ask("the engine", 20))
    finished = listener.wait(Finished)
    text, cursor = handle.text_since(request_id, 0)
    assert finished.generation.text == text
    assert handle.text_since(request_id, cursor) == ("", cursor)
    rows, count, lost = handle.ring.since(0)
    assert (count, lost) == (finished.generation.rounds, 0)
    assert rows["committed_tokens"].sum() == len(finished.generation.token_ids) - 1
    assert set(rows["request_id"]) == {request_id}
    assert handle.snapshot().tokens_out == len(finished.generation.token_ids)
    parts = rows["draft_ms"] + rows["verify_ms"] + rows["sample_ms"] + rows["commit_ms"]
    assert (parts <= rows["round_ms"] + 1e-3).all()
    states = [e.state for e in listener.seen if isinstance(e, StateChanged)]
    assert states[-4:] == ["ready", "prefilling", "writing", "ready"] or states[-3:] == [
        "prefilling",
        "writing",
        "ready",
    ]
    assert any(isinstance(e, Started) and e.prompt_tokens > 0 for e in listener.seen)


def test_what_was_kept_is_no_progress_of_a_request(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first snapshot that tells the prompt on: a rate is taken of these."""
    handle, seen = listener.handle, []

    class Watched(SimpleQueue):
        def put(self, event: Event) -> None:
            super().put(event)
            if isinstance(event, Started):
                seen.append(handle.snapshot())

    monkeypatch.setattr(handle, "_events", Watched())
    request = ask("the engine reads " * 20)
    kept = []
    for _ in range(2):
        handle.generate(request)
        kept.append(listener.wait(Finished).generation.kept_prompt_tokens)
    assert kept[1] > 0
    assert [each.prompt_done for each in seen] == kept
    assert all(each.prompt_tokens > each.prompt_done for each in seen)


def test_a_request_goes_on_from_the_one_before_it_until_another_model_is_opened(
    listener: Listener, model: Path
) -> None:
    request = GenerateRequest(messages=(Message("user", "the engine reads " * 20),), max_tokens=4)
    kept = []
    for again in (False, False, True):
        if again:
            listener.handle.load(str(model / "missing"))
            listener.wait(LoadFailed)
        done = listener.finished(listener.handle.generate(request)).generation
        kept.append(done.kept_prompt_tokens)
    assert kept[0] == kept[2] == 0
    assert 0 < kept[1] < done.prompt_tokens


def test_cancel_stops_the_running_and_the_waiting_request(listener: Listener) -> None:
    handle = listener.handle
    first = handle.generate(ask("the", 3000))
    second = handle.generate(ask("the", 3000))
    listener.wait(lambda e: isinstance(e, StateChanged) and e.state == "writing")
    handle.cancel()
    for request_id in (first, second):
        ended = listener.finished(request_id)
        assert ended.generation.finish_reason == "cancelled"
    handle.generate(ask("the"))
    after = listener.finished(second + 1)
    assert after.generation.finish_reason == "length"


def test_a_failed_load_keeps_the_model_that_runs(listener: Listener, tmp_path: Path) -> None:
    listener.handle.load(str(tmp_path / "nothing here"))
    failed = listener.wait(LoadFailed)
    assert "still loaded" in failed.report.kept
    listener.handle.generate(ask("the"))
    assert listener.wait(Finished)


def test_a_cancelled_load_is_no_error_and_tells_what_is_loaded(
    handle: ThreadedEngine, model: Path, tmp_path: Path
) -> None:
    listener = Listener(handle)

    def cancelled_load() -> ErrorReport:
        handle.generate(ask("the", 4000))  # what runs keeps the load waiting until the cancel
        handle.load(str(model))
        handle.cancel()
        return listener.wait(LoadFailed).report

    report = cancelled_load()
    assert (report.cancelled, report.kept) == (True, "No model is loaded.")
    assert report.next_step
    assert not report.details
    handle.load(str(model))
    listener.wait(Loaded)
    name = handle.snapshot().model.name
    report = cancelled_load()
    assert (report.cancelled, report.kept) == (True, f"{name} is still loaded.")
    handle.load(str(tmp_path / "nothing here"))
    assert not listener.wait(LoadFailed).report.cancelled


def test_a_request_without_a_model_fails_with_the_next_step(handle: ThreadedEngine) -> None:
    handle.generate(ask("hello"))
    failed = Listener(handle).wait(Failed)
    assert "No model is loaded" in failed.report.cause
    assert failed.report.next_step


def test_a_refused_prompt_reports_and_the_engine_stays_ready(listener: Listener) -> None:
    listener.handle.generate(ask("word " * 9000))
    failed = listener.wait(Failed)
    assert "4\u202f096" in failed.report.cause
    listener.handle.generate(ask("the"))
    assert listener.wait(Finished)


def test_close_in_the_middle_of_a_generation_ends_in_time(model: Path) -> None:
    engine = ThreadedEngine(knobs={"QWEN38_CPU_ISA": "reference"}, threads=1)
    listener = Listener(engine)
    engine.load(str(model))
    listener.wait(Loaded)
    engine.generate(ask("the", 3000))
    listener.wait(lambda e: isinstance(e, StateChanged) and e.state == "writing")
    assert engine.close(PATIENCE_S)
    assert engine.snapshot().state == "closed"
    with pytest.raises(BusyError):
        engine.generate(ask("the"))


def test_the_heart_beats_while_idle(handle: ThreadedEngine) -> None:
    before_s = handle.snapshot().beat_s
    time.sleep(1.2)
    assert handle.snapshot().beat_s > before_s


def test_an_unexpected_error_of_the_first_load_claims_no_model(
    handle: ThreadedEngine, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("engine.engine.read_checkpoint", broken)
    handle.load(str(model))
    report = Listener(handle).wait(LoadFailed).report
    assert report.cause == "RuntimeError: a bug"
    assert "model" not in report.kept
    assert "broken" in report.details
    assert handle.snapshot().state in ("loading", "empty")


class Fatal(BaseException):
    """What no `except Exception` catches, such as a SystemExit deep in a library."""


def fatal(*_: object, **__: object) -> NoReturn:
    raise Fatal("a bug")


def test_a_fault_in_an_answer_ends_it_and_the_thread_goes_on(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds, run = count(), DecodeLoop.round

    def some_rounds(self: DecodeLoop, wanted: int) -> Round:
        return run(self, wanted) if next(rounds) < 6 else fatal()

    with monkeypatch.context() as broken:
        broken.setattr(DecodeLoop, "round", some_rounds)
        request_id = listener.handle.generate(ask("the engine", 64))
        failed = listener.wait(Failed)
    assert failed.request_id == request_id
    assert failed.report.cause == "Fatal: a bug"
    assert "in fatal" in failed.report.details
    assert failed.text == listener.handle.text_since(request_id, 0)[0] != ""
    listener.handle.generate(ask("the"))
    assert listener.wait(Finished)


def test_a_fault_in_a_load_leaves_what_was_loaded(
    listener: Listener, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr("engine.engine.read_checkpoint", fatal)
        listener.handle.load(str(model))
        failed = listener.wait(LoadFailed)
    assert (failed.path, failed.report.cause) == (str(model), "Fatal: a bug")
    assert failed.report.kept == "What was loaded stays loaded."
    listener.handle.generate(ask("the"))
    assert listener.wait(Finished)


def test_a_fault_without_a_model_says_that_none_is_loaded(
    handle: ThreadedEngine, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = Listener(handle)
    with monkeypatch.context() as broken:
        broken.setattr("engine.engine.read_checkpoint", fatal)
        handle.load(str(model))
        report = listener.wait(LoadFailed).report
    assert (report.kept, report.next_step) == ("No model is loaded.", "Open the model again.")
    handle.load(str(model))
    assert listener.wait(Loaded)


def test_a_fault_in_a_comparison_ends_it_and_answers_are_taken_again(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr("engine.measure.ab_session.run_ab", fatal)
        compare_id = listener.handle.compare(
            CompareRequest(base={}, candidate={"QWEN38_MTP_DEPTH": "1"})
        )
        failed = listener.wait(CompareFailed)
    assert (failed.compare_id, failed.error.cause) == (compare_id, "Fatal: a bug")
    listener.handle.generate(ask("the"))
    assert listener.wait(Finished)


def test_a_fault_in_a_switch_is_told_as_a_refusal(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr("engine.engine.Engine.set_knobs", fatal)
        listener.handle.set_knobs({"QWEN38_MTP_DEPTH": "1"})
        refused = listener.wait(KnobsRefused)
    assert refused.changes == (("QWEN38_MTP_DEPTH", "1"),)
    assert refused.report.cause == "Fatal: a bug"
    listener.handle.generate(ask("the"))
    assert listener.wait(Finished)


def test_a_model_that_cannot_be_freed_keeps_neither_the_next_nor_the_end(
    listener: Listener,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stuck(self: object) -> None:
        raise RuntimeError("stuck")

    monkeypatch.setattr("engine.engine.Engine.close", stuck)
    listener.handle.load(str(model))
    assert listener.wait(Loaded)
    assert listener.handle.close(PATIENCE_S)
    assert listener.handle.snapshot().state == "closed"
    assert capsys.readouterr().err.count("A model was not freed: RuntimeError: stuck") == 2
