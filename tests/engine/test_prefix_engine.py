# SPDX-License-Identifier: MIT OR Apache-2.0
"""A chat that goes on from what was kept says what it says when every turn is read from its start."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoints import make_checkpoint

from engine import Engine
from engine.api import GenerateRequest, Generation, Message
from engine.cache.prefix import TAIL

QUESTIONS = ("what does the engine read " * 6, "why is that so", "and then?")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_checkpoint(folder, mtp=True, max_position_embeddings=1024)
    return folder


@pytest.fixture(params=["native", "reference"])
def engine(folder: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    knobs = {"QWEN38_CPU_ISA": "reference"} if request.param == "reference" else {}
    with Engine.open(folder, profile=None, knobs=knobs, threads=1) as opened:
        yield opened


def chat(engine: Engine, *, resume: bool, **changes: object) -> list[Generation]:
    """Three questions, each behind the answers before."""
    turns: list[Message] = []
    answers = []
    for question in QUESTIONS:
        turns.append(Message("user", question))
        request = GenerateRequest(messages=tuple(turns), **{"max_tokens": 25, **changes})
        answers.append(engine.generate(request, resume=resume))
        turns.append(Message("assistant", answers[-1].text))
    return answers


@pytest.mark.parametrize("changes", [{}, {"speculate": False}, {"temperature": 1.2, "seed": 4}])
def test_every_turn_says_the_same_and_reads_what_is_new(folder: Path, changes: dict) -> None:
    with Engine.open(folder, profile=None, threads=1) as engine:
        cold = chat(engine, resume=False, **changes)
        warm = chat(engine, resume=True, **changes)
        for one, other in zip(warm, cold, strict=True):
            assert one.token_ids == other.token_ids
            assert one.prompt_tokens == other.prompt_tokens
            assert other.kept_prompt_tokens == 0
        assert warm[0].kept_prompt_tokens == 0
        assert warm[1].kept_prompt_tokens >= warm[0].prompt_tokens - TAIL
        assert warm[2].kept_prompt_tokens > warm[1].kept_prompt_tokens
        kept = sum(each.kept_prompt_tokens for each in warm)
        assert engine.engaged()["prompt tokens kept"] == kept


def test_an_answer_is_asked_for_again(engine: Engine) -> None:
    request = GenerateRequest(messages=(Message("user", QUESTIONS[0]),), max_tokens=20)
    first = engine.generate(request, resume=True)
    again = engine.generate(request, resume=True)
    assert again.token_ids == first.token_ids
    assert again.kept_prompt_tokens == first.prompt_tokens - TAIL
    assert again.prefill_tps == pytest.approx(TAIL / (again.ttft_ms / 1e3), rel=1e-6)


def test_progress_starts_with_what_is_kept(engine: Engine) -> None:
    request = GenerateRequest(messages=(Message("user", QUESTIONS[0]),), max_tokens=2)
    total = engine.generate(request, resume=True).prompt_tokens
    seen: list[tuple[int, int]] = []
    engine.generate(request, resume=True, on_prompt=lambda *at: seen.append(at))
    assert seen == [(total - TAIL, total), (total, total)]


def test_a_cancelled_answer_and_a_cancelled_prompt_are_built_upon(engine: Engine) -> None:
    long = GenerateRequest(messages=(Message("user", QUESTIONS[0] * 5),), max_tokens=20)
    wanted = engine.generate(long)
    cancel = threading.Event()
    cut = engine.generate(long, resume=True, cancel=cancel, on_round=lambda *_: cancel.set())
    assert cut.finish_reason == "cancelled"
    after = engine.generate(long, resume=True)
    assert after.kept_prompt_tokens == wanted.prompt_tokens - TAIL
    assert after.token_ids == wanted.token_ids
    engine.generate(
        GenerateRequest(messages=(Message("user", "other"),), max_tokens=2), resume=True
    )
    cancel = threading.Event()

    def stop_in_the_middle(done: int, total: int) -> None:
        if done:
            cancel.set()

    cut = engine.generate(long, resume=True, cancel=cancel, on_prompt=stop_in_the_middle)
    assert cut.token_ids == ()
    after = engine.generate(long, resume=True)
    assert 0 < after.kept_prompt_tokens < wanted.prompt_tokens
    assert after.token_ids == wanted.token_ids


def test_a_switch_that_keeps_the_bits_keeps_what_was_read(folder: Path) -> None:
    request = GenerateRequest(messages=(Message("user", QUESTIONS[0]),), max_tokens=12)
    with Engine.open(folder, profile=None, threads=1) as engine:
        first = engine.generate(request, resume=True)
        for changes in (
            {"QWEN38_MTP_DEPTH": "1"},
            {"QWEN38_COMMIT_IN_VERIFY": "0"},
            {"QWEN38_VERIFY_GRAPH": "0"},
            {"QWEN38_CPU_THREADS": "2"},
        ):
            engine.set_knobs(changes)
            again = engine.generate(request, resume=True)
            assert again.kept_prompt_tokens == first.prompt_tokens - TAIL
            assert again.token_ids == first.token_ids


@pytest.mark.parametrize(
    "what", ["a switch", "another sequence", "a measured answer", "an error", "no room"]
)
def test_what_is_not_to_be_built_upon_is_read_anew(folder: Path, what: str) -> None:
    request = GenerateRequest(messages=(Message("user", QUESTIONS[0]),), max_tokens=8)
    with Engine.open(folder, profile=None, threads=1) as engine:
        first = engine.generate(request, resume=True)
        if what == "a switch":
            engine.set_knobs({"QWEN38_FUSED_NORM": "0"})
            engine.set_knobs({"QWEN38_FUSED_NORM": "1"})
        elif what == "another sequence":
            engine.logits([1, 2, 3])
        elif what == "a measured answer":
            engine.generate(request)
            assert engine._prefixes._marks == []
        elif what == "an error":
            with pytest.raises(ZeroDivisionError):
                engine.generate(request, resume=True, on_round=lambda *_: 1 // 0)
        else:
            engine.set_knobs({"QWEN38_CACHE_GB": "0"})
            engine.generate(request, resume=True)
        again = engine.generate(request, resume=True)
        assert again.kept_prompt_tokens == 0
        assert again.token_ids == first.token_ids


def test_a_stop_string_inside_a_round_leaves_no_unknown_tokens(folder: Path) -> None:
    with Engine.open(folder, profile=None, threads=1, knobs={"QWEN38_MTP_DEPTH": "4"}) as engine:
        message = (Message("user", QUESTIONS[0]),)
        whole = engine.generate(GenerateRequest(messages=message, max_tokens=30))
        stop = whole.text[len(whole.text) // 2 :][:2]
        request = GenerateRequest(messages=message, max_tokens=30, stop=(stop,))
        cut = engine.generate(request, resume=True)
        assert cut.finish_reason == "stop"
        turns = (*message, Message("assistant", whole.text), Message("user", "go on"))
        following = GenerateRequest(messages=turns, max_tokens=20)
        warm = engine.generate(following, resume=True)
        assert warm.kept_prompt_tokens > 0
        assert warm.token_ids == engine.generate(following).token_ids


def test_a_closed_engine_holds_no_marks(folder: Path) -> None:
    request = GenerateRequest(messages=(Message("user", QUESTIONS[0]),), max_tokens=2)
    with Engine.open(folder, profile=None, threads=1) as engine:
        engine.generate(request, resume=True)
        [mark] = engine._prefixes._marks
        state = weakref.ref(mark.state[0][0])
        del mark
        assert state() is not None
    assert state() is None
