# SPDX-License-Identifier: MIT OR Apache-2.0
"""What PyTorch's allocator keeps of a GPU's memory."""

from __future__ import annotations

import contextlib
import gc

import torch

from engine.model.capture_lock import CAPTURE_LOCK


def give_back_memory() -> None:
    """Return what nobody uses any more to the device; nothing where no GPU was used yet.

    The allocator keeps freed memory for itself, where the next load cannot see it and, on a machine with one
    memory, no other program can use it. A load that failed is held by its own traceback until it is collected.
    """
    if not torch.cuda.is_initialized():
        return
    gc.collect()
    # A device whose context is broken gives nothing back, which is no reason not to open a model without it.
    with CAPTURE_LOCK, contextlib.suppress(RuntimeError):
        torch.cuda.empty_cache()


def wait_until_idle(device: torch.device) -> None:
    """Wait for the work that a GPU was given; where its context is broken there is none to wait for."""
    with contextlib.suppress(RuntimeError):
        torch.cuda.synchronize(device)
