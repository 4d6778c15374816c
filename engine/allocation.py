# SPDX-License-Identifier: MIT OR Apache-2.0
"""Memory: allocations that failed, said in four ways by Python, NumPy, PyTorch and the system; giving back."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import re
import sys
from collections.abc import Callable, Iterator

from engine.errors import MemoryShortError
from engine.numbers import grouped

NEXT_STEP = (
    "Close other programs, ask for a shorter context, or choose a smaller or quantised model."
)
_TORCH = re.compile(r"allocate memory|not enough memory|out of memory", re.IGNORECASE)
_WANTED = re.compile(r"(?:tried|unable) to allocate ([\d.]+) ?(bytes|[KMGTPE]iB)", re.IGNORECASE)
_UNITS = ("bytes", "kib", "mib", "gib", "tib", "pib", "eib")


def memory_short(
    error: BaseException, what: str, *, kept: str = "", next_step: str = NEXT_STEP
) -> MemoryShortError | None:
    """The error that says `what` there was no memory for, None where `error` is of another kind."""
    if isinstance(error, OSError):
        short = error.errno == errno.ENOMEM
    else:
        short = isinstance(error, MemoryError) or (
            isinstance(error, RuntimeError) and _TORCH.search(str(error)) is not None
        )
    if not short:
        return None
    found = _WANTED.search(str(error))
    asked = ""
    if found:
        wanted_bytes = float(found[1]) * 1024 ** _UNITS.index(found[2].lower())
        asked = f"; {grouped(wanted_bytes / 1e9, 2)} GB at once were asked for"
    return MemoryShortError(
        f"There is not enough memory for {what}{asked}.", kept=kept, next_step=next_step
    )


@contextlib.contextmanager
def allocating(what: str | Callable[[], str], *, kept: str = "") -> Iterator[None]:
    """Turn an allocation that fails within into a MemoryShortError that names `what` was being made."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        short = memory_short(error, what if isinstance(what, str) else what(), kept=kept)
        if short is None:
            raise
        raise short from error


def give_back_memory() -> None:
    """Return what the C library holds of freed memory to the system, where it knows how to."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
