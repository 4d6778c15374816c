# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a GPU allows at this moment: memory read rate, matrix peak, and how long a launch and a wait take."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

_LEAST_BYTES = 1 << 30
_CACHES = 8  # the buffer is so many times the last cache
_SIDE = 8192
_TRIES = 5
_WAITS = 50


class CudaProbes:
    """`engine.measure.roof.Probes` on a device; its buffers stay for as long as it does."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        cache = torch.cuda.get_device_properties(device).L2_cache_size
        size = max(_LEAST_BYTES, _CACHES * cache)
        self._buffer = torch.ones(size // 4, device=device)
        self._sum = torch.empty((), device=device)
        self._square = torch.ones(_SIDE, _SIDE, dtype=torch.bfloat16, device=device)
        self._product = torch.empty_like(self._square)

    def read_gbps(self) -> float:
        """Read rate of a sum over a buffer that no cache holds, GB/s."""
        seconds = self._seconds(lambda: torch.sum(self._buffer, dim=0, out=self._sum))
        return self._buffer.nbytes / seconds / 1e9

    def dot_gflops(self) -> float:
        """Rate of the library's BF16 product of two large squares, GFLOP/s."""
        seconds = self._seconds(lambda: torch.mm(self._square, self._square, out=self._product))
        return 2 * _SIDE**3 / seconds / 1e9

    def barrier_ns(self) -> float:
        """How long it takes to launch a kernel and to wait for it, ns."""
        taken = []
        for _ in range(_WAITS):
            begun = time.perf_counter()
            self._sum.zero_()
            torch.cuda.synchronize(self._device)
            taken.append(time.perf_counter() - begun)
        return statistics.median(taken) * 1e9

    def _seconds(self, work: Callable[[], object]) -> float:
        """The fastest of a few runs: what the machine allows, not what it does beside other work."""
        work()
        best = float("inf")
        for _ in range(_TRIES):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            end.synchronize()
            best = min(best, begin.elapsed_time(end) / 1e3)
        return best
