# SPDX-License-Identifier: MIT OR Apache-2.0
"""Times of a GPU pass by operation, from the events behind its steps."""

from __future__ import annotations

from engine.model.backend import OperationTime
from engine.model.cuda_graphs import CudaRecording

OFF = "not measured: turn on QWEN38_OP_TIMES, which puts an event behind every operation"


class OperationTimes:
    """Sums over the passes of rounds since the last reset; written by the thread that runs the model."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}

    def add(self, recording: CudaRecording) -> None:
        """The recording has run, and the device has reached its end."""
        before = recording.first
        for step in recording.steps:
            assert before is not None
            row = self._sums.setdefault(step.name, [0, 0.0, 0, 0])
            row[0] += 1
            row[1] += before.elapsed_time(step.event)
            row[2] += step.bytes_read
            row[3] += step.flops
            before = step.event

    def reset(self) -> None:
        """Start anew."""
        self._sums = {}

    def by_operation(self, *, timed: bool) -> list[OperationTime] | str:
        """One row an operation, none before the first; where none are timed at present, why."""
        rows = [
            OperationTime(name, int(calls), ms, int(read), int(flops))
            for name, (calls, ms, read, flops) in self._sums.copy().items()
        ]
        if sum(row.calls for row in rows) and sum(row.total_ms for row in rows) > 0.0:
            return rows
        return [] if timed else OFF
