# SPDX-License-Identifier: MIT OR Apache-2.0
"""The round: draft, verify, choose, commit. Every caller decodes through this one loop."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import NumericsError
from engine.model.backend import Backend, Verified
from engine.spec.sampling import Sampling, choose


@dataclass(frozen=True, slots=True)
class Round:
    """What one round did. `tokens` are new in the text; the last one is the next round's anchor."""

    tokens: tuple[int, ...]
    drafted: int
    accepted: int
    rows: int
    draft_ms: float
    verify_ms: float
    sample_ms: float
    commit_ms: float
    bytes_read: int


class DecodeLoop:
    """Continues a prefilled sequence round by round.

    The anchor is the last chosen token: it is part of the text, but the model has not read it yet.
    """

    def __init__(
        self,
        backend: Backend,
        sampling: Sampling,
        stop_ids: frozenset[int],
        follow: Sequence[int] | None = None,
    ) -> None:
        """`follow`: a text to go along instead of choosing; it must hold every token that is asked for."""
        self._backend = backend
        self._sampling = sampling
        self._follow = follow
        self._follow_from = 0
        self.stop_ids = stop_ids
        self.anchor = -1

    def begin(self, prefilled: Verified) -> int:
        """Choose the first token from the prompt's last row."""
        self._follow_from = self._backend.length
        self.anchor = self._choose(prefilled, 0, self._backend.length)
        return self.anchor

    def room(self) -> int:
        """Rows the context still takes; 0 when it is full."""
        return self._backend.capacity - self._backend.length

    def round(self, depth: int, wanted: int) -> Round:
        """One round with at most `depth` drafted tokens and at most `wanted` new tokens.

        Needs room for one row. Stops at a stop id: it is the last of the tokens then, and nothing after it
        is committed.
        """
        backend = self._backend
        start = time.perf_counter()
        depth = max(0, min(depth, wanted - 1, self.room() - 1))
        drafted = backend.draft(self.anchor, depth) if depth else []
        after_draft = time.perf_counter()
        bytes_read = backend.round_bytes(1 + len(drafted), len(drafted))
        position = backend.length + 1
        verified = backend.verify([self.anchor, *drafted])
        after_verify = time.perf_counter()
        tokens: list[int] = []
        accepted = 0
        for row in range(1 + len(drafted)):
            token = self._choose(verified, row, position + row)
            tokens.append(token)
            hit = row < len(drafted) and token == drafted[row]
            accepted += hit
            if not hit or token in self.stop_ids:
                break
        after_sample = time.perf_counter()
        backend.commit(len(tokens))
        self.anchor = tokens[-1]
        after_commit = time.perf_counter()
        return Round(
            tokens=tuple(tokens),
            drafted=len(drafted),
            accepted=accepted,
            rows=1 + len(drafted),
            draft_ms=(after_draft - start) * 1e3,
            verify_ms=(after_verify - after_draft) * 1e3,
            sample_ms=(after_sample - after_verify) * 1e3,
            commit_ms=(after_commit - after_sample) * 1e3,
            bytes_read=bytes_read,
        )

    def _choose(self, verified: Verified, row: int, position: int) -> int:
        best = verified.best[row]
        if best < 0:
            raise NumericsError(
                f"The model produced invalid numbers; first seen in {self._backend.suspect_layer()}.",
                kept="The text so far is kept.",
                next_step="Check the model folder: a weight is damaged or was converted wrongly.",
            )
        if self._follow is not None:
            return self._follow[position - self._follow_from]
        if self._sampling.greedy:
            return best
        return choose(verified.logits[row], self._sampling, position)
