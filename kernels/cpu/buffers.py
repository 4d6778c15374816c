# SPDX-License-Identifier: MIT OR Apache-2.0
"""Aligned CPU buffers and the operand checks every native wrapper shares."""

from __future__ import annotations

import ctypes
import sys

import torch
from torch import Tensor

ALIGNMENT_BYTES = 64
_HUGE_PAGE_BYTES = 2 << 20
_HUGE_FROM_BYTES = 4 << 20
_MADV_HUGEPAGE = 14


def aligned_empty(
    shape: tuple[int, ...] | int, dtype: torch.dtype, *, alignment: int = 64
) -> Tensor:
    """An uninitialised contiguous CPU tensor whose first element lies on `alignment` bytes."""
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    count = 1
    for size in sizes:
        count *= size
    item = torch.empty((), dtype=dtype).element_size()
    size = count * item
    if size >= _HUGE_FROM_BYTES:
        alignment = max(alignment, _HUGE_PAGE_BYTES)
    raw = torch.empty(size + alignment, dtype=torch.uint8)
    start = -raw.data_ptr() % alignment
    if size >= _HUGE_FROM_BYTES:
        _advise_huge_pages(raw.data_ptr() + start, size)
    return raw[start : start + size].view(dtype).view(sizes)


def aligned_zeros(
    shape: tuple[int, ...] | int, dtype: torch.dtype, *, alignment: int = 64
) -> Tensor:
    """aligned_empty, filled with zeros."""
    return aligned_empty(shape, dtype, alignment=alignment).zero_()


def aligned_copy(source: Tensor, *, alignment: int = 64) -> Tensor:
    """A contiguous aligned CPU copy of `source`."""
    copy = aligned_empty(tuple(source.shape), source.dtype, alignment=alignment)
    return copy.copy_(source)


def _advise_huge_pages(address: int, size: int) -> None:
    """Ask for large pages before the first touch: fewer page walks while weights stream past.

    Only advice: where the system does not know it, ordinary pages serve.
    """
    if sys.platform == "linux":
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        madvise(address, size // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES, _MADV_HUGEPAGE)


def require(
    name: str,
    tensor: Tensor,
    dtype: torch.dtype,
    shape: tuple[int | None, ...],
    *,
    alignment: int = 1,
) -> int:
    """Check an operand and return its address.

    Args:
        shape: expected sizes; None accepts any size on that axis.
        alignment: bytes the address must be a multiple of.

    Raises:
        ValueError: device, dtype, shape, contiguity or alignment differ; the text names the
            operand, what was expected and what was given.
    """
    if tensor.device.type != "cpu":
        raise ValueError(f"{name} must be a CPU tensor, got {tensor.device}")
    if tensor.dtype != dtype:
        raise ValueError(f"{name} must be {dtype}, got {tensor.dtype}")
    given = tuple(tensor.shape)
    if given != shape and not _fits(given, shape):
        wanted = ["any" if size is None else size for size in shape]
        raise ValueError(f"{name} must have shape {wanted}, got {list(given)}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous, got strides {tensor.stride()}")
    return _aligned_address(name, tensor, alignment)


def _fits(given: tuple[int, ...], shape: tuple[int | None, ...]) -> bool:
    if len(given) != len(shape):
        return False
    return all(w is None or w == g for w, g in zip(shape, given, strict=True))


def require_rows(
    name: str, tensor: Tensor, dtype: torch.dtype, rows: int, columns: int, *, alignment: int = 1
) -> tuple[int, int]:
    """Check a matrix [>= rows, columns] with unit column stride; return (address, row stride).

    The row stride is in elements; the rows themselves may lie apart (a column slice of a wider
    buffer).

    Raises:
        ValueError: as `require`, and when fewer than `rows` rows exist.
    """
    if tensor.device.type != "cpu":
        raise ValueError(f"{name} must be a CPU tensor, got {tensor.device}")
    if tensor.dtype != dtype:
        raise ValueError(f"{name} must be {dtype}, got {tensor.dtype}")
    if tensor.dim() != 2 or tensor.shape[0] < rows or tensor.shape[1] != columns:
        raise ValueError(f"{name} must have shape [>= {rows}, {columns}], got {list(tensor.shape)}")
    if tensor.stride(1) != 1:
        raise ValueError(f"{name} must have unit column stride, got strides {tensor.stride()}")
    return _aligned_address(name, tensor, alignment), tensor.stride(0)


def _aligned_address(name: str, tensor: Tensor, alignment: int) -> int:
    address = tensor.data_ptr()
    if address % alignment:
        raise ValueError(
            f"{name} must lie on {alignment} bytes, got an address {address % alignment} past one"
        )
    return address
