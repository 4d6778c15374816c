# SPDX-License-Identifier: MIT OR Apache-2.0
"""How many threads decode this model fastest on this machine: a short measurement at load."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from engine.hardware import MOST_THREADS, available_cores, physical_core_count
from engine.model.native import NativeBackend
from kernels.build import NativeBuildError, NativeLibrary
from kernels.tape import Pool

_BUDGET_S = 0.15  # for each thread count, beyond the least number of rounds
_LEAST_ROUNDS = 3
_MOST_ROUNDS = 400
_WORTH = 0.97  # more threads must bring the round below this share of the fewer threads' time


def physical_cores() -> int:
    """Cores this process may use, without counting two threads of one core twice."""
    allowed = available_cores()
    return min(allowed, physical_core_count() or allowed)


def candidates(cores: int) -> list[int]:
    """Thread counts worth trying: powers of two below the cores, and all of them."""
    cores = min(cores, MOST_THREADS)
    counts = [1]
    while counts[-1] * 2 < cores:
        counts.append(counts[-1] * 2)
    return counts if cores == 1 else [*counts, cores]


def fastest(round_ms: Sequence[tuple[int, float]]) -> int:
    """The thread count to use: more threads only where they are clearly worth it.

    Args:
        round_ms: (threads, mean milliseconds of a round), threads ascending.
    """
    best, best_ms = round_ms[0]
    for threads, ms in round_ms[1:]:
        if ms < best_ms * _WORTH:
            best, best_ms = threads, ms
    return best


def choose_threads(backend: NativeBackend, library: NativeLibrary) -> int:
    """Time one-row rounds at every candidate and leave the backend on the fastest."""
    counts = candidates(physical_cores())
    if len(counts) > 1:
        measured = []
        for count in counts:
            try:
                backend.use_pool(Pool(library, count))
            except NativeBuildError:  # the system grants no more threads than before
                break
            measured.append((count, _round_ms(lambda: _one_row(backend))))
        backend.reset(speculate=False)
        backend.use_pool(Pool(library, fastest(measured)))
    backend.reset_operation_times()
    return backend.pool.threads


def _one_row(backend: NativeBackend) -> None:
    if backend.length == backend.capacity:
        backend.reset(speculate=False)
    backend.verify([0])
    backend.commit(1)


def _round_ms(run_round: Callable[[], object]) -> float:
    """Mean milliseconds of a round; the first, which records the tape, does not count.

    The mean, not the median: on a busy machine threads that wait for one another lose most in the few
    rounds in which one of them has no core.
    """
    run_round()
    rounds = 0
    begun_s = time.perf_counter()
    while rounds < _LEAST_ROUNDS or (
        rounds < _MOST_ROUNDS and time.perf_counter() - begun_s < _BUDGET_S
    ):
        run_round()
        rounds += 1
    return (time.perf_counter() - begun_s) * 1e3 / rounds
