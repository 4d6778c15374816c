# SPDX-License-Identifier: MIT OR Apache-2.0
"""Timing of whole rounds: the same loop for this engine and, in their own processes, for its peers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Protocol

SUITES = ("decode", "verify", "prefill")
CONTEXT_SPAN = 256  # committed positions a timed sequence may grow by before it starts anew
_BURST_MS = 40.0
_BURST_ROUNDS = 64
_SHORT_MS = 20.0
_IDLE_S = 1.0  # after that long the system may have taken pages and clock rate back


class TimedModel(Protocol):
    """What the loop needs of an engine that holds one sequence."""

    vocab_size: int

    def restart(self, ids: Sequence[int]) -> None:
        """Empty the sequence, then commit `ids` when there are any."""

    def advance(self, ids: Sequence[int]) -> None:
        """One round: the rows of `ids`, logits of every row, all of them kept."""

    def prefill(self, ids: Sequence[int]) -> None:
        """Commit `ids` after the present positions and compute the last row's logits."""


class RoundTimer:
    """Times rounds of one model on random tokens, from `context_tokens` to CONTEXT_SPAN more positions."""

    def __init__(self, model: TimedModel, *, context_tokens: int, seed: int = 0) -> None:
        self._model = model
        self._context_tokens = context_tokens
        self._random = random.Random(seed)
        self._length: int | None = None  # None: the sequence is not one that rounds can go on with
        self._last_ms: dict[tuple[str, int], float] = {}
        self._ended = 0.0  # when the last round did

    def turn(self, suite: str, rows: int) -> list[float]:
        """Milliseconds of a few successive rounds of `rows` rows (or one prefill of `rows` tokens).

        A round that is short, or follows a fresh start or an idle second, is preceded by an untimed one: the
        probes and contenders that ran before have filled the caches. Short rounds are repeated for about 40 ms.
        """
        if suite == "prefill":
            return [self._prefill_ms(rows)]
        key = (suite, rows)
        idle = time.monotonic() - self._ended > _IDLE_S
        if self._make_room(rows) or idle or self._last_ms.get(key, 0.0) < _SHORT_MS:
            self._round_ms(rows)
        taken: list[float] = []
        while not taken or (sum(taken) < _BURST_MS and len(taken) < _BURST_ROUNDS):
            self._make_room(rows)
            taken.append(self._round_ms(rows))
        self._last_ms[key] = taken[-1]
        return taken

    def _prefill_ms(self, tokens: int) -> float:
        self._model.restart(())
        self._length = None
        return _timed_ms(self._model.prefill, self._ids(tokens))

    def _round_ms(self, rows: int) -> float:
        assert self._length is not None
        self._length += rows
        taken = _timed_ms(self._model.advance, self._ids(rows))
        self._ended = time.monotonic()
        return taken

    def _make_room(self, rows: int) -> bool:
        """True when the sequence had to start anew to have room for another round."""
        end = self._context_tokens + CONTEXT_SPAN
        if self._length is not None and self._length + rows <= end:
            return False
        self._model.restart(self._ids(self._context_tokens))
        self._length = self._context_tokens
        return True

    def _ids(self, count: int) -> list[int]:
        return [self._random.randrange(self._model.vocab_size) for _ in range(count)]


def _timed_ms(call: Callable[[Sequence[int]], None], ids: list[int]) -> float:
    start = time.perf_counter()
    call(ids)
    return 1e3 * (time.perf_counter() - start)
