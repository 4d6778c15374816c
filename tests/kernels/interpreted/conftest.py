# SPDX-License-Identifier: MIT OR Apache-2.0
"""Triton kernels in Triton's interpreter, on CPU tensors: only in a process of their own.

TRITON_INTERPRET is read when a kernel is defined, so it cannot be set beside tests that compile kernels.
tests/kernels/test_triton_interpreter.py runs this folder; by hand: TRITON_INTERPRET=1 pytest
tests/kernels/interpreted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch
from interpreting import read_loaded_bounds, record_launches

from kernels.cuda_build import Target

_launched: set[str] = set()

if os.environ.get("TRITON_INTERPRET") == "1":
    read_loaded_bounds()
    record_launches(_launched)
else:
    collect_ignore_glob = ["test_*.py"]


@dataclass(frozen=True)
class Interpreted:
    """What a check needs of a library of GPU kernels."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    target: Target = field(default_factory=lambda: Target("interpreter", (0, 0)))


@pytest.fixture
def library() -> Interpreted:
    return Interpreted()


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for the test that started this process: the kernels that have run."""
    terminalreporter.write_line(f"launched: {' '.join(sorted(_launched))}")
