# SPDX-License-Identifier: MIT OR Apache-2.0
"""The MTP head's cache and its drafts over the arena of a GPU backend; the bookkeeping is `MtpQueue`'s."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.model.backend import MAX_DRAFT, MAX_WIDTH, DraftStep
from engine.model.cuda_arena import MAX_ROWS, Arena, DraftInputs
from engine.model.mtp_queue import MtpQueue
from engine.model.native_mtp import RunPass, probability


class CudaMtp:
    """Keeps the entries of committed rows and drafts behind them; see `NativeMtp`."""

    def __init__(self, arena: Arena, capacity: int, tokens: int) -> None:
        """`tokens`: ids that exist, no fewer than the candidates of a step can be."""
        self._arena, self._capacity = arena, capacity
        self._most_width = min(MAX_WIDTH, tokens)
        host = torch.from_numpy(arena.draft_inputs.host)
        inputs = DraftInputs.of(host)
        self._following, self._starts = inputs.following.numpy(), inputs.starts[:, 0].numpy()
        pinned = arena.draft_ids.device.type == "cuda"
        self._ids = torch.empty_like(arena.draft_ids, device="cpu", pin_memory=pinned)
        self._figures = torch.empty_like(arena.draft_figures, device="cpu", pin_memory=pinned)
        self.reset(active=False)

    @property
    def first(self) -> int:
        """The position of the first waiting row."""
        return self._queue.written

    def reset(self, *, active: bool) -> None:
        """An empty sequence; `active` keeps the cache in step with it."""
        self._queue = MtpQueue(active and self._arena.mtp_kv is not None)

    def add(
        self, run: RunPass, path: Sequence[int], ids: Sequence[int], *, in_round: bool = False
    ) -> None:
        """The rows `path` of arena.hidden were committed, with tokens `ids`."""
        queue, arena = self._queue, self._arena
        if not queue.active:
            return
        if queue.paired_with not in (None, ids[0]):
            queue.unpair()
        if queue.waiting + len(ids) > MAX_ROWS:
            self._make_room(run, ids[0], in_round=in_round)
        waiting = arena.mtp_waiting[queue.waiting : queue.waiting + len(path)]
        if path[-1] == len(path) - 1:
            waiting.copy_(arena.hidden[: len(path)])
        else:
            arena.picked.wait()
            arena.picked.host[: len(path)] = path
            arena.picked.upload()
            waiting.copy_(arena.hidden.index_select(0, arena.picked.device[: len(path)]))
        queue.add(ids)

    def draft(self, run: RunPass, anchor: int, depth: int, width: int) -> list[DraftStep]:
        """See `Backend.draft_steps`."""
        queue, arena = self._queue, self._arena
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
        arena.draft_inputs.wait()
        self._following[: rows - 1] = queue.following
        self._following[rows - 1] = anchor
        self._starts[0] = queue.written
        self._starts[1:] = range(queue.written + rows, queue.written + rows + MAX_DRAFT - 1)
        arena.draft_inputs.upload()
        run("draft", rows, steps=depth, width=width, in_round=True)
        queue.pair_last(anchor)
        self._keep_row(rows - 1)
        self._ids.copy_(arena.draft_ids, non_blocking=True)
        self._figures.copy_(arena.draft_figures, non_blocking=True)
        if arena.draft_ids.device.type == "cuda":
            torch.cuda.current_stream(arena.draft_ids.device).synchronize()
        ids, figures = self._ids[:depth].tolist(), self._figures[:depth].tolist()
        return [
            DraftStep(
                tuple(tokens[:width]),
                tuple(probability(value, values[-1]) for value in values[:width]),
            )
            for tokens, values in zip(ids, figures, strict=True)
        ]

    def flush(self, run: RunPass) -> None:
        """Write the entries of all committed positions but the last."""
        if self._queue.following:
            self._extend(run, self._queue.following)

    def read(self) -> tuple[Tensor, Tensor]:
        """Copies of the entries, keys and values [positions - 1, kv heads, head dim], after a `flush`."""
        cache = self._arena.mtp_kv
        assert cache is not None
        count = max(0, self._queue.positions - 1)
        keys, values = (part[:, :count].transpose(0, 1) for part in (cache.keys, cache.values))
        return keys.cpu().clone(), values.cpu().clone()

    def _make_room(self, run: RunPass, next_id: int, *, in_round: bool) -> None:
        """See `NativeMtp`."""
        queue, waiting = self._queue, self._arena.mtp_waiting
        if not in_round:
            self._extend(run, [*queue.following, next_id])
            return
        end = queue.waiting
        first = queue.start_anew()
        waiting[: queue.waiting].copy_(waiting[first:end].clone())

    def _extend(self, run: RunPass, next_ids: Sequence[int], *, in_round: bool = False) -> None:
        """Write the MTP pairs of the first len(next_ids) waiting rows."""
        rows, queue, inputs = len(next_ids), self._queue, self._arena.draft_inputs
        inputs.wait()
        self._following[:rows] = next_ids
        self._starts[0] = queue.written
        inputs.upload()
        run("extend", rows, in_round=in_round)
        queue.write(rows)
        self._keep_row(rows)

    def _keep_row(self, row: int) -> None:
        """Move a waiting hidden row to the front of the buffer."""
        if 0 < row < MAX_ROWS:
            self._arena.mtp_waiting[:1] = self._arena.mtp_waiting[row : row + 1]
