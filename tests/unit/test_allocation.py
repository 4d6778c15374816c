# SPDX-License-Identifier: MIT OR Apache-2.0
"""Failed allocations in the words of Python, NumPy, PyTorch and the system, and errors that are none."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import numpy as np
import pytest
import torch

from engine.allocation import allocating, memory_short
from engine.api import ErrorReport
from engine.errors import MemoryShortError

HUGE = 1 << 60


def raised_by(act: Callable[[], object]) -> BaseException:
    with pytest.raises((MemoryError, RuntimeError)) as caught:
        act()
    return caught.value


@pytest.mark.parametrize(
    ("act", "asked"),
    [
        (lambda: bytearray(1 << 62), None),
        (lambda: np.empty((1 << 20, 1 << 30), np.uint8), "1\u202f125\u202f899.91 GB"),
        (lambda: torch.empty(HUGE, dtype=torch.uint8), "1\u202f152\u202f921\u202f504.61 GB"),
    ],
)
def test_a_real_failure_names_what_and_how_much(
    act: Callable[[], object], asked: str | None
) -> None:
    short = memory_short(raised_by(act), "the cache", kept="All.", next_step="Less.")
    assert short is not None
    size = f"; {asked} at once were asked for" if asked else ""
    assert short.cause == f"There is not enough memory for the cache{size}."
    assert (short.kept, short.next_step) == ("All.", "Less.")


def test_what_the_gpu_and_the_system_say_counts_too() -> None:
    gpu = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has")
    assert "0.02 GB at once" in memory_short(gpu, "x").cause
    mapped = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    assert memory_short(mapped, "x").cause == "There is not enough memory for x."


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        ValueError("out of memory"),
    ],
)
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    assert memory_short(error, "x") is None
    with pytest.raises(type(error)) as caught, allocating("x"):
        raise error
    assert caught.value is error


def test_the_innermost_name_is_told() -> None:
    with (
        pytest.raises(MemoryShortError, match="for the tensor;") as caught,
        allocating("the model"),
        allocating("the tensor", kept="The rest."),
    ):
        torch.empty(HUGE)
    assert caught.value.kept == "The rest."


def test_the_console_reports_it_as_no_unexpected_error() -> None:
    report = ErrorReport.of(raised_by(lambda: torch.empty(HUGE)))
    assert report.title == "Not enough memory"
    assert "GB at once" in report.cause
    assert report.kept == "What was loaded stays loaded."
    assert "shorter context" in report.next_step
