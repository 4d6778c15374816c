# SPDX-License-Identifier: MIT OR Apache-2.0
"""Rotation of head vectors on a GPU: `rotate(library, x, first, second, out)`; twin `reference.rotate`."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.triton_operands import require

if TYPE_CHECKING:
    from kernels.cuda_build import CudaLibrary

SOURCE = "hadamard/wht.cu"
DIMS = (64, 128, 256, 512)
_WARPS = 4


def entry_name(dim: int) -> str:
    """The kernel for vectors of so many elements."""
    return f"rondo_hadamard_d{dim}"


def entries() -> dict[str, tuple[str, ...]]:
    """Every kernel this module can launch, by source."""
    return {SOURCE: tuple(entry_name(dim) for dim in DIMS)}


@dataclass(frozen=True)
class RotateLaunch:
    """Which kernel, over how many blocks."""

    entry: str
    grid: int
    threads: int


def plan_launch(*, vectors: int, dim: int) -> RotateLaunch:
    """The launch for `vectors` vectors.

    Raises:
        ValueError: a size without a kernel, or no vector.
    """
    if dim not in DIMS:
        raise ValueError(f"a rotation takes vectors of {', '.join(map(str, DIMS))}, got {dim}")
    if vectors < 1:
        raise ValueError(f"a rotation takes at least one vector, got {vectors}")
    return RotateLaunch(entry_name(dim), -(-vectors // _WARPS), 32 * _WARPS)


def rotate(library: CudaLibrary, x: Tensor, first: Tensor, second: Tensor, out: Tensor) -> None:
    """out = round(second * H (first * x)) for every vector; the inverse with both exchanged.

    Args:
        x, out: bf16 [n, D], contiguous, D of DIMS; `out` may be `x`.
        first, second: float32 [D].

    Raises:
        ValueError: an operand differs from the above; nothing was launched.
    """
    vectors, dim = require("x", x, torch.bfloat16, (None, None)).shape
    plan = plan_launch(vectors=vectors, dim=dim)
    require("out", out, torch.bfloat16, (vectors, dim))
    require("first", first, torch.float32, (dim,))
    require("second", second, torch.float32, (dim,))
    for name, tensor in (("x", x), ("out", out), ("first", first), ("second", second)):
        if tensor.device != library.device:
            raise ValueError(f"{name} is on {tensor.device}, the kernels are on {library.device}")
    library.launch(
        library.function(SOURCE, plan.entry),
        grid=plan.grid,
        threads=plan.threads,
        shared_bytes=0,
        arguments=[
            *(ctypes.c_void_p(tensor.data_ptr()) for tensor in (out, x, first, second)),
            ctypes.c_float(dim**-0.5),
            ctypes.c_int32(vectors),
        ],
    )
