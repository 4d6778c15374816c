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
    """Milliseconds of each step of one recording, summed over its runs."""

    models: list[StepModel]
    runs: int
    total_ms: np.ndarray  # float64 [steps]


class PassTimes:
    """Sums over the runs of each recording since the last reset; read and reset from any thread."""

    def __init__(self) -> None:
        self._times: dict[Hashable, _Times] = {}

    def add(self, key: Hashable, tape: Tape) -> None:
        """The recording of `key` has run."""
        times = self._times.get(key)
        if times is None:
            times = self._times[key] = _Times(tape.models, 0, np.zeros(len(tape.models)))
        times.runs += 1
        times.total_ms += tape.step_ms()

    def reset(self) -> None:
        """Start anew."""
        self._times = {}

    def by_operation(self) -> list[OperationTime]:
        """One row an operation, in order of first appearance."""
        sums: dict[str, list[float]] = {}
        for times in list(self._times.values()):
            for model, total_ms in zip(times.models, times.total_ms.tolist(), strict=True):
                row = sums.setdefault(model.name, [0, 0.0, 0, 0])
                row[0] += times.runs
                row[1] += total_ms
                row[2] += times.runs * model.bytes_read
                row[3] += times.runs * model.flops
        return [
            OperationTime(name, int(n), ms, int(b), int(f)) for name, (n, ms, b, f) in sums.items()
        ]
