# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the guards of conftest.py are made of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np


def leaked_threads(before: set[threading.Thread], linger_s: float) -> list[threading.Thread]:
    """Non-daemon threads that are not in `before` and did not end within `linger_s` seconds."""
    deadline_s = time.monotonic() + linger_s
    new = [t for t in threading.enumerate() if t not in before and not t.daemon]
    for thread in new:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return [thread for thread in new if thread.is_alive()]


def poisoned(make: Callable[..., object]) -> Callable[..., object]:
    """`make` with its result poisoned."""

    def made(*args: object, **kwargs: object) -> object:
        return poison(make(*args, **kwargs))

    return made


def poison(values: object) -> object:
    """Fill an array or tensor with NaN, or with the largest value of an integer type."""
    import torch

    if isinstance(values, torch.Tensor):
        if values.dtype.is_floating_point or values.dtype.is_complex:
            return values.fill_(float("nan"))
        return values.fill_(True if values.dtype == torch.bool else torch.iinfo(values.dtype).max)
    assert isinstance(values, np.ndarray)
    if values.dtype.kind in "fc":
        values.fill(np.nan)
    elif values.dtype.kind in "iu":
        values.fill(np.iinfo(values.dtype).max)
    elif values.dtype.kind == "b":
        values.fill(True)
    return values
