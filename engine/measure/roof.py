# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the machine allows at this moment: memory read rate, dot-product peak and the cost of a barrier."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from engine.allocation import memory_short
from engine.errors import RondoError, UsageError
from engine.hardware import MOST_THREADS, available_cores, free_memory_bytes

if TYPE_CHECKING:
    from kernels.probe import Probe
    from kernels.tape import Pool

_LEAST_WORKING_SET = 1 << 20
_MEMORY_WORKING_SET = 256 << 20
_CACHE_PASSES = 50


class Probes(Protocol):
    """The measurements that a bench alternates with its rounds."""

    def read_gbps(self) -> float:
        """Cold read rate over the working set, GB/s."""

    def dot_gflops(self) -> float:
        """Peak of the dot product that the kernels are made of, GFLOP/s."""

    def barrier_ns(self) -> float:
        """How long the threads take to meet, ns; it tells near cores from far ones."""


@dataclass(frozen=True, slots=True)
class Roof:
    """The read rate that bounds a round; `place` says where the bytes lie: memory or cache."""

    read_gbps: float
    place: str


def roof_of_rounds(pool: Pool, bytes_per_round: int) -> Roof:
    """Read rate of this pool over as many bytes as a round reads.

    A model that fits into half of the last-level cache is read from there, so the memory's rate would not bound
    it; anything larger is compared with a working set that no cache holds.
    """
    from kernels.probe import last_level_cache_bytes, read_gbps

    cache_bytes = last_level_cache_bytes()
    if bytes_per_round <= cache_bytes // 2:
        size = max(bytes_per_round, _LEAST_WORKING_SET)
        return Roof(read_gbps(pool, size, passes=_CACHE_PASSES), "cache")
    size = max(_MEMORY_WORKING_SET, 8 * cache_bytes)
    return Roof(read_gbps(pool, size), "memory")


@contextmanager
def native_probes(
    threads: int | None = None, working_set_bytes: int | None = None, *, int8: bool = False
) -> Iterator[Probe]:
    """Probes on a pool of `threads` workers (default: every core this process may use).

    Args:
        working_set_bytes: default 1 GiB or eight times the last-level cache, whichever is more.
        int8: the peak is that of 8-bit integers, unless products run on the matrix unit.

    Raises:
        UsageError: fewer than one thread.
        MemoryShortError: the working set does not fit what is free.
        RondoError: the native kernels cannot be built or loaded.
    """
    from kernels.build import NativeBuildError, load_library
    from kernels.probe import Probe
    from kernels.tape import Pool

    threads = available_cores() if threads is None else threads
    if not 1 <= threads <= MOST_THREADS:
        raise UsageError(
            f"{threads} threads are not accepted.", next_step=f"Use 1 to {MOST_THREADS}."
        )
    try:
        pool = Pool(load_library(), threads)
    except (NativeBuildError, OSError) as error:
        raise RondoError(
            f"The roof of this machine cannot be measured: {error}.",
            next_step="Install a C++ compiler; `rondo doctor` says how.",
        ) from error
    with pool:
        try:
            probe = Probe(pool, working_set_bytes=working_set_bytes, int8=int8)
        except (MemoryError, RuntimeError) as error:
            what = f"the memory probe in the {free_memory_bytes() / 1e9:.1f} GB that are free"
            step = "Close other programs, or probe a smaller working set."
            short = memory_short(error, what, next_step=step)
            if short is None:
                raise
            raise short from error
        yield probe


def probe_memory(
    *, threads: int | None = None, working_set_bytes: int | None = None, passes: int = 3
) -> dict[str, float | int]:
    """The roof as `rondo probe` reports it: the best of `passes`, rates in GB/s and GFLOP/s.

    Keys: read_gbps, copy_gbps, dot_gflops, barrier_ns, threads, working_set_bytes. Raises as `native_probes`
    does.
    """
    with native_probes(threads, working_set_bytes) as probe:
        return {
            "read_gbps": max(probe.read_gbps() for _ in range(passes)),
            "copy_gbps": max(probe.copy_gbps() for _ in range(passes)),
            "dot_gflops": max(probe.dot_gflops() for _ in range(passes)),
            "barrier_ns": probe.barrier_ns(),
            "threads": available_cores() if threads is None else threads,
            "working_set_bytes": probe.working_set_bytes,
        }
