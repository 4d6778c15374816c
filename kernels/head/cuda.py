# SPDX-License-Identifier: MIT OR Apache-2.0
"""Logits from an FP8 head on a GPU: one order of the sum for every number of rows."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from kernels.cuda_build import CudaLibrary

SOURCE = "head/gemv.cu"
STEP = 64
MAX_ROWS = 32
_WARPS = 8  # fixes the order of the sum: the same for every row count and every vocabulary
_TILES = (1, 4)
_MOST_ELEMENTS = 1 << 31


def entry_name(tiles: int, rows: int) -> str:
    """The kernel for so many rows."""
    return f"rondo_fp8_head_t{tiles}_r{8 if rows <= 8 else 16 if rows <= 16 else 32}"


def entries() -> dict[str, tuple[str, ...]]:
    """Every kernel this module can launch, by source."""
    return {SOURCE: tuple(entry_name(tiles, rows) for tiles in _TILES for rows in (8, 16, 32))}


@dataclass(frozen=True)
class HeadLaunch:
    """Which kernel, over how many blocks, with how much shared memory for the warps' sums."""

    entry: str
    grid: int
    threads: int
    shared_bytes: int


def plan_launch(*, rows: int, vocabulary: int) -> HeadLaunch:
    """The launch of a head.

    Raises:
        ValueError: rows outside 1..32, or fewer than 8 tokens.
    """
    if not 1 <= rows <= MAX_ROWS:
        raise ValueError(f"the head takes 1 to {MAX_ROWS} rows, got {rows}")
    if vocabulary < 8:
        raise ValueError(f"the head needs at least 8 tokens, got {vocabulary}")
    tiles = 4 if vocabulary >= 16384 else 1
    pitch = 40 if tiles == 4 else 8  # as skinny.cuh has it
    return HeadLaunch(
        entry=entry_name(tiles, rows),
        grid=-(-vocabulary // (8 * tiles)),
        threads=32 * _WARPS,
        shared_bytes=_WARPS * 16 * pitch * 4,
    )


def head_logits(library: CudaLibrary, x: Tensor, codes: Tensor, scale: Tensor, out: Tensor) -> None:
    """out[r, v] = scale[v] * sum_k x[r, k] * codes[v, k] for 1 to 32 rows, on the current stream.

    Args:
        x: bfloat16 [R, K], K a multiple of 64, rows and start aligned to 16 bytes.
        codes: float8_e4m3fn [V, K] without NaN; scale: float32 [V]; both contiguous.
        out: float32 [R, V], unit column stride.

    Raises:
        ValueError: an operand differs from the above; nothing was launched.
    """
    rows, inputs = x.shape
    vocabulary = codes.shape[0]
    plan = plan_launch(rows=rows, vocabulary=vocabulary)
    if inputs % STEP or not inputs:
        raise ValueError(f"the head needs inputs in multiples of {STEP}, got {inputs}")
    wanted = (
        ("x", x, torch.bfloat16, (rows, inputs)),
        ("codes", codes, torch.float8_e4m3fn, (vocabulary, inputs)),
        ("scale", scale, torch.float32, (vocabulary,)),
        ("out", out, torch.float32, (rows, vocabulary)),
    )
    for name, tensor, dtype, shape in wanted:
        if tensor.dtype != dtype or tuple(tensor.shape) != shape:
            raise ValueError(
                f"{name} must be {dtype} {list(shape)}, got {tensor.dtype} {list(tensor.shape)}"
            )
        if tensor.device != library.device:
            raise ValueError(f"{name} is on {tensor.device}, the kernels are on {library.device}")
    if not codes.is_contiguous() or not scale.is_contiguous():
        raise ValueError("codes and scale must be contiguous")
    ldx, ldo = (tensor.stride(0) if rows > 1 else tensor.shape[1] for tensor in (x, out))
    if x.stride(1) != 1 or out.stride(1) != 1 or ldx < inputs or ldo < vocabulary:
        raise ValueError("x and out must have unit column strides and rows that do not overlap")
    if ldx % 8 or x.data_ptr() % 16 or rows * ldx >= _MOST_ELEMENTS:
        raise ValueError(f"x must start at 16 bytes and have rows of 16 bytes, row stride {ldx}")
    library.launch(
        library.function(SOURCE, plan.entry),
        grid=plan.grid,
        threads=plan.threads,
        shared_bytes=plan.shared_bytes,
        arguments=[
            *(ctypes.c_void_p(tensor.data_ptr()) for tensor in (out, x, codes, scale)),
            *(ctypes.c_int32(n) for n in (rows, vocabulary, inputs, ldx, ldo, 0)),
        ],
    )
