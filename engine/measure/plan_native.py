# SPDX-License-Identifier: MIT OR Apache-2.0
"""The native CPU backend's verify passes beside a plan: measured in this run, by the byte model of the plan."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from engine.measure.bench import BackendFactory, run_bench
from engine.measure.bench_report import BenchRequest
from engine.measure.machine import machine_record
from engine.measure.plan import make_plan
from engine.measure.roof import Probes
from engine.measure.shapes import Shape, named_shape
from engine.model.config import FULL

_MOST_LAYERS = 8


@dataclass(frozen=True, slots=True)
class NativeRow:
    """One number of rows: a measured pass, and what the plan predicts for the same pass, by machine."""

    rows: int
    bytes_per_round: int
    ms_median: float
    n: int
    read_gbps: float
    roof_gbps: float | None
    predicted_ms: dict[str, float]


@dataclass(frozen=True, slots=True)
class NativeFigures:
    """Measured passes of the shape, or of a slice of it."""

    shape: str
    shape_note: str
    threads: int
    rows: tuple[NativeRow, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def measured_shape(shape: Shape, vocab: int | None = None) -> Shape:
    """The shape itself up to 8 layers; of a larger one the first layers that hold its mix."""
    config = shape.config
    if config.layers <= _MOST_LAYERS:
        return shape
    period = config.layer_types.index(FULL) + 1
    return named_shape(f"{shape.name.partition(':')[0]}:{period}", vocab=vocab)


def measure_native(
    shape: Shape,
    rows: tuple[int, ...],
    context_tokens: int,
    open_backend: BackendFactory,
    *,
    threads: int,
    turns: int,
    probes: Probes | None,
    on_progress: Callable[[str], None] = lambda line: None,
    cancel: threading.Event | None = None,
) -> NativeFigures:
    """Verify passes of each number of rows over `context_tokens` tokens.

    Raises:
        RondoError: the native kernels or the memory are not there, or the request measures nothing.
    """
    request = BenchRequest(
        shape=shape,
        suites=("verify",),
        rows=rows,
        threads=threads,
        context_tokens=context_tokens,
        turns=turns,
        budget_s=0.0,
    )
    report = run_bench(
        request,
        open_backend,
        probes=probes,
        machine=machine_record(),
        on_progress=on_progress,
        cancel=cancel,
    )
    predicted: dict[int, dict[str, float]] = {}
    for row in make_plan(shape, rows, context_tokens).rows:
        predicted.setdefault(row.rows, {})[row.machine] = row.predicted_ms
    found = []
    for measured in report.rows:
        assert measured.bytes_per_round is not None
        assert measured.read_gbps is not None
        found.append(
            NativeRow(
                measured.rows,
                measured.bytes_per_round,
                measured.ms_median,
                measured.n,
                measured.read_gbps,
                measured.roof_gbps,
                predicted[measured.rows],
            )
        )
    return NativeFigures(shape.name, shape.note, threads, tuple(found))
