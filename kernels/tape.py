# SPDX-License-Identifier: MIT OR Apache-2.0
"""Records native kernel calls once and replays a whole forward in one call without the GIL."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from kernels.build import NativeBuildError, NativeLibrary
from kernels.cpu.buffers import aligned_zeros

DEFAULT_SPIN_US = 50
_NO_BARRIER, _SERIAL = 1, 2


class _Step(ctypes.Structure):
    _fields_ = [
        ("fn", ctypes.c_void_p),
        ("args", ctypes.c_void_p),
        ("flags", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


@dataclass(frozen=True)
class StepModel:
    """What one step must move and compute: the byte and operation model of its kernel.

    `name` labels the step in timings. position_bytes, position_flops come on top for every position that the
    sequence holds when the step runs, `window` of them at most (None: all). counter_bytes come on top as often
    as `counter`, int32 [1], says after the run (None: not at all).
    """

    name: str
    bytes_read: int = 0
    flops: int = 0
    position_bytes: int = 0
    position_flops: int = 0
    window: int | None = None
    counter: torch.Tensor | None = None
    counter_bytes: int = 0


class Pool:
    """Persistent native workers; the thread that runs a tape is worker 0."""

    def __init__(
        self, library: NativeLibrary, threads: int, *, spin_us: int = DEFAULT_SPIN_US
    ) -> None:
        """Start `threads` - 1 workers that spin `spin_us` after a run before they park.

        Raises:
            ValueError: threads outside 1..256 or spin_us below 0.
            NativeBuildError: the workers cannot be started, or the library is of another version.
        """
        if not 1 <= threads <= 256:
            raise ValueError(f"threads must lie in 1..256, got {threads}")
        if spin_us < 0:
            raise ValueError(f"spin_us must not be negative, got {spin_us}")
        self.library = library
        self.threads = threads
        size = library.function("rondo_step_size")
        size.restype = ctypes.c_int64
        if size() != ctypes.sizeof(_Step):
            raise NativeBuildError(f"{library.path} describes a step in {size()} bytes")
        create = library.function("rondo_pool_create")
        create.restype, create.argtypes = ctypes.c_void_p, [ctypes.c_int32, ctypes.c_int32]
        self._destroy = library.function("rondo_pool_destroy")
        self._destroy.restype, self._destroy.argtypes = None, [ctypes.c_void_p]
        self.run_steps = library.function("rondo_pool_run")
        self.run_steps.restype = None
        self.run_steps.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_int32,
            ctypes.c_void_p,
        ]
        self._scratch: list[tuple[torch.Tensor, int]] = []
        self._shared: list[torch.Tensor] = []
        self.handle: int | None = create(threads, spin_us)
        if not self.handle:
            raise NativeBuildError(f"{threads - 1} native worker threads could not be started")

    def scratch(self, bytes_per_worker: int) -> tuple[int, int]:
        """(address, stride in bytes) of working memory: worker w owns address + w * stride.

        The memory lives as long as the pool and is shared by all steps, so nothing in it outlasts
        the step that wrote it.
        """
        stride = -(-max(bytes_per_worker, 64) // 4096) * 4096 + 64
        if not self._scratch or self._scratch[-1][1] < stride:
            block = aligned_zeros(stride * self.threads, torch.uint8)
            self._scratch.append((block, stride))
        block, stride = self._scratch[-1]
        return block.data_ptr(), stride

    def shared(self, size: int) -> int:
        """Address of `size` bytes of working memory that all workers see.

        Like `scratch` it lives as long as the pool and is shared by all steps: what one step writes
        there is for the step directly after it, with a barrier on both sides.
        """
        if not self._shared or self._shared[-1].numel() < size:
            self._shared.append(aligned_zeros(size, torch.uint8))
        return self._shared[-1].data_ptr()

    def close(self) -> None:
        """Stop the workers. No tape of this pool may run afterwards."""
        if self.handle:
            self._destroy(self.handle)
            self.handle = None

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.close()


class Tape:
    """An ordered list of native steps over static buffers."""

    def __init__(self, pool: Pool, *, eager: bool = False) -> None:
        """A recorder; with `eager` each step runs as it is appended, through the same kernels."""
        self.pool = pool
        self.eager = eager
        self.models: list[StepModel] = []
        self.paths: dict[str, int] = {}  # how often each counted path lies on this tape
        self._keep: list[tuple] = []
        self._records: list[_Step] = []
        self._steps: ctypes.Array | None = None
        self._addresses = 0, 0  # of the steps and of stamps_ns, once they stand
        self._hosts: dict[int, Callable[[], None]] = {}  # by step number
        self.stamps_ns = np.zeros(1, np.uint64)

    @property
    def names(self) -> list[str]:
        """Step names in order."""
        return [model.name for model in self.models]

    def append(
        self,
        model: StepModel,
        function: str,
        args: ctypes.Structure,
        keep: tuple = (),
        *,
        barrier: bool = True,
        serial: bool = False,
    ) -> None:
        """Record the call `function(&args, worker, workers)`, or run it at once when eager.

        Args:
            model: the step's name in timings, with what this call must move and compute.
            keep: objects whose memory `args` points into; held as long as the tape.
            barrier: False lets workers enter the next step without waiting; only for a next step
                that touches nothing this one writes.
            serial: worker 0 alone runs the step.

        Raises:
            ValueError: the function is unknown, or `args` has another size than its C struct.
        """
        address, size = self.pool.library.operation(function)
        if size not in (None, ctypes.sizeof(args)):
            raise ValueError(
                f"{function} takes {size} bytes of arguments, got {ctypes.sizeof(args)}"
            )
        flags = (0 if barrier else _NO_BARRIER) | (_SERIAL if serial else 0)
        step = _Step(address, ctypes.addressof(args), flags, 0)
        self._records.append(step)
        self._keep.append((args, keep))
        self.models.append(model)
        self._steps = None
        if self.eager:
            stamps = np.zeros(2, np.uint64)
            self._run(ctypes.addressof(step), 1, stamps.ctypes.data)
            self._append_time(stamps[1] - stamps[0])

    def host(self, model: StepModel, call: Callable[[], None]) -> None:
        """Record a step that Python computes, in its place among the native ones; eager runs it at once.

        `call` works on the same static buffers and reads what changes from them. A tape with such steps is
        replayed in one native call between each two of them.
        """
        self._hosts[len(self._records)] = call
        self._records.append(_Step())
        self.models.append(model)
        self._steps = None
        if self.eager:
            self._append_time(_timed(call))

    def count(self, path: str) -> None:
        """Note that this tape takes a path; what a path is called is up to the caller."""
        self.paths[path] = self.paths.get(path, 0) + 1

    def run(self) -> None:
        """Replay every step, in one native call where no host step lies between.

        Raises:
            ValueError: the tape is eager; its steps ran when they were appended.
        """
        if self.eager:
            raise ValueError("an eager tape has nothing to replay")
        count = len(self._records)
        if self._steps is None:
            self._steps = (_Step * count)(*self._records)
            self.stamps_ns = np.zeros(count + 1, np.uint64)
            self._addresses = ctypes.addressof(self._steps), self.stamps_ns.ctypes.data
        steps, stamps_ns = self._addresses
        if not self._hosts:
            self._run(steps, count, stamps_ns)
            return
        first = 0
        for at in (*self._hosts, count):
            if at > first:
                stamps = np.zeros(at - first + 1, np.uint64)
                address = steps + first * ctypes.sizeof(_Step)
                self._run(address, at - first, stamps.ctypes.data)
                self.stamps_ns[first + 1 : at + 1] = self.stamps_ns[first] + stamps[1:] - stamps[0]
            if at < count:
                self.stamps_ns[at + 1] = self.stamps_ns[at] + _timed(self._hosts[at])
            first = at + 1

    def clear(self) -> None:
        """Forget every step and the buffers held for it."""
        self.models.clear()
        self.paths.clear()
        self._keep.clear()
        self._records.clear()
        self._hosts.clear()
        self._steps = None
        self.stamps_ns = np.zeros(1, np.uint64)

    def step_ms(self) -> np.ndarray:
        """Milliseconds of each step in the latest run, float64 [steps]."""
        return np.diff(self.stamps_ns.astype(np.int64)) * 1e-6

    def _append_time(self, elapsed_ns: np.uint64) -> None:
        """One more eager step took this long; the time between two steps belongs to neither."""
        previous = self.stamps_ns if len(self.models) > 1 else np.zeros(1, np.uint64)
        self.stamps_ns = np.append(previous, previous[-1] + elapsed_ns)

    def _run(self, steps: int, count: int, stamps_ns: int) -> None:
        """`count` steps at one address, the times between them to count + 1 entries at another."""
        pool = self.pool
        if not pool.handle:
            raise ValueError("the pool of this tape is closed")
        pool.run_steps(pool.handle, steps, count, stamps_ns)


def _timed(call: Callable[[], None]) -> np.uint64:
    begun = time.perf_counter_ns()
    call()
    return np.uint64(time.perf_counter_ns() - begun)
