# SPDX-License-Identifier: MIT OR Apache-2.0
"""Which sizes make each product of a shape fastest on this machine, over weights that no cache holds.

Settings are timed in alternation, one parameter after the other. A setting stands only where it beats the
default by more than a margin in two comparisons of its own, and where it gives the default's bits at 1 to 32
rows.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.errors import Cancelled, RondoError
from engine.load.synthetic import synthetic_weights
from engine.measure.shapes import Shape
from engine.model.native_weights import NativeWeights
from engine.model.projection import Packing, Projection
from engine.model.tiles import shape_key
from kernels.cpu.blocking import DEFAULT, Blocking
from kernels.cpu.buffers import aligned_copy, aligned_zeros
from kernels.cpu.product import PRIVATE_ROWS, PackedLinear, linear
from kernels.probe import last_level_cache_bytes
from kernels.tape import Pool, Tape

FUNCTIONS = {"nvfp4": "rondo_nvfp4_linear", "fp8": "rondo_fp8_linear"}
NARROW_ROWS, WIDE_ROWS = (1, 4, 8, 16), (17, 24, 32)
# Tried one after the other, each on top of what the ones before found.
SWEEP: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("rows", (0, 1, 2, 4, 6, 8)),
    ("inputs", (0, 128, 256, 512, 1024, 2048)),
    ("tiles", (2, 4, 8, 16, 32, 64)),
    ("ahead_bytes", (0, 1024, 2048, 4096, 8192, 16384)),
)
_MARGIN = 0.98  # of the default's time; what gains less stays out of the table
_COLD_FACTOR = 4
_LEAST_COLD_BYTES = 64 << 20
_MOST_COPIES = 4096


@dataclass(frozen=True, slots=True)
class TuneRow:
    """The best sizes of one weight shape and what they bring, over all its row counts."""

    key: str
    blocking: Blocking  # the default where nothing beat it
    rows: tuple[int, ...]
    default_gbps: float  # bytes of weights over the time of one product, mean over the row counts
    tuned_gbps: float
    settings: int  # how many were tried


def tune(
    shape: Shape,
    *,
    weight_format: str,
    rows: Sequence[int],
    pool: Pool,
    turns: int = 5,
    seed: int = 0,
    on_progress: Callable[[str], None] = lambda line: None,
    cancel: threading.Event | None = None,
) -> list[TuneRow]:
    """Sweep every product of `shape` in this format; one row for each distinct weight shape.

    Raises:
        RondoError: a setting changed a bit of a result, which no size may.
        Cancelled: `cancel` was set; looked at between settings.
    """
    found = []
    packing = Packing(amx=pool.library.has_matrix_unit)
    for packed in products(shape, weight_format, packing, seed=seed):
        on_progress(f"{shape_key(packed)}: making cold copies")
        case = _Case(packed, rows, pool, seed)
        best, tried = DEFAULT, 1
        for name, values in SWEEP:
            settings = [best, *(replace(best, **{name: each}) for each in values)]
            settings = [each for each in dict.fromkeys(settings) if each.inputs < packed.k]
            for setting in settings:
                _stop_if(cancel)
                case.check_bits(setting)
            on_progress(f"{shape_key(packed)}: {name}, {len(settings)} settings")
            best = case.fastest(settings, turns, cancel)
            tried += len(settings) - 1
        # Twice: on a busy machine a gain that is none seldom shows both times.
        compared = [case.times([DEFAULT, best], turns, cancel) for _ in range(2)]
        default_ms, best_ms = (statistics.mean(column) for column in zip(*compared, strict=True))
        if any(tuned > _MARGIN * plain for plain, tuned in compared):
            best, best_ms = DEFAULT, default_ms
        bytes_read = packed.weight_bytes * len(rows) / 1e6
        found.append(
            TuneRow(
                shape_key(packed),
                best,
                tuple(rows),
                bytes_read / default_ms,
                bytes_read / best_ms,
                tried,
            )
        )
    return found


def products(
    shape: Shape, weight_format: str, packing: Packing, *, seed: int = 0
) -> Iterator[PackedLinear]:
    """One weight of each distinct shape that a pass of `shape` multiplies in this format."""
    config = shape.config
    weights = synthetic_weights(config, weight_format, seed)
    packed = NativeWeights.pack(config, weights, positions=1, packing=packing)
    seen = set()
    for projection in _projections(packed):
        for product, _ in projection.products:
            key = shape_key(product)
            if product.function == FUNCTIONS[weight_format] and key not in seen:
                seen.add(key)
                yield product


def _projections(packed: NativeWeights) -> Iterator[Projection]:
    for layer in packed.layers:
        yield layer.project
        yield layer.out
        for each in (layer.mlp.fused, layer.mlp.gate, layer.mlp.up, layer.mlp.down):
            if each is not None:
                yield each
    yield packed.head


class _Case:
    """Copies of one weight that together lie beyond every cache, and activations for its rows."""

    def __init__(self, packed: PackedLinear, rows: Sequence[int], pool: Pool, seed: int) -> None:
        self._pool = pool
        self._rows = tuple(rows)
        cold = max(_LEAST_COLD_BYTES, _COLD_FACTOR * last_level_cache_bytes())
        count = min(_MOST_COPIES, -(-cold // packed.weight_bytes))
        self._copies = [packed, *(_copy(packed) for _ in range(count - 1))]
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(PRIVATE_ROWS, packed.k, generator=generator)
        self._x = aligned_copy(x.to(torch.bfloat16))
        self._out = aligned_zeros((PRIVATE_ROWS, packed.columns), torch.bfloat16)
        self._tapes: dict[tuple[int, Blocking], Tape] = {}
        self._wanted = [self._result(count, DEFAULT) for count in range(1, PRIVATE_ROWS + 1)]

    def check_bits(self, setting: Blocking) -> None:
        """RondoError where `setting` gives other bits than the default at some row count."""
        for count, wanted in enumerate(self._wanted, 1):
            if not torch.equal(self._result(count, setting), wanted):
                raise RondoError(
                    f"{setting} changes the bits of {shape_key(self._copies[0])} at {count} rows.",
                    kept="No table was written.",
                    next_step="Report this: no size may change a result.",
                )

    def fastest(
        self, settings: Sequence[Blocking], turns: int, cancel: threading.Event | None
    ) -> Blocking:
        """The setting with the least time over all row counts; the first of equals."""
        times = self.times(settings, turns, cancel)
        return settings[times.index(min(times))]

    def times(
        self, settings: Sequence[Blocking], turns: int, cancel: threading.Event | None
    ) -> list[float]:
        """Milliseconds of one product summed over the row counts, for each setting; medians of turns."""
        samples: dict[tuple[int, int], list[float]] = {}
        for _ in range(turns):
            for rows in self._rows:
                for at, setting in enumerate(settings):
                    _stop_if(cancel)
                    samples.setdefault((at, rows), []).append(self._run(rows, setting))
        return [
            sum(statistics.median(samples[at, rows]) for rows in self._rows)
            for at in range(len(settings))
        ]

    def _run(self, rows: int, setting: Blocking) -> float:
        tape = self._tapes.get((rows, setting))
        if tape is None:
            tape = self._tapes[rows, setting] = Tape(self._pool)
            for packed in self._copies:
                linear(tape, packed, self._x, self._out, rows=rows, blocking=setting)
        begun_s = time.perf_counter()
        tape.run()
        return (time.perf_counter() - begun_s) * 1e3 / len(self._copies)

    def _result(self, rows: int, setting: Blocking) -> Tensor:
        self._out.zero_()
        tape = Tape(self._pool, eager=True)
        linear(tape, self._copies[0], self._x, self._out, rows=rows, blocking=setting)
        return self._out[:rows].clone()


def _copy(packed: PackedLinear) -> PackedLinear:
    return replace(
        packed,
        weight=aligned_copy(packed.weight),
        scale=None if packed.scale is None else aligned_copy(packed.scale),
        row_scale=None if packed.row_scale is None else aligned_copy(packed.row_scale),
    )


def _stop_if(cancel: threading.Event | None) -> None:
    if cancel is not None and cancel.is_set():
        raise Cancelled("Tuning was cancelled.", kept="No table was written.")
