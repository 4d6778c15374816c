# SPDX-License-Identifier: MIT OR Apache-2.0
"""Jobs side by side: each runs once, PyTorch has one thread in them, a fault reaches the caller."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from kernels.cpu.threads import one_torch_thread, side_by_side


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """PyTorch with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_every_job_runs_once_and_on_as_many_threads_as_there_are(threads: int) -> None:
    together = threading.Barrier(threads, timeout=30)
    found = []

    def run(job: int) -> None:
        together.wait()
        found.append((job, torch.get_num_threads()))

    side_by_side(run, range(3 * threads))
    assert sorted(found) == [(job, 1) for job in range(3 * threads)]
    assert torch.get_num_threads() == threads


def test_a_fault_reaches_the_caller(threads: int) -> None:
    def run(job: int) -> None:
        if job == 2:
            raise ValueError("job 2")

    with pytest.raises(ValueError, match="job 2"):
        side_by_side(run, range(5))
    assert torch.get_num_threads() == threads


def test_the_number_of_threads_comes_back(threads: int) -> None:
    with one_torch_thread():
        assert torch.get_num_threads() == 1
    with one_torch_thread(False):
        assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == threads
