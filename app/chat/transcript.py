# SPDX-License-Identifier: MIT OR Apache-2.0
"""A conversation as data: turns, the answer that is being written, and what is sent to the engine. No Qt."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from engine.api import ErrorReport, Generation, Message

_UNSENDABLE = re.compile("[\x00\ud800-\udfff]")
_OPEN, _CLOSE = "<think>", "</think>"


def clean(text: str) -> str:
    """Text that can be encoded and shown: NUL and lone surrogates become U+FFFD."""
    return _UNSENDABLE.sub("\ufffd", text)


class ThinkingSplit:
    """Parts a raw stream into thinking and answer, whatever its chunks.

    A thinking part exists only where the stream begins with `<think>` (white space before it aside).
    """

    def __init__(self) -> None:
        self._held = ""
        self._mode = "start"  # start, thinking, gap (white space after the mark), answer

    def feed(self, delta: str) -> tuple[str, str]:
        """(thinking, answer) characters that are certain by now."""
        thinking = answer = ""
        held = self._held + delta
        if self._mode == "start":
            body = held.lstrip()
            if len(body) < len(_OPEN) and _OPEN.startswith(body):
                self._held = held
                return "", ""
            self._mode, held = (
                ("thinking", body[len(_OPEN) :]) if body.startswith(_OPEN) else ("answer", held)
            )
        if self._mode == "thinking":
            before, mark, after = held.partition(_CLOSE)
            keep = 0 if mark else _overlap(before, _CLOSE)
            thinking = before[: len(before) - keep]
            self._held = before[len(before) - keep :]
            if not mark:
                return thinking, ""
            self._mode, held = "gap", after
        if self._mode == "gap":
            held = held.lstrip("\n")
            if held:
                self._mode = "answer"
        if self._mode == "answer":
            answer = held
        self._held = ""
        return thinking, answer

    def finish(self) -> tuple[str, str]:
        """What was held back for a mark that never came."""
        held, self._held = self._held, ""
        return (held, "") if self._mode == "thinking" else ("", held)


def _overlap(text: str, mark: str) -> int:
    """How many characters at the end of `text` could be the beginning of `mark`."""
    for size in range(min(len(text), len(mark) - 1), 0, -1):
        if mark.startswith(text[-size:]):
            return size
    return 0


@dataclass(slots=True, eq=False)
class Turn:
    """One message of the conversation.

    `status` of an answer: waiting, writing, done or failed. `model` is the name of the one that wrote it.
    """

    role: str
    text: str = ""
    reasoning: str = ""
    status: str = "done"
    request_id: int = 0
    generation: Generation | None = None
    error: ErrorReport | None = None
    model: str = ""
    speculated: bool = True
    split: ThinkingSplit = field(default_factory=ThinkingSplit)

    @property
    def is_refused(self) -> bool:
        """Whether this is the answer to a prompt that the engine did not take."""
        return self.error is not None and self.error.prompt_refused


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a file holds: question and answer by turns, the name of the latest model, when it was saved."""

    turns: tuple[Turn, ...]
    model: str
    saved: datetime


class Transcript:
    """The turns in order; at most the last one is being written.

    `is_saved`: a file holds them as they stand; whoever wrote it says so, and the next change takes it back.
    """

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.is_saved = False

    @property
    def is_unsaved(self) -> bool:
        """Whether there is something that no file holds."""
        return bool(self.turns) and not self.is_saved

    @property
    def open_turn(self) -> Turn | None:
        """The answer that is being written, if any."""
        last = self.turns[-1] if self.turns else None
        return last if last and last.status in ("waiting", "writing") else None

    def ask(self, text: str) -> Turn:
        """Append a question; ValueError when it is empty or an answer is being written."""
        if self.open_turn:
            raise ValueError("an answer is being written")
        if not text.strip():
            raise ValueError("the message is empty")
        self.turns.append(Turn("user", clean(text)))
        self.is_saved = False
        return self.turns[-1]

    def begin_answer(self, request_id: int, *, model: str = "", speculated: bool = True) -> Turn:
        turn = Turn("assistant", status="waiting", request_id=request_id)
        turn.model, turn.speculated = model, speculated
        self.turns.append(turn)
        self.is_saved = False
        return self.turns[-1]

    def feed(self, request_id: int, delta: str) -> tuple[str, str]:
        """Add raw text to the open answer: the (thinking, answer) characters that became certain."""
        turn = self.open_turn
        if turn is None or turn.request_id != request_id:
            return "", ""
        thinking, answer = turn.split.feed(delta)
        turn.reasoning += thinking
        turn.text += answer
        turn.status = "writing"
        return thinking, answer

    def finish(self, request_id: int, generation: Generation) -> Turn | None:
        """Close the open answer; the engine's own text and reasoning win over what was streamed."""
        turn = self.open_turn
        if turn is None or turn.request_id != request_id:
            return None
        turn.text, turn.reasoning = generation.text, generation.reasoning
        turn.generation, turn.status = generation, "done"
        return turn

    def fail(self, request_id: int, report: ErrorReport) -> Turn | None:
        """Close the open answer with an error; the text streamed so far is kept."""
        turn = self.open_turn
        if turn is None or turn.request_id != request_id:
            return None
        thinking, answer = turn.split.finish()
        turn.reasoning += thinking
        turn.text += answer
        turn.error, turn.status = report, "failed"
        return turn

    def cut(self, index: int) -> str:
        """Drop turn `index` and all after it; returns the text of that turn."""
        text = self.turns[index].text
        del self.turns[index:]
        self.is_saved = False
        return text

    def fill(self, turns: Iterable[Turn]) -> None:
        """Hold the turns of a file in place of those before."""
        self.turns[:] = turns
        self.is_saved = True

    def messages(self) -> tuple[Message, ...]:
        """What the engine is asked with: every turn that has text, failed answers without any left out.

        A prompt that was refused goes with its answer: every later one would be refused for it.
        """
        kept = []
        for turn, answer in zip(self.turns, (*self.turns[1:], None), strict=True):
            refused = answer is not None and answer.is_refused
            if turn.text and not (turn.role == "user" and refused):
                kept.append(Message(turn.role, turn.text, turn.reasoning))
        return tuple(kept)
