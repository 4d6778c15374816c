# SPDX-License-Identifier: MIT OR Apache-2.0
"""The MTP head's cache and its drafts over the arena of a native backend."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.model.arena import MAX_ROWS, Arena
from engine.model.mtp_entries import MtpEntries
from engine.model.run_pass import RunPass


class NativeMtp(MtpEntries):
    """`MtpEntries` in memory; hidden rows that wait for their entry lie in arena.mtp_waiting."""

    def __init__(self, arena: Arena, capacity: int, tokens: int) -> None:
        """`tokens`: ids that exist, no fewer than the candidates of a step can be."""
        self._cache = arena.mtp_kv
        self._ids = arena.draft_ids.numpy()
        self._values = arena.draft_values.numpy()
        self._sums = arena.draft_sums.numpy()
        super().__init__(
            # NumPy has no bfloat16: rows move as 16-bit integers.
            hidden=arena.hidden.view(torch.int16).numpy(),
            waiting=arena.mtp_waiting.view(torch.int16).numpy(),
            following=arena.mtp_next.numpy(),
            starts=arena.mtp_start.numpy(),
            capacity=capacity,
            tokens=tokens,
            present=arena.mtp_kv is not None,
        )

    def read(self) -> tuple[Tensor, Tensor] | None:
        if self._cache is None:
            return None
        return self._cache.read(max(0, self._queue.positions - 1))

    def _picked(self, path: Sequence[int]) -> np.ndarray:
        return self._hidden[list(path)]

    def _drafted(self, depth: int, width: int) -> tuple[list[int], list[float], list[float]]:
        count = depth * width
        ids, values = self._ids[:count].tolist(), self._values[:count].tolist()
        return ids, values, self._sums[:depth].tolist()

    def _extend(self, run: RunPass, next_ids: Sequence[int], *, in_round: bool = False) -> None:
        """See `MtpEntries`.

        In passes of a power of two rows, as a backlog may have any length and each new one would be recorded.
        The last pass is filled up with rows that count for nothing, where the cache has room: what is written
        behind the entries is written again. A pass costs far more than its rows.
        """
        queue, waiting, ids = self._queue, self._waiting, list(next_ids)
        while ids:
            rows = 1 << (len(ids) - 1).bit_length()
            if 4 * len(ids) < 3 * rows or rows > MAX_ROWS or queue.written + rows > self._capacity:
                rows = 1 << (len(ids).bit_length() - 1)
            known = min(rows, len(ids))
            self._fill(ids[:known])
            run("extend", rows, in_round=in_round)
            queue.write(known)
            waiting[: queue.waiting] = waiting[known : known + queue.waiting]
            del ids[:known]
