# SPDX-License-Identifier: MIT OR Apache-2.0
"""The products that a sweep times, and the timing of one of them over weights that no cache holds."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from engine.errors import Cancelled, RondoError
from engine.load.synthetic import synthetic_head, synthetic_weights
from engine.measure.shapes import Shape
from engine.model.native_weights import NativeAttention, NativeDelta, NativeWeights
from engine.model.projection import Packing, Projection
from engine.model.tiles import shape_key
from kernels.cpu.blocking import DEFAULT, Blocking
from kernels.cpu.buffers import aligned_copy, aligned_zeros
from kernels.cpu.product import PRIVATE_ROWS, PackedLinear, linear
from kernels.probe import CacheFlush
from kernels.tape import Pool, Tape

FUNCTIONS = {"nvfp4": "rondo_nvfp4_linear", "fp8": "rondo_fp8_linear"}
# A run multiplies copies of a small weight until it has read this much, so that the clock can tell its time.
_RUN_BYTES = 8 << 20
_MOST_COPIES = 256


def products(
    shapes: Sequence[Shape], weight_format: str, packing: Packing, *, seed: int = 0
) -> Iterator[PackedLinear]:
    """One weight of each distinct shape that a pass of these shapes multiplies in this format.

    Layers repeat, so one of each kind stands for all; no more than one layer is held at a time.
    """
    seen = set()
    for shape in shapes:
        for found in _layers(shape, weight_format, packing, seed):
            while found:
                packed = found.pop(0)
                key = shape_key(packed)
                if packed.function == FUNCTIONS[weight_format] and key not in seen:
                    seen.add(key)
                    yield packed


def _layers(
    shape: Shape, weight_format: str, packing: Packing, seed: int
) -> Iterator[list[PackedLinear]]:
    """The products of a layer of each kind and of the head; nothing but the lists holds them."""
    for kind in dict.fromkeys(shape.config.layer_types):
        yield _layer(shape, kind, weight_format, packing, seed)
    if weight_format == "fp8":  # the head of NVFP4 weights is in FP8, too
        head = synthetic_head(shape.config, seed)
        yield [packed for packed, _ in Projection.pack(head, packing=packing).products]


def _layer(
    shape: Shape, kind: str, weight_format: str, packing: Packing, seed: int
) -> list[PackedLinear]:
    config = replace(shape.config, layers=1, layer_types=(kind,), vocab_size=16, mtp_layers=0)
    config = replace(config, experts=0)  # routed experts take the default sizes
    weights = synthetic_weights(config, weight_format, seed)
    (layer,) = NativeWeights.pack(config, weights, positions=1, packing=packing).layers
    return [packed for each in _projections(layer) for packed, _ in each.products]


def _projections(layer: NativeDelta | NativeAttention) -> list[Projection]:
    mlp = (layer.mlp.fused, layer.mlp.gate, layer.mlp.up, layer.mlp.down)
    return [each for each in (layer.project, layer.out, *mlp) if each is not None]


class Case:
    """One weight and activations for its rows.

    Before every timed run memory beyond every cache is read, so that each weight comes from memory. The run
    itself reads each copy once.
    """

    def __init__(
        self, packed: PackedLinear, rows: Sequence[int], pool: Pool, flush: CacheFlush, seed: int
    ) -> None:
        self.key = shape_key(packed)
        self.timed_ms = 0.0  # of all runs, the flush before each left out
        self._pool, self._rows, self._flush = pool, tuple(rows), flush
        self._copies = [packed, *(_copy(packed) for _ in range(copies(packed) - 1))]
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(PRIVATE_ROWS, packed.k, generator=generator)
        self._x = aligned_copy(x.to(torch.bfloat16))
        self._out = aligned_zeros((PRIVATE_ROWS, packed.columns), torch.bfloat16)
        self._tapes: dict[tuple[int, Blocking], Tape] = {}

    def prove(self, setting: Blocking, cancel: threading.Event | None = None) -> None:
        """RondoError where `setting` gives other bits than the default at some row count; the whole weight."""
        for count in range(1, PRIVATE_ROWS + 1):
            stop_if(cancel)
            if not torch.equal(self._result(count, setting), self._result(count, DEFAULT)):
                raise RondoError(
                    f"{setting} changes the bits of {self.key} at {count} rows.",
                    kept="No table was written.",
                    next_step="Report this: no size may change a result.",
                )

    def times(
        self,
        settings: Iterable[Blocking],
        turns: int,
        cancel: threading.Event | None = None,
        *,
        reach: float | None = None,
        on_left: Callable[[int], None] = lambda count: None,
    ) -> dict[Blocking, float]:
        """Milliseconds of one product summed over the row counts, for each setting; medians of turns.

        Settings alternate. With `reach` those whose first turn took more than `reach` times the shortest get no
        other turn and no place in the answer, and what was recorded for them is freed; the first one stays.
        `on_left` is told how many stay.
        """
        left = list(dict.fromkeys(settings))
        samples: dict[tuple[Blocking, int], list[float]] = {}
        for turn in range(turns):
            for rows in self._rows:
                for setting in left:
                    stop_if(cancel)
                    samples.setdefault((setting, rows), []).append(self._run(rows, setting))
            if turn == 0 and reach is not None:
                total = {each: sum(samples[each, rows][0] for rows in self._rows) for each in left}
                limit = reach * min(total.values())
                left = [each for each in left if each is left[0] or total[each] <= limit]
                self.forget(total.keys() - set(left))
                on_left(len(left))
        return {
            each: sum(statistics.median(samples[each, rows]) for rows in self._rows)
            for each in left
        }

    def forget(self, settings: Iterable[Blocking]) -> None:
        """Free what was recorded for these settings."""
        gone = set(settings)
        self._tapes = {key: tape for key, tape in self._tapes.items() if key[1] not in gone}

    def _run(self, rows: int, setting: Blocking) -> float:
        """Milliseconds of one product."""
        tape = self._tapes.get((rows, setting))
        if tape is None:
            tape = self._tapes[rows, setting] = Tape(self._pool)
            self._flush.append(tape)
            for packed in self._copies:
                linear(tape, packed, self._x, self._out, rows=rows, blocking=setting)
        tape.run()
        spent_ms = float(tape.step_ms()[1:].sum())
        self.timed_ms += spent_ms
        return spent_ms / len(self._copies)

    def _result(self, rows: int, setting: Blocking) -> Tensor:
        self._out.zero_()
        tape = Tape(self._pool, eager=True)
        linear(tape, self._copies[0], self._x, self._out, rows=rows, blocking=setting)
        return self._out[:rows].clone()


def copies(packed: PackedLinear) -> int:
    """How many copies of a weight one run reads."""
    return min(_MOST_COPIES, -(-_RUN_BYTES // packed.weight_bytes))


def stop_if(cancel: threading.Event | None) -> None:
    """Cancelled where `cancel` is set."""
    if cancel is not None and cancel.is_set():
        raise Cancelled("Tuning was cancelled.", kept="No table was written.")


def _copy(packed: PackedLinear) -> PackedLinear:
    return replace(
        packed,
        weight=aligned_copy(packed.weight),
        scale=None if packed.scale is None else aligned_copy(packed.scale),
        row_scale=None if packed.row_scale is None else aligned_copy(packed.row_scale),
    )
