# SPDX-License-Identifier: MIT OR Apache-2.0
"""Measures what the machine can give: memory read and copy rate, dot-product rate.

Every figure comes through the same worker pool as the kernels, so that it can be taken in
alternation with them and with the same number of threads.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from pathlib import Path

import numpy as np
import torch

from kernels.cpu.buffers import aligned_empty, aligned_zeros
from kernels.tape import Pool, StepModel, Tape

_SMALLEST_WORKING_SET = 1 << 30
_SMALLEST_FLUSH = 64 << 20
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_DOT_ROUNDS = 200_000
_IDLE_S = 1.0
_AHEAD_BYTES = (0, 2048, 8192)  # processors differ in how far ahead a prefetch pays
_BARRIERS = 64


class _ProbeArgs(ctypes.Structure):
    _fields_ = [
        ("from_", ctypes.c_void_p),
        ("to", ctypes.c_void_p),
        ("sink", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("rounds", ctypes.c_int64),
        ("ahead", ctypes.c_int64),
    ]


def last_level_cache_bytes() -> int:
    """Size of the largest processor cache, 0 where the system does not say."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    sizes = [0]
    for file in _CACHES.glob("index*/size"):
        match = re.fullmatch(r"(\d+)([KMG])", file.read_text(encoding="ascii").strip())
        if match:
            sizes.append(int(match[1]) * units[match[2]])
    return max(sizes)


def last_level_caches() -> int:
    """How many caches like the largest one this machine has, 1 where the system does not say."""
    count, largest = 1, 0
    for file in _CACHES.glob("index*/shared_cpu_map"):
        level = int((file.parent / "level").read_text(encoding="ascii"))
        mask = file.read_text(encoding="ascii").strip().replace(",", "")
        if level > largest and (shared := int(mask, 16).bit_count()):
            largest, count = level, -(-(os.cpu_count() or 1) // shared)
    return count


class CacheFlush:
    """Reads memory that no cache can keep, so that what lay in one before comes from memory again."""

    def __init__(self, pool: Pool, factor: int = 4) -> None:
        """Allocate and touch `factor` times the largest cache, for each that the threads may use.

        Every thread reads its part alone, so that part has to exceed the cache that it goes through.
        """
        each = max(_SMALLEST_FLUSH, factor * last_level_cache_bytes())
        self.nbytes = each * min(pool.threads, last_level_caches()) // 8192 * 8192
        self._data = aligned_empty(self.nbytes, torch.uint8, alignment=4096)
        self._data.fill_(1)
        self._sink = aligned_zeros((pool.threads, 16), torch.float32)

    def append(self, tape: Tape, name: str = "flush") -> None:
        """Record the read."""
        args = _ProbeArgs(self._data.data_ptr(), None, self._sink.data_ptr(), self.nbytes)
        keep = (self._data, self._sink)
        tape.append(StepModel(name, bytes_read=self.nbytes), "rondo_probe_read", args, keep)


class Probe:
    """Holds a working set that no cache can keep, and measures over it on request."""

    def __init__(
        self, pool: Pool, *, working_set_bytes: int | None = None, int8: bool = False
    ) -> None:
        """Allocate and touch the working set: by default 1 GiB or 8 times the largest cache.

        `int8`: the dot product is that of 8-bit integers, unless products run on the matrix unit, which reads
        no input so.

        Raises:
            ValueError: working_set_bytes below 1 MiB.
        """
        size = working_set_bytes or max(_SMALLEST_WORKING_SET, 8 * last_level_cache_bytes())
        if size < 1 << 20:
            raise ValueError(f"working_set_bytes must be at least {1 << 20}, got {size}")
        self.working_set_bytes = size // 8192 * 8192
        self._data = aligned_empty(self.working_set_bytes, torch.uint8, alignment=4096)
        self._data.fill_(1)
        self._sink = aligned_zeros((pool.threads, 16), torch.float32)
        self._operands = aligned_zeros(64, torch.float32)
        self._pool = pool
        of_int8 = int8 and not pool.library.has_matrix_unit
        self._dot = "rondo_probe_dot_int8" if of_int8 else "rondo_probe_dot"
        count = pool.library.function(f"{self._dot}_flops")
        count.restype = ctypes.c_int64
        self._dot_flops = count()
        self._ahead: int | None = None
        self._ended = 0.0  # when the last pass did

    def read_gbps(self) -> float:
        """GB/s of one pass of plain vector loads over the working set.

        With the software prefetch that was fastest when this was first called, so that the roof is one. After
        an idle second an untimed pass goes first: the system may have taken pages and clock rate back.
        """
        if self._ahead is None:
            self._read_gbps(0)
            rates = {each: max(self._read_gbps(each) for _ in range(2)) for each in _AHEAD_BYTES}
            self._ahead = max(_AHEAD_BYTES, key=rates.__getitem__)
        elif time.monotonic() - self._ended > _IDLE_S:
            self._read_gbps(self._ahead)
        rate = self._read_gbps(self._ahead)
        self._ended = time.monotonic()
        return rate

    def _read_gbps(self, ahead: int) -> float:
        args = _ProbeArgs(self._data.data_ptr(), None, self._sink.data_ptr())
        args.bytes, args.ahead = self.working_set_bytes, ahead
        return self.working_set_bytes / self._seconds("rondo_probe_read", args) * 1e-9

    def copy_gbps(self) -> float:
        """GB/s, bytes read plus bytes written, of copying one half of the working set."""
        half = self.working_set_bytes // 2
        start = self._data.data_ptr()
        args = _ProbeArgs(start, start + half, self._sink.data_ptr(), half)
        return 2 * half / self._seconds("rondo_probe_copy", args) * 1e-9

    def dot_gflops(self) -> float:
        """GFLOP/s of the dot-product instruction of this library in independent chains.

        Tiles of the matrix unit, pairs of bf16 or of int16, or fp32 multiply-add, the first that the level has,
        or bytes; all threads together.
        """
        args = _ProbeArgs(self._operands.data_ptr(), None, self._sink.data_ptr())
        args.rounds = _DOT_ROUNDS
        flops = _DOT_ROUNDS * self._dot_flops * self._pool.threads
        return flops / self._seconds(self._dot, args) * 1e-9

    def barrier_ns(self) -> float:
        """Median nanoseconds of an empty step: how long the threads take to meet.

        On a shared machine this tells whether the cores are near each other or far apart.
        """
        args = _ProbeArgs(self._data.data_ptr(), None, self._sink.data_ptr())
        tape = Tape(self._pool)
        for _ in range(_BARRIERS):
            tape.append(StepModel("barrier"), "rondo_probe_read", args)
        tape.run()
        return float(np.median(tape.step_ms())) * 1e6

    def _seconds(self, function: str, args: _ProbeArgs) -> float:
        tape = Tape(self._pool)
        tape.append(StepModel("probe"), function, args)
        tape.run()
        return float(tape.step_ms().sum()) * 1e-3


def read_gbps(pool: Pool, working_set_bytes: int | None = None, *, passes: int = 3) -> float:
    """The best of `passes` cold reads, GB/s, with the threads of `pool`."""
    probe = Probe(pool, working_set_bytes=working_set_bytes)
    return max(probe.read_gbps() for _ in range(passes))


def copy_gbps(pool: Pool, working_set_bytes: int | None = None, *, passes: int = 3) -> float:
    """The best of `passes` copies, GB/s read plus written, with the threads of `pool`."""
    probe = Probe(pool, working_set_bytes=working_set_bytes)
    return max(probe.copy_gbps() for _ in range(passes))


def dot_gflops(pool: Pool, *, passes: int = 3) -> float:
    """The best of `passes` dot-product runs, GFLOP/s of all threads of `pool` together."""
    probe = Probe(pool, working_set_bytes=1 << 20)
    return max(probe.dot_gflops() for _ in range(passes))
