# SPDX-License-Identifier: MIT OR Apache-2.0
"""Copies tensors out of memory-mapped files, one at a time, with progress and a cancel."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from engine.allocation import allocating, memory_short
from engine.api import LoadProgress
from engine.errors import Cancelled, CheckpointError
from engine.load.files import unreadable
from engine.load.safetensors_index import TensorEntry
from engine.numbers import grouped

STEP_BYTES = 32 << 20  # between two looks at the cancel
READING = "reading weights"
KEPT = "What was read of it is freed."

_TORCH_DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
    "U8": torch.uint8,
}


class TensorReader:
    """Reads the tensors of a plan; a context manager that unmaps its files on exit.

    `total_bytes` is what all the reads together will add up to; progress goes to `on_progress` and a set
    `cancel` raises Cancelled within STEP_BYTES.
    """

    def __init__(
        self,
        total_bytes: int,
        on_progress: Callable[[LoadProgress], None] | None = None,
        cancel: threading.Event | None = None,
    ) -> None:
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._on_progress = on_progress
        self._cancel = cancel
        self._maps: dict[Path, mmap.mmap] = {}

    def __enter__(self) -> TensorReader:
        self._step(0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for mapped in self._maps.values():
            mapped.close()
        self._maps.clear()

    def read(self, entry: TensorEntry) -> Tensor:
        """The tensor as it is stored, in memory of its own.

        Raises:
            Cancelled: the cancel was set.
            CheckpointError: the file cannot be read, or changed since its header was checked.
            MemoryShortError: there is no memory for it.
        """
        size = f"{entry.nbytes / 1e9:.2f} GB"
        with allocating(f"tensor {entry.name} of {entry.file.name} ({size})", kept=KEPT):
            mapped = self._map(entry)
            # No view of a buffer of bytes: that would stay when the tensor's memory is given back.
            tensor = torch.empty(entry.shape, dtype=_TORCH_DTYPES[entry.dtype])
        target = tensor.reshape(-1).view(torch.uint8).numpy()
        for start in range(0, entry.nbytes, STEP_BYTES):
            count = min(STEP_BYTES, entry.nbytes - start)
            source = np.frombuffer(mapped, np.uint8, count, entry.offset + start)
            np.copyto(target[start : start + count], source)
            del source  # a view would keep the map from closing
            _let_go(mapped, entry.offset + start, count)
            self._step(count)
        return tensor

    def _map(self, entry: TensorEntry) -> mmap.mmap:
        mapped = self._maps.get(entry.file)
        try:
            size = entry.file.stat().st_size
            if mapped is None:
                with entry.file.open("rb") as file:
                    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                self._maps[entry.file] = mapped
        except (OSError, ValueError) as error:
            if memory_short(error, entry.file.name):
                raise
            raise unreadable(entry.file, error) from error
        # Touching a mapped page behind the end of a file would kill the process.
        if min(size, len(mapped)) < entry.offset + entry.nbytes:
            raise CheckpointError(
                f"{entry.file.name} shrank to {grouped(size)} bytes while it was being read; tensor "
                f"{entry.name} needs {grouped(entry.offset + entry.nbytes)}.",
                next_step="Wait until nothing writes to the file, then open the folder again.",
            )
        return mapped

    def _step(self, count: int) -> None:
        if self._cancel is not None and self._cancel.is_set():
            raise Cancelled("Opening the model was cancelled.")
        self._done_bytes += count
        if self._on_progress is not None:
            self._on_progress(LoadProgress(READING, self._done_bytes, self._total_bytes))


def _let_go(mapped: mmap.mmap, offset: int, count: int) -> None:
    """Give copied pages back, so that the file's pages do not pile up beside the copy."""
    if hasattr(mapped, "madvise") and hasattr(mmap, "MADV_DONTNEED"):
        begin = offset - offset % mmap.PAGESIZE
        mapped.madvise(mmap.MADV_DONTNEED, begin, offset + count - begin)
