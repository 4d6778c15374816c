# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the machine allows at this moment: cold memory-read rate and dot-product peak, both measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import psutil

from engine.errors import MemoryShortError, RondoError, UsageError
from engine.measure.machine import available_cores, last_level_cache_bytes

_LEAST_WORKING_SET = 1 << 30


class Probes(Protocol):
    """The measurements that a bench alternates with its rounds."""

    def read_gbps(self) -> float:
        """Cold read rate over the working set, GB/s."""

    def dot_gflops(self) -> float:
        """Peak of BF16 dot products with FP32 sums, GFLOP/s."""


class NativeProbes:
    """Probes on the native worker pool, so that they see the threads a round sees."""

    def __init__(self, pool: object, working_set_bytes: int) -> None:
        self._pool = pool
        self.working_set_bytes = working_set_bytes

    def read_gbps(self) -> float:
        from kernels import probe

        return probe.read_gbps(self._pool, self.working_set_bytes)

    def copy_gbps(self) -> float:
        """Cold copy rate, GB/s of bytes read plus bytes written as the kernel counts them."""
        from kernels import probe

        return probe.copy_gbps(self._pool, self.working_set_bytes)

    def dot_gflops(self) -> float:
        from kernels import probe

        return probe.dot_gflops(self._pool)


@contextmanager
def native_probes(
    threads: int | None = None, working_set_bytes: int | None = None
) -> Iterator[NativeProbes]:
    """Probes with `threads` workers (default: every core this process may use).

    Args:
        working_set_bytes: default 1 GiB or eight times the last-level cache, whichever is more.

    Raises:
        UsageError: fewer than one thread.
        MemoryShortError: the working set (twice, for the copy) does not fit what is free.
        RondoError: the native kernels cannot be built or loaded.
    """
    from kernels.build import NativeBuildError, load_library
    from kernels.tape import Pool

    threads = available_cores() if threads is None else threads
    if threads < 1:
        raise UsageError(f"--threads {threads} runs nothing.", next_step="Use 1 or more.")
    size = working_set_bytes or max(_LEAST_WORKING_SET, 8 * (last_level_cache_bytes() or 0))
    free = psutil.virtual_memory().available
    if 2 * size > free:
        raise MemoryShortError(
            f"The memory probe needs {2 * size / 1e9:.1f} GB and {free / 1e9:.1f} GB are free.",
            next_step="Close other programs, or probe a smaller working set.",
        )
    try:
        pool = Pool(load_library(), threads)
    except NativeBuildError as error:
        raise RondoError(
            f"The roof of this machine cannot be measured: {error}.",
            next_step="Install a C++ compiler; `rondo doctor` says how.",
        ) from error
    try:
        yield NativeProbes(pool, size)
    finally:
        pool.close()


def probe_memory(
    *, threads: int | None = None, working_set_bytes: int | None = None
) -> dict[str, float | int]:
    """The roof as `rondo probe` reports it: read_gbps, copy_gbps, dot_gflops, threads, working_set_bytes.

    Raises as `native_probes` does.
    """
    with native_probes(threads, working_set_bytes) as probes:
        return {
            "read_gbps": probes.read_gbps(),
            "copy_gbps": probes.copy_gbps(),
            "dot_gflops": probes.dot_gflops(),
            "threads": available_cores() if threads is None else threads,
            "working_set_bytes": probes.working_set_bytes,
        }
