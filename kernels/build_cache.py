# SPDX-License-Identifier: MIT OR Apache-2.0
"""Compiled files kept by their content: one build a content, whoever asks first."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path


class NativeBuildError(RuntimeError):
    """Kernels cannot be built or loaded; the text says why and what to do."""


def launch_errors() -> tuple[type[Exception], ...]:
    """What a first launch raises where a kernel or Triton's own launcher does not compile or does not fit.

    Neither is a RuntimeError: the C compiler that lacks Python's headers fails as a process does. Triton is not
    imported for this: where nobody did, it raised nothing.
    """
    triton = sys.modules.get("triton.errors")
    return (subprocess.SubprocessError, *([triton.TritonError] if triton else []))


def cache_folder(name: str) -> Path:
    """The folder `name` of the cache, made when it is missing; NativeBuildError when it cannot be."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(base) / "rondo" / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NativeBuildError(
            f"the cache folder {folder} cannot be made: {error}; set XDG_CACHE_HOME to a folder"
            " that can be written"
        ) from error
    return folder


def hash_text(text: str) -> str:
    """A short name for the content of `text`."""
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def digest(files: Sequence[Path]) -> str:
    """The content of files, their names included, as one text."""
    total = hashlib.sha256()
    for file in files:
        total.update(f"{file.parent.name}/{file.name}\0".encode())
        total.update(file.read_bytes())
    return total.hexdigest()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file lock: one process builds, the others wait and find the result."""
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)


def produce(command: list[str], target: Path) -> None:
    """Run a compiler command whose output appears under its final name only when complete.

    Raises:
        NativeBuildError: it could not run or failed; the text has the command and the first errors.
    """
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        partial = Path(scratch) / target.name
        full = [*command, "-o", str(partial)]
        try:
            done = subprocess.run(full, capture_output=True, text=True, check=False)
        except OSError as error:
            raise NativeBuildError(f"`{shlex.join(full)}` could not run: {error}") from error
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
            shown = "\n".join((lines or done.stderr.splitlines())[:8])
            raise NativeBuildError(f"the command\n  {shlex.join(full)}\nfailed:\n{shown}")
        os.replace(partial, target)
