# SPDX-License-Identifier: MIT OR Apache-2.0
"""The MTP head's cache and its drafts over the arena of a GPU backend."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.model.cuda_arena import Arena, DraftInputs
from engine.model.mtp_entries import MtpEntries
from engine.model.run_pass import RunPass


class CudaMtp(MtpEntries):
    """`MtpEntries` on a device; what a pass reads is uploaded, what a draft leaves comes back at once."""

    def __init__(self, arena: Arena, capacity: int, tokens: int) -> None:
        """`tokens`: ids that exist, no fewer than the candidates of a step can be."""
        self._arena = arena
        pinned = arena.draft_ids.device.type == "cuda"
        self._ids = torch.empty_like(arena.draft_ids, device="cpu", pin_memory=pinned)
        self._figures = torch.empty_like(arena.draft_figures, device="cpu", pin_memory=pinned)
        inputs = DraftInputs.of(torch.from_numpy(arena.draft_inputs.host))
        super().__init__(
            hidden=arena.hidden,
            waiting=arena.mtp_waiting,
            following=inputs.following.numpy(),
            starts=inputs.starts[:, 0].numpy(),
            capacity=capacity,
            tokens=tokens,
            present=arena.mtp_kv is not None,
        )

    @property
    def first(self) -> int:
        """The position of the first waiting row."""
        return self._queue.written

    def read(self) -> tuple[Tensor, Tensor] | None:
        cache = self._arena.mtp_kv
        if cache is None:
            return None
        count = max(0, self._queue.positions - 1)
        keys, values = (part[:, :count].transpose(0, 1) for part in (cache.keys, cache.values))
        return keys.cpu().clone(), values.cpu().clone()

    def _fill(self, next_ids: Sequence[int]) -> None:
        inputs = self._arena.draft_inputs
        inputs.wait()
        super()._fill(next_ids)
        inputs.upload()

    def _picked(self, path: Sequence[int]) -> Tensor:
        picked = self._arena.picked
        picked.wait()
        picked.host[: len(path)] = path
        picked.upload()
        return self._hidden.index_select(0, picked.device[: len(path)])

    def _drafted(self, depth: int, width: int) -> tuple[list[int], list[float], list[float]]:
        arena = self._arena
        self._ids.copy_(arena.draft_ids, non_blocking=True)
        self._figures.copy_(arena.draft_figures, non_blocking=True)
        if arena.draft_ids.device.type == "cuda":
            torch.cuda.current_stream(arena.draft_ids.device).synchronize()
        ids, figures = self._ids[:depth].numpy(), self._figures[:depth].numpy()
        values, sums = figures[:, :width].ravel(), figures[:, -1]
        return ids[:, :width].ravel().tolist(), values.tolist(), sums.tolist()

    def _extend(self, run: RunPass, next_ids: Sequence[int], *, in_round: bool = False) -> None:
        rows, waiting = len(next_ids), self._waiting
        self._fill(next_ids)
        run("extend", rows, in_round=in_round)
        self._queue.write(rows)
        if 0 < rows < len(waiting):
            waiting[0] = waiting[rows]
