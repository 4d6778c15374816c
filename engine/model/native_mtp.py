# SPDX-License-Identifier: MIT OR Apache-2.0
"""The MTP head's cache and its drafts over the arena of a native backend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from engine.model.arena import MAX_ROWS, Arena
from engine.model.backend import MAX_DRAFT, MAX_WIDTH, DraftStep
from engine.model.mtp_queue import MtpQueue


class RunPass(Protocol):
    """Runs a recording by its kind; see `GraphKey`."""

    def __call__(
        self, kind: str, rows: int, *, steps: int = 0, width: int = 0, in_round: bool = False
    ) -> None: ...


class NativeMtp:
    """Keeps the entries of committed rows and drafts behind them.

    Hidden rows that wait for their entry lie in arena.mtp_waiting. Passes run through `run`, which is handed in
    with every call, so that the backend and this do not hold each other.
    """

    def __init__(self, arena: Arena, capacity: int, tokens: int) -> None:
        """`tokens`: ids that exist, no fewer than the candidates of a step can be."""
        self._arena = arena
        self._capacity = capacity
        self._most_width = min(MAX_WIDTH, tokens)
        # NumPy has no bfloat16: rows move as 16-bit integers.
        self._hidden_rows = arena.hidden.view(torch.int16).numpy()
        self._waiting_rows = arena.mtp_waiting.view(torch.int16).numpy()
        self._next = arena.mtp_next.numpy()
        self._start = arena.mtp_start.numpy()
        self._further = np.arange(MAX_DRAFT - 1, dtype=np.int32)
        self._ids = arena.draft_ids.numpy()
        self._values = arena.draft_values.numpy()
        self._sums = arena.draft_sums.numpy()
        self.reset(active=False)

    def reset(self, *, active: bool) -> None:
        """An empty sequence; `active` keeps the cache in step with it."""
        self._queue = MtpQueue(active and self._arena.mtp_kv is not None)

    def add(
        self, run: RunPass, path: Sequence[int], ids: Sequence[int], *, in_round: bool = False
    ) -> None:
        """The rows `path` of arena.hidden were committed, with tokens `ids`."""
        queue = self._queue
        if not queue.active:
            return
        if queue.paired_with not in (None, ids[0]):
            queue.unpair()
        if queue.waiting + len(ids) > MAX_ROWS:
            self._make_room(run, ids[0], in_round=in_round)
        at = queue.waiting
        if len(path) == 1:
            self._waiting_rows[at] = self._hidden_rows[0]
        elif path[-1] == len(path) - 1:
            self._waiting_rows[at : at + len(path)] = self._hidden_rows[: len(path)]
        else:
            self._waiting_rows[at : at + len(path)] = self._hidden_rows[list(path)]
        queue.add(ids)

    def draft(self, run: RunPass, anchor: int, depth: int, width: int) -> list[DraftStep]:
        """See `Backend.draft_steps`."""
        queue = self._queue
        depth = min(depth, MAX_DRAFT, self._capacity - queue.positions + 1)
        width = min(width, self._most_width)
        if not queue.active or not queue.positions or depth < 1:
            return []
        if queue.paired_with is not None:
            queue.unpair()
        if queue.waiting > MAX_DRAFT + 1:
            # Behind a prompt chunk: one row is left, so that drafts need few recordings.
            self._extend(run, queue.following, in_round=True)
        rows = queue.waiting
        self._next[: rows - 1] = queue.following
        self._next[rows - 1] = anchor
        self._start[0] = queue.written
        self._start[1:] = self._further + (queue.written + rows)
        run("draft", rows, steps=depth, width=width, in_round=True)
        queue.pair_last(anchor)
        self._keep_row(rows - 1)
        count = depth * width
        ids, values = self._ids[:count].tolist(), self._values[:count].tolist()
        sums = self._sums[:depth].tolist()
        if width == 1:
            pairs = zip(values, sums, strict=True)
            chances = [probability(value, total) for value, total in pairs]
            return [DraftStep((ids[at],), (chances[at],)) for at in range(depth)]
        return [
            DraftStep(
                tuple(ids[at : at + width]),
                tuple([probability(value, total) for value in values[at : at + width]]),
            )
            for at, total in zip(range(0, count, width), sums, strict=True)
        ]

    def flush(self, run: RunPass) -> None:
        """Write the entries of all committed positions but the last."""
        if self._queue.following:
            self._extend(run, self._queue.following)

    def read(self) -> tuple[Tensor, Tensor]:
        """Copies of the entries, keys and values [positions - 1, kv heads, head dim], after a `flush`."""
        assert self._arena.mtp_kv is not None
        return self._arena.mtp_kv.read(max(0, self._queue.positions - 1))

    def _make_room(self, run: RunPass, next_id: int, *, in_round: bool) -> None:
        """Empty the buffer of waiting rows: a prompt is read whole, undrafted rounds are let go."""
        queue = self._queue
        if not in_round:
            self._extend(run, [*queue.following, next_id])
            return
        end = queue.waiting
        first = queue.start_anew()
        self._waiting_rows[: queue.waiting] = self._waiting_rows[first:end]

    def _extend(self, run: RunPass, next_ids: Sequence[int], *, in_round: bool = False) -> None:
        """Write the MTP pairs of the first len(next_ids) waiting rows.

        In passes of a power of two rows, as a backlog may have any length and each new one would be recorded.
        The last pass is filled up with rows that count for nothing, where the cache has room: what is written
        behind the entries is written again. A pass costs far more than its rows.
        """
        queue, ids = self._queue, list(next_ids)
        while ids:
            rows = 1 << (len(ids) - 1).bit_length()
            if 4 * len(ids) < 3 * rows or rows > MAX_ROWS or queue.written + rows > self._capacity:
                rows = 1 << (len(ids).bit_length() - 1)
            known = min(rows, len(ids))
            self._next[:known] = ids[:known]
            self._start[0] = queue.written
            run("extend", rows, in_round=in_round)
            queue.write(known)
            self._waiting_rows[: queue.waiting] = self._waiting_rows[known : known + queue.waiting]
            del ids[:known]

    def _keep_row(self, row: int) -> None:
        """Move a waiting hidden row to the front of the buffer."""
        if row < MAX_ROWS:
            self._waiting_rows[0] = self._waiting_rows[row]


def probability(value: float, total: float) -> float:
    """e^(logit - logarithm of the sum of all), at most 1; 0 where there is no number."""
    difference = value - total
    return math.exp(difference) if difference < 0.0 else float(difference >= 0.0)
