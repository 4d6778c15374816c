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

import torch

from engine.model.capture_lock import CAPTURE_LOCK
from engine.model.cuda_ops import CudaOps

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

    def capture(self, pool: tuple[int, int], settle: Body, restore: Body) -> None:
        """Record the body in a graph over the memory pool `pool`.

        The body runs once before, on a side stream, so that kernels are compiled and libraries are set up:
        `settle` makes that run leave no trace, `restore` undoes that. After an error nothing is captured and
        the streams are usable.
        """
        with CAPTURE_LOCK:
            settle()
            side = torch.cuda.Stream(self._device)
            side.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(side):
                self._body()
            torch.cuda.current_stream(self._device).wait_stream(side)
            restore()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                self._issue()
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
        self.paths = ops.paths

    def _mark(self, name: str, bytes_read: int, flops: int) -> None:
        self.steps.append(Step(name, bytes_read, flops, _event()))


def _event() -> torch.cuda.Event:
    """An event on the current stream that keeps its time, also as a node of a graph."""
    event = torch.cuda.Event(enable_timing=True, external=True)
    event.record()
    return event
