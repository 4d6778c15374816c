# SPDX-License-Identifier: MIT OR Apache-2.0
"""Native FP32 to E2M1 conversion and back."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from kernels.cpu.buffers import require
from kernels.tape import StepModel, Tape


class _E2m1Args(ctypes.Structure):
    _fields_ = [
        ("values", ctypes.c_void_p),
        ("packed", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("count", ctypes.c_int64),
    ]


def encode(tape: Tape, values: Tensor, out: Tensor) -> None:
    """Record out = packed codes of `values`: nearest, ties to even, saturating at 6.

    Args:
        values: float32 [n], n even. out: uint8 [n / 2], the even element in the low nibble.

    Raises:
        ValueError: an operand does not fit, or n is odd.
    """
    address = require("values", values, torch.float32, (None,), alignment=4)
    count = values.numel()
    if count % 2:
        raise ValueError(f"values must hold an even number of elements, got {count}")
    args = _E2m1Args(address, None, require("out", out, torch.uint8, (count // 2,)), count)
    tape.append(
        StepModel("e2m1.encode", bytes_read=4 * count),
        "rondo_e2m1_encode",
        args,
        (values, out),
    )


def decode(tape: Tape, packed: Tensor, out: Tensor) -> None:
    """Record out = values of the packed codes.

    Args:
        packed: uint8 [n / 2], the even element in the low nibble. out: float32 [n].

    Raises:
        ValueError: an operand does not fit.
    """
    address = require("packed", packed, torch.uint8, (None,))
    count = packed.numel() * 2
    target = require("out", out, torch.float32, (count,), alignment=4)
    args = _E2m1Args(None, address, target, count)
    tape.append(
        StepModel("e2m1.decode", bytes_read=count // 2),
        "rondo_e2m1_decode",
        args,
        (packed, out),
    )
