# SPDX-License-Identifier: MIT OR Apache-2.0
"""The entries of an MTP head's cache and the drafts behind them; what lies in buffers is a backend's own."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.model.backend import MAX_DRAFT, MAX_WIDTH, DraftStep
from engine.model.mtp_queue import MtpQueue
from engine.model.run_pass import RunPass

Rows = np.ndarray | Tensor


@dataclass(frozen=True, slots=True)
class MtpMark:
    """A place in the head's sequence: entries up to it, and a copy of the hidden row that waits behind them."""

    queue: MtpQueue
    begun: int
    written: int
    row: Tensor


class MtpEntries(ABC):
    """Keeps the entries of committed rows and drafts behind them.

    Passes run through `run`, which is handed in with every call, so that the backend and this do not hold each
    other. Rounds come by here one by one: nothing is called that can be done in place.
    """

    def __init__(
        self,
        *,
        hidden: Rows,
        waiting: Rows,
        following: np.ndarray,
        starts: np.ndarray,
        capacity: int,
        tokens: int,
        present: bool,
    ) -> None:
        """The buffers that passes read and write.

        Args:
            hidden: hidden rows of the last trunk pass, [rows, hidden].
            waiting: those that wait for their entry, [rows, hidden].
            following: int32 [rows], the token behind each waiting row of a pass.
            starts: int32 [MAX_DRAFT], the first position of each step of a draft.
            capacity: positions of a sequence.
            tokens: ids that exist, no fewer than the candidates of a step can be.
            present: whether the model has an MTP head.
        """
        self._hidden, self._waiting = hidden, waiting
        self._following, self._starts = following, starts
        self._further = np.arange(MAX_DRAFT - 1, dtype=np.int32)
        self._most_waiting = len(following)
        self._capacity = capacity
        self._most_width = min(MAX_WIDTH, tokens)
        self._present = present
        self.reset(active=False)

    def reset(self, *, active: bool) -> None:
        """An empty sequence; `active` keeps the cache in step with it."""
        self._queue = MtpQueue(active and self._present)

    def mark(self, run: RunPass) -> MtpMark | None:
        """The place behind the committed rows; None where nothing is kept."""
        queue = self._queue
        if not queue.active or not queue.positions:
            return None
        if queue.paired_with is not None:
            queue.unpair()
        self.flush(run)
        row = torch.as_tensor(self._waiting[0]).clone()
        return MtpMark(queue, queue.begun, queue.written, row)

    def resume(self, mark: MtpMark | None, *, active: bool) -> None:
        """Go on behind a mark of this sequence whose entries are still there, else with an empty cache."""
        queue = self._queue
        if active and mark is not None and mark.queue is queue and mark.begun == queue.begun:
            queue.go_back(mark.written)
            torch.as_tensor(self._waiting[0]).copy_(mark.row)
        else:
            self.reset(active=active)

    def add(
        self, run: RunPass, path: Sequence[int], ids: Sequence[int], *, in_round: bool = False
    ) -> None:
        """The hidden rows `path` were committed, with tokens `ids`."""
        queue = self._queue
        if not queue.active:
            return
        if queue.paired_with not in (None, ids[0]):
            queue.unpair()
        if queue.waiting + len(ids) > self._most_waiting:
            self._make_room(run, ids[0], in_round=in_round)
        at = queue.waiting
        if len(path) == 1:
            self._waiting[at] = self._hidden[0]
        elif path[-1] == len(path) - 1:
            self._waiting[at : at + len(path)] = self._hidden[: len(path)]
        else:
            self._waiting[at : at + len(path)] = self._picked(path)
        queue.add(ids)

    def draft(self, run: RunPass, anchor: int, depth: int, width: int) -> list[DraftStep]:
        """See `Backend.draft_steps`."""
        queue = self._queue
        positions = queue.positions
        depth = min(depth, MAX_DRAFT, self._capacity - positions + 1)
        width = min(width, self._most_width)
        if not queue.active or not positions or depth < 1:
            return []
        if queue.paired_with is not None:
            queue.unpair()
        if queue.waiting > MAX_DRAFT + 1:
            # Behind a prompt chunk: one row is left, so that drafts need few recordings.
            self._extend(run, queue.following, in_round=True)
        rows = queue.waiting
        self._fill([*queue.following, anchor])
        run("draft", rows, steps=depth, width=width, in_round=True)
        queue.pair_last(anchor)
        if rows > 1:  # the row of the anchor's pair may have to wait again
            self._waiting[0] = self._waiting[rows - 1]
        ids, values, sums = self._drafted(depth, width)
        if width == 1:
            pairs = zip(values, sums, strict=True)
            chances = [probability(value, total) for value, total in pairs]
            return [DraftStep((ids[at],), (chances[at],)) for at in range(depth)]
        return [
            DraftStep(
                tuple(ids[at : at + width]),
                tuple([probability(value, total) for value in values[at : at + width]]),
            )
            for at, total in zip(range(0, depth * width, width), sums, strict=True)
        ]

    def flush(self, run: RunPass) -> None:
        """Write the entries of all committed positions but the last."""
        if self._queue.following:
            self._extend(run, self._queue.following)

    @abstractmethod
    def read(self) -> tuple[Tensor, Tensor] | None:
        """Copies of the entries, keys and values [positions - 1, kv heads, head dim], after a `flush`.

        None without an MTP head.
        """

    def _fill(self, next_ids: Sequence[int]) -> None:
        """What the next pass reads: the tokens behind its rows, and where it and further steps start."""
        rows, written = len(next_ids), self._queue.written
        self._following[:rows] = next_ids
        self._starts[0] = written
        self._starts[1:] = self._further + (written + rows)

    @abstractmethod
    def _picked(self, path: Sequence[int]) -> Rows:
        """The hidden rows `path` of a tree, in order."""

    @abstractmethod
    def _drafted(self, depth: int, width: int) -> tuple[list[int], list[float], list[float]]:
        """What the draft that runs leaves: candidates and their logits [depth * width], step by step, and the
        logarithm of each step's sum of exponentials [depth]."""

    @abstractmethod
    def _extend(self, run: RunPass, next_ids: Sequence[int], *, in_round: bool = False) -> None:
        """Write the pairs of the first len(next_ids) waiting rows."""

    def _make_room(self, run: RunPass, next_id: int, *, in_round: bool) -> None:
        """Empty the buffer of waiting rows: a prompt is read whole, undrafted rounds are let go."""
        queue = self._queue
        if not in_round:
            self._extend(run, [*queue.following, next_id])
            return
        end = queue.waiting
        first = queue.start_anew()
        rows = torch.as_tensor(self._waiting)  # the same memory
        rows[: queue.waiting] = rows[first:end].clone()


def probability(value: float, total: float) -> float:
    """e^(logit - logarithm of the sum of all), at most 1; 0 where there is no number."""
    difference = value - total
    return math.exp(difference) if difference < 0.0 else float(difference >= 0.0)
