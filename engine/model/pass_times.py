# SPDX-License-Identifier: MIT OR Apache-2.0
"""Times of recorded passes, summed by operation."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from engine.model.backend import OperationTime
from kernels.tape import StepModel, Tape


@dataclass(slots=True)
class _Times:
    """The clock at each boundary of one recording's steps, summed over its runs modulo 2^64.

    Differences of neighbouring sums are the sums of the steps' nanoseconds.
    """

    models: list[StepModel]
    runs: int
    stamps_ns: np.ndarray  # uint64 [steps + 1]
    positions: dict[int | None, int]  # held before each run and seen through a window, summed
    counters: dict[int, memoryview]  # by step
    counts: list[int]  # of each step's counter, summed; zero without one


class PassTimes:
    """Sums over the runs of each recording since the last reset; read and reset from any thread."""

    def __init__(self) -> None:
        self._times: dict[Hashable, _Times] = {}

    def add(self, key: Hashable, tape: Tape, positions: int) -> None:
        """The recording of `key` has run over a sequence that held `positions` before.

        The counters of its steps hold what this run counted.
        """
        times = self._times.get(key)
        if times is None:
            zeros = np.zeros(len(tape.models) + 1, np.uint64)
            windows = dict.fromkeys((model.window for model in tape.models), 0)
            counters = {
                step: memoryview(model.counter.numpy())
                for step, model in enumerate(tape.models)
                if model.counter is not None
            }
            counts = [0] * len(tape.models)
            times = _Times(tape.models, 0, zeros, windows, counters, counts)
            self._times[key] = times
        times.runs += 1
        for step, counter in times.counters.items():
            times.counts[step] += counter[0]
        for window in times.positions:
            times.positions[window] += positions if window is None else min(positions, window)
        # Not in place: a reader that met half of it would take whole clock times for a step's.
        times.stamps_ns = times.stamps_ns + tape.stamps_ns

    def reset(self) -> None:
        """Start anew."""
        self._times = {}

    def by_operation(self) -> list[OperationTime]:
        """One row an operation, in order of first appearance."""
        sums: dict[str, list[float]] = {}
        for times in list(self._times.values()):
            steps_ns = np.diff(times.stamps_ns)
            columns = times.models, steps_ns.tolist(), times.counts
            for model, total_ns, count in zip(*columns, strict=True):
                row = sums.setdefault(model.name, [0, 0.0, 0, 0])
                row[0] += times.runs
                row[1] += total_ns * 1e-6
                positions = times.positions[model.window]
                row[2] += times.runs * model.bytes_read + positions * model.position_bytes
                row[2] += count * model.counter_bytes
                row[3] += times.runs * model.flops + positions * model.position_flops
        return [
            OperationTime(name, int(n), ms, int(b), int(f)) for name, (n, ms, b, f) in sums.items()
        ]
