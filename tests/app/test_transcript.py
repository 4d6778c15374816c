# SPDX-License-Identifier: MIT OR Apache-2.0
"""The conversation model: thinking parted from the answer, turns opened, closed, cut and sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat.transcript import ThinkingSplit, Transcript, clean
from engine.api import ErrorReport, Generation, Message
from engine.errors import PromptError

DONE = Generation(
    "text", "why", (), 5, 0, "stop", 2, 6, 3, 2.0, 50.0, 9.0, 1e3, 1e2, 8.0, None, None, None
)
REPORT = ErrorReport("title", "cause", "kept", "next")


def _split(chunks: list[str]) -> tuple[str, str]:
    split = ThinkingSplit()
    parts = [split.feed(chunk) for chunk in chunks] + [split.finish()]
    return "".join(part[0] for part in parts), "".join(part[1] for part in parts)


@pytest.mark.parametrize(
    ("raw", "thinking", "answer"),
    [
        ("<think>why</think>\n\nbecause", "why", "because"),
        ("  \n<think>why</think>x", "why", "x"),
        ("plain <think>no</think>", "", "plain <think>no</think>"),
        ("<think>open </thi", "open </thi", ""),
        ("<thin", "", "<thin"),
        ("", "", ""),
        ("<think></think>ok", "", "ok"),
    ],
)
def test_thinking_is_parted(raw: str, thinking: str, answer: str) -> None:
    assert _split([raw]) == (thinking, answer)
    assert _split(list(raw)) == (thinking, answer)


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "/think>", "a", "\n", " "]), max_size=12)
)
def test_thinking_does_not_depend_on_chunks(parts: list[str]) -> None:
    raw = "".join(parts)
    assert _split(parts) == _split([raw]) == _split(list(raw))


def _asked() -> Transcript:
    transcript = Transcript()
    transcript.ask("question")
    transcript.begin_answer(7)
    return transcript


def test_streamed_text_then_the_final_word_of_the_engine() -> None:
    transcript = _asked()
    assert transcript.feed(7, "<think>w</think>te") == ("w", "te")
    assert transcript.feed(6, "stray") == ("", "")
    turn = transcript.finish(7, DONE)
    assert turn is transcript.turns[-1]
    assert (turn.text, turn.reasoning, turn.status) == ("text", "why", "done")
    assert transcript.open_turn is None
    assert transcript.messages() == (
        Message("user", "question"),
        Message("assistant", "text", "why"),
    )


def test_a_failure_keeps_the_text() -> None:
    transcript = _asked()
    transcript.feed(7, "half an ans")
    turn = transcript.fail(7, REPORT)
    assert (turn.text, turn.status, turn.error) == ("half an ans", "failed", REPORT)
    assert transcript.finish(7, DONE) is None, "a closed turn stays closed"


def test_a_failed_answer_without_text_is_not_sent() -> None:
    transcript = _asked()
    transcript.fail(7, REPORT)
    assert transcript.messages() == (Message("user", "question"),)


def test_a_prompt_that_was_refused_does_not_spoil_the_next() -> None:
    transcript = _asked()
    transcript.finish(7, DONE)
    transcript.ask("far too long")
    transcript.begin_answer(8)
    transcript.fail(8, ErrorReport.of(PromptError("Far too long.")))
    transcript.ask("short")
    sent = [message.content for message in transcript.messages()]
    assert sent == ["question", "text", "short"]
    transcript.cut(4)
    transcript.cut(3)  # the refused answer, as it is asked for again
    assert [message.content for message in transcript.messages()][-1] == "far too long"


def test_asking_is_refused_while_an_answer_is_open_or_the_text_is_empty() -> None:
    with pytest.raises(ValueError, match="being written"):
        _asked().ask("again")
    with pytest.raises(ValueError, match="empty"):
        Transcript().ask(" \n")


def test_cut_drops_a_turn_and_all_after_it() -> None:
    transcript = _asked()
    transcript.finish(7, DONE)
    assert transcript.cut(0) == "question"
    assert transcript.turns == []


def test_clean_replaces_what_cannot_be_sent() -> None:
    assert clean("a\x00\ud83d b\U0001f30a\u202e") == "a\ufffd\ufffd b\U0001f30a\u202e"
    clean("\ud800").encode("utf-8")
