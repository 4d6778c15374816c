# SPDX-License-Identifier: MIT OR Apache-2.0
"""PyTorch held to one thread for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


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
