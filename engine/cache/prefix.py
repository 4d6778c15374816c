# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a backend still holds of earlier requests, so that a conversation is not read from its start again.

Keys and values of a sequence stay where they are until they are overwritten. The recurrent state does not: it
stands at the end of the sequence alone. So a request that goes on from there needs nothing, and for one that
branches off before, such as the next turn of a chat whose template drops the reasoning, copies of the state are
kept at places that such requests are likely to share: a little before the end of every prompt, in front of what
opens the answer, and at intervals in a long one.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.model.backend import PREFILL_CHUNK, Backend, Mark

TAIL = 16  # tokens before the end of a prompt: more than what opens an answer
INTERVAL = 1024  # tokens between marks in a long prompt
_LEAST = 32  # tokens that a mark has to save


class PrefixCache:
    """The tokens of a backend's live sequence and the marks in it."""

    def __init__(self, backend: Backend) -> None:
        self._backend, self._mark_bytes = backend, max(1, backend.mark_bytes())
        self._tokens: list[int] | None = None  # None: what lies there is of no use
        self._sequence = -1
        self._marks: list[Mark] = []  # ascending
        self._most = 0  # marks

    def forget(self) -> None:
        """Go on from nothing: what is held was computed in another way, or by somebody else."""
        self._tokens, self._marks, self._most = None, [], 0

    def begin(self, prompt: Sequence[int], *, speculate: bool, budget_bytes: int) -> int:
        """Have the backend hold as much of a prompt as it can; the tokens that need not be read again.

        One at least is left to read. `budget_bytes`: memory for all marks together.
        """
        kept = self._shared(prompt)
        self._tokens = None  # should the backend fail on its way
        self._most = budget_bytes // self._mark_bytes
        mark = next((each for each in reversed(self._marks) if each.length <= kept), None)
        if kept and kept == self._backend.length:
            self._backend.resume(None, speculate=speculate)
        elif mark is not None:
            kept = mark.length
            self._backend.resume(mark, speculate=speculate)
        else:
            kept = 0
            self._backend.reset(speculate=speculate)
        self._sequence = self._backend.sequence
        self._tokens = list(prompt)
        self._marks = [each for each in self._marks if each.length <= kept]
        while len(self._marks) > self._most:  # the budget was larger before
            del self._marks[self._least_useful()]
        return kept

    def next_stop(self, at: int, end: int) -> int:
        """Where the chunk of a prompt of `end` tokens that begins at `at` ends."""
        stops = (place for place in self._places(at, end) if place > at)
        return min(at + PREFILL_CHUNK, end, *stops)

    def passed(self, at: int, end: int) -> None:
        """The first `at` tokens of a prompt of `end` are committed: keep a mark if this is a place for one.

        It takes the room of another where there is none: later requests share the newest place most often.
        """
        if at not in self._places(at - 1, end):
            return
        if len(self._marks) == self._most or self._backend.free_bytes() < self._mark_bytes:
            if not self._marks:
                return
            del self._marks[self._least_useful()]
        self._marks.append(self._backend.mark())

    def wrote(self, answer: Sequence[int]) -> None:
        """The tokens chosen behind the prompt, the last of which is not committed."""
        if self._tokens is not None:
            self._tokens.extend(answer)

    def _shared(self, prompt: Sequence[int]) -> int:
        """Tokens at the start of a prompt that the backend holds, all but one of the prompt at most."""
        backend = self._backend
        if self._tokens is None or backend.sequence != self._sequence:
            self.forget()
            return 0
        held = self._tokens[: backend.length]
        most = min(len(held), len(prompt) - 1)
        return next((at for at in range(most) if held[at] != prompt[at]), most)

    def _places(self, at: int, end: int) -> list[int]:
        """Where marks are wanted behind `at`: at the end of an interval, and before the end of the prompt."""
        least = _LEAST + (self._marks[-1].length if self._marks else 0)
        places = ((at // INTERVAL + 1) * INTERVAL, end - TAIL)
        return [place for place in places if self._most and least <= place < end]

    def _least_useful(self) -> int:
        """Of the marks, one at least, that without which the least has to be read again."""
        lengths = [0, *(mark.length for mark in self._marks)]
        gaps = [after - before for before, after in zip(lengths, lengths[1:], strict=False)]
        return gaps.index(min(gaps))
