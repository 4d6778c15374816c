# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks of what a Triton kernel is given: nothing is assumed, nothing is launched with a wrong operand."""

from __future__ import annotations

import torch
from torch import Tensor

ALIGNED = 16  # bytes a start, elements a row stride: what a vector load needs, whatever the batch


def require(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int | None, ...]) -> Tensor:
    """The tensor, contiguous, of a dtype and a shape; None stands for any size.

    Raises:
        ValueError: it differs; the text names the operand, what was expected and what was given.
    """
    _require_kind(name, tensor, dtype, shape)
    if not tensor.is_contiguous() or tensor.data_ptr() % ALIGNED:
        raise ValueError(f"{name} must be contiguous and start at {ALIGNED} bytes")
    return tensor


def require_rows(name: str, tensor: Tensor, dtype: torch.dtype, rows: int, width: int) -> int:
    """Elements from row to row of a [>= rows, width] operand with unit column stride.

    A kernel is compiled for an alignment, and another alignment could sum in another order: so every operand
    has rows that start at 16 elements.

    Raises:
        ValueError: it differs; the text names the operand, what was expected and what was given.
    """
    _require_kind(name, tensor, dtype, (None, width))
    if tensor.shape[0] < rows:
        raise ValueError(f"{name} must hold at least {rows} rows, got {tensor.shape[0]}")
    stride = tensor.stride(0) if tensor.shape[0] > 1 else width
    if tensor.stride(1) != 1 or stride < width:
        raise ValueError(f"{name} must have a unit column stride and rows that do not overlap")
    if (stride % ALIGNED and tensor.shape[0] > 1) or tensor.data_ptr() % ALIGNED:
        raise ValueError(
            f"{name} must start at {ALIGNED} bytes and have rows {ALIGNED} elements apart or a multiple,"
            f" got {stride}"
        )
    return stride


def require_device(**tensors: Tensor | None) -> None:
    """Raises ValueError when the operands are not all on one device."""
    places = {name: tensor.device for name, tensor in tensors.items() if tensor is not None}
    if len(set(places.values())) > 1:
        raise ValueError(f"operands must be on one device, got {places}")


def power_of_two(value: int) -> int:
    """The smallest power of two that is not below `value`."""
    return 1 << (value - 1).bit_length()


def _require_kind(
    name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int | None, ...]
) -> None:
    fits = len(shape) == tensor.dim() and all(
        wanted in (None, size) for wanted, size in zip(shape, tensor.shape, strict=True)
    )
    if tensor.dtype != dtype or not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(
            f"{name} must be {dtype} [{wanted}], got {tensor.dtype} {list(tensor.shape)}"
        )
