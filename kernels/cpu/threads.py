# SPDX-License-Identifier: MIT OR Apache-2.0
"""Threads for work on many small tensors: whole jobs side by side, PyTorch held to one thread in each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

_Job = TypeVar("_Job")


@contextmanager
def one_torch_thread(wanted: bool = True) -> Iterator[None]:
    """One thread for PyTorch, if `wanted`; the number before is restored afterwards.

    On matrices as small as an expert's its threads wait more than they work.
    """
    before = torch.get_num_threads()
    if wanted:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def side_by_side(run: Callable[[_Job], None], jobs: Sequence[_Job]) -> None:
    """run(job) for every job, in any order, on as many threads as PyTorch had; what it raises is passed on."""
    threads = min(torch.get_num_threads(), len(jobs))
    with one_torch_thread():
        if threads < 2:
            for job in jobs:
                run(job)
            return
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(run, jobs):
                pass
