# SPDX-License-Identifier: MIT OR Apache-2.0
"""Passes of a GPU backend as recordings: captured in a CUDA graph, or issued anew each time.

A captured pass replays one graph; an eager one calls the same body. Both count the paths that the body took
and, where operation times are wanted, hold an event behind every operation: inside a graph the events are nodes
of it, so that the times are those of the replay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

from engine.model.capture_lock import CAPTURE_LOCK
from engine.model.cuda_ops import CudaOps
from engine.model.verify_graph import VerifyGraphs

Body = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of a pass, and the event behind it."""

    name: str
    bytes_read: int
    flops: int
    event: torch.cuda.Event


class CudaRecording:
    """One pass: `run` puts it on the current stream and does not wait."""

    def __init__(self, ops: CudaOps, body: Body, device: torch.device) -> None:
        self._ops, self._body, self._device = ops, body, device
        self._graph: torch.cuda.CUDAGraph | None = None
        self.paths: Counter[str] = Counter()
        self.steps: list[Step] = []
        self.first: torch.cuda.Event | None = None  # before the first step, where times are wanted

    def run(self) -> None:
        if self._graph is None:
            self._issue()
        else:
            self._graph.replay()

    def capture(self, pool: tuple[int, int] | None, settle: Body, restore: Body) -> None:
        """Record the body in a graph over the memory pool `pool`.

        The body runs once before, so that kernels are compiled and libraries are set up: `settle` makes that
        run leave no trace, `restore` undoes that. Both happen on one side stream, which is the same for every
        capture: a library's workspace belongs to a stream, and one that a capture allocates would lie in the
        pool for good. After an error nothing is captured, and the current stream is the one of before.
        """
        with CAPTURE_LOCK:
            own, side = torch.cuda.current_stream(self._device), _side_stream(self._device)
            settle()
            side.wait_stream(own)
            try:
                with torch.cuda.stream(side):
                    self._body()
            finally:
                own.wait_stream(side)
            restore()
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(
                    graph, pool=pool, stream=side, capture_error_mode="thread_local"
                ):
                    self._issue()
            finally:
                torch.cuda.set_stream(own)  # a capture that breaks leaves its own one current
            self._graph = graph

    def _issue(self) -> None:
        """The body, its paths counted and its steps marked."""
        ops, before = self._ops, self._ops.mark
        ops.paths, self.steps = Counter(), []
        if ops.switches.timed and self._device.type == "cuda":
            self.first = _event()
            ops.mark = self._mark
        try:
            self._body()
        finally:
            ops.mark = before
            # Whatever runs next without a recording, as a warm-up does, counts for none.
            self.paths, ops.paths = ops.paths, Counter()

    def _mark(self, name: str, bytes_read: int, flops: int) -> None:
        self.steps.append(Step(name, bytes_read, flops, _event()))


class CudaGraphs(VerifyGraphs[CudaRecording]):
    """Captured passes, and the memory pool that they share; on a CPU there is none."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self.pool = self._new_pool()

    def clear(self) -> None:
        """Drop every recording. A pool that no graph holds is no more, so the next one gets another."""
        super().clear()
        self.pool = self._new_pool()

    def _new_pool(self) -> tuple[int, int] | None:
        return torch.cuda.graph_pool_handle() if self._device.type == "cuda" else None


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _event() -> torch.cuda.Event:
    """An event on the current stream that keeps its time, also as a node of a graph."""
    event = torch.cuda.Event(enable_timing=True, external=True)
    event.record()
    return event
