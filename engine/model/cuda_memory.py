# SPDX-License-Identifier: MIT OR Apache-2.0
"""A GPU by its name, and what PyTorch's allocator keeps of its memory."""

from __future__ import annotations

import contextlib
import gc

import torch

from engine.load.memory import FLOOR_BYTES, available_memory_bytes
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


def device_name(device: torch.device) -> str:
    """What a device is called."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def free_bytes(device: torch.device) -> int:
    """Free memory of a device, what the allocator keeps unused included; of the machine on a CPU."""
    if device.type != "cuda":
        return available_memory_bytes() - FLOOR_BYTES
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept - FLOOR_BYTES


def wait_until_idle(device: torch.device) -> None:
    """Wait for the work that a GPU was given; where its context is broken there is none to wait for."""
    with contextlib.suppress(RuntimeError):
        torch.cuda.synchronize(device)
