# SPDX-License-Identifier: MIT OR Apache-2.0
"""Files of a private folder that several processes share: created for their owner alone, locked, replaced."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

_POLL_S = 0.005


@contextlib.contextmanager
def locked(path: Path, wait_s: float) -> Iterator[None]:
    """Hold the lock file `path`; it is made where it is missing.

    Raises BlockingIOError when another keeps it for longer than `wait_s`, OSError when it cannot be made.
    """
    file = create(path, keep=True)
    try:
        end = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(file)  # gives the lock back


def create(path: Path, *, keep: bool = False) -> int:
    """A file descriptor to read and write `path`, mode 0600; emptied unless `keep`."""
    flags = os.O_RDWR | os.O_CREAT | (0 if keep else os.O_TRUNC)
    file = os.open(path, flags, 0o600)
    try:
        if os.fstat(file).st_mode & 0o077:
            os.fchmod(file, 0o600)
    except OSError:
        os.close(file)
        raise
    return file


def replace(path: Path, data: bytes | memoryview) -> None:
    """Put `data` in the place of `path` at once: whoever has the old file open keeps it whole."""
    partial = path.with_name(path.name + ".partial")
    with os.fdopen(create(partial), "wb") as file:
        file.write(data)
    os.replace(partial, path)


def append(path: Path, data: bytes, at: int) -> None:
    """Write `data` at offset `at`, the end of what counts; on OSError the file is cut back to there."""
    file = create(path, keep=True)
    try:
        try:
            os.ftruncate(file, at)
            left = memoryview(data)
            while left:
                left = left[os.pwrite(file, left, at + len(data) - len(left)) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(file, at)
            raise
    finally:
        os.close(file)
