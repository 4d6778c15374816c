# SPDX-License-Identifier: MIT OR Apache-2.0
"""Which sizes make each product of some shapes fastest on this machine, over weights that no cache holds.

Settings are timed in alternation, one parameter after the other; those clearly slower than the best get one
turn alone. A setting stands only where it beats the default by more than a margin in two comparisons of its
own, and where it then gives the default's bits at 1 to 32 rows over the whole weight.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from engine.measure.shapes import Shape
from engine.measure.tune_case import Case, copies, products, stop_if
from engine.model.projection import Packing
from kernels.cpu.blocking import DEFAULT, Blocking
from kernels.cpu.product import PackedLinear
from kernels.probe import CacheFlush
from kernels.tape import Pool

NARROW_ROWS, WIDE_ROWS = (1, 4, 8, 16), (17, 24, 32)
# Tried one after the other, each on top of what the ones before found.
SWEEP: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("rows", (0, 1, 2, 4, 6, 8)),
    ("inputs", (0, 128, 256, 512, 1024, 2048)),
    ("tiles", (2, 4, 8, 16, 32, 64)),
    ("ahead_bytes", (0, 1024, 2048, 4096, 8192, 16384)),
)
_MARGIN = 0.98  # of the default's time; what gains less stays out of the table
_REACH = 1.15  # times the shortest first turn; what takes longer gets no second


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
    shapes: Sequence[Shape],
    *,
    weight_format: str,
    rows: Sequence[int],
    pool: Pool,
    turns: int = 5,
    seed: int = 0,
    on_progress: Callable[[str], None] = lambda line: None,
    cancel: threading.Event | None = None,
) -> list[TuneRow]:
    """Sweep every product of `shapes` in this format; one row for each distinct weight shape.

    Raises:
        RondoError: a setting that would be written changed a bit of a result, which no size may.
        Cancelled: `cancel` was set; looked at between runs.
    """
    packing = Packing(amx=pool.library.has_matrix_unit)
    on_progress("finding the products")
    run_bytes = []
    # Packed and dropped again, one layer at a time: the number is wanted before the first is timed.
    for packed in products(shapes, weight_format, packing, seed=seed):
        stop_if(cancel)
        run_bytes.append(packed.weight_bytes * copies(packed))
    progress = _Progress(run_bytes, on_progress)
    flush = CacheFlush(pool)
    found = []
    for packed in products(shapes, weight_format, packing, seed=seed):
        stop_if(cancel)
        case = Case(packed, rows, pool, flush, seed)
        progress.begin(case)
        found.append(_best(case, packed, tuple(rows), turns, progress.say, cancel))
        gain = 100 * (found[-1].tuned_gbps / found[-1].default_gbps - 1)
        progress.end(f"{gain:+.1f} %" if gain > 0 else "the default is as good")
        del case  # before the next layer is packed
    return found


def _best(
    case: Case,
    packed: PackedLinear,
    rows: tuple[int, ...],
    turns: int,
    say: Callable[[str], None],
    cancel: threading.Event | None,
) -> TuneRow:
    best, tried = DEFAULT, 1
    for name, values in SWEEP:
        settings = [best, *(replace(best, **{name: each}) for each in values)]
        settings = [each for each in dict.fromkeys(settings) if each.inputs < packed.k]

        def on_left(count: int, name: str = name, total: int = len(settings)) -> None:
            say(f"{name}, {count} of {total} settings left")

        times = case.times(settings, turns, cancel, reach=_REACH, on_left=on_left)
        best = min(times, key=times.__getitem__)  # the first of equals
        case.forget(set(settings) - {best, DEFAULT})
        tried += len(settings) - 1
    # Twice: on a busy machine a gain that is none seldom shows both times.
    compared = [case.times([DEFAULT, best], turns, cancel) for _ in range(2)]
    if any(each[best] > _MARGIN * each[DEFAULT] for each in compared):
        best = DEFAULT
    if best != DEFAULT:
        say("comparing the bits of the best setting at every row count")
        case.prove(best, cancel)
    read = packed.weight_bytes * len(rows) / 1e6
    default, tuned = (
        read / statistics.mean(each[setting] for each in compared) for setting in (DEFAULT, best)
    )
    return TuneRow(case.key, best, rows, default, tuned, tried)


class _Progress:
    """Says which product of how many is on, and once one is done about how long the rest takes."""

    def __init__(self, run_bytes: Sequence[int], on_progress: Callable[[str], None]) -> None:
        self._run_bytes = run_bytes  # what a run of each product reads
        self._tell = on_progress
        self._done = 0
        self._timed_s = self._other_s = 0.0  # of the products that are done

    def begin(self, case: Case) -> None:
        self._case, self._begun_s = case, time.monotonic()
        self.say("begun")

    def say(self, what: str) -> None:
        at = f"product {self._done + 1} of {len(self._run_bytes)} ({self._case.key})"
        left = f"; about {_duration(self._left_s())} left" if self._done else ""
        self._tell(f"{at}: {what}{left}")

    def end(self, result: str) -> None:
        self.say(result)
        timed_s = self._case.timed_ms / 1e3
        self._timed_s += timed_s
        self._other_s += time.monotonic() - self._begun_s - timed_s
        self._done += 1

    def _left_s(self) -> float:
        """Runs take time by their bytes, all else by the number of products."""
        rate = self._timed_s / sum(self._run_bytes[: self._done])
        ahead = self._run_bytes[self._done :]
        whole = rate * sum(ahead) + self._other_s / self._done * len(ahead)
        return max(0.0, whole - (time.monotonic() - self._begun_s))


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
