# SPDX-License-Identifier: MIT OR Apache-2.0
"""Native choice of tokens from logits."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from kernels.cpu.buffers import require, require_rows
from kernels.tape import StepModel, Tape

MAX_TOP_K = 256


class _ArgmaxArgs(ctypes.Structure):
    _fields_ = [
        ("logits", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("rows", ctypes.c_int32),
        ("vocabulary", ctypes.c_int32),
    ]


class _LogSumExpArgs(ctypes.Structure):
    _fields_ = [
        ("logits", ctypes.c_void_p),
        ("sums", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("rows", ctypes.c_int32),
        ("vocabulary", ctypes.c_int32),
    ]


class _TopKArgs(ctypes.Structure):
    _fields_ = [*_ArgmaxArgs._fields_, ("k", ctypes.c_int32)]


def argmax(
    tape: Tape, *, logits: Tensor, ids: Tensor, rows: int, values: Tensor | None = None
) -> None:
    """ids[r] = index of the largest logit of row r, the lowest among equals.

    A row that holds a NaN gives -1 (and NaN in `values`).

    Args:
        logits: float32 [>= rows, V], unit column stride; every column counts.
        ids: int32 [>= rows].
        values: float32 [>= rows], the largest logits, or None.

    Raises:
        ValueError: an operand differs from the above.
    """
    vocabulary = logits.shape[1]
    logits_at, stride = require_rows("logits", logits, torch.float32, rows, vocabulary)
    args = _ArgmaxArgs(
        logits_at,
        _require_results("ids", ids, torch.int32, rows),
        0 if values is None else _require_results("values", values, torch.float32, rows),
        stride,
        rows,
        vocabulary,
    )
    tape.append(
        StepModel("argmax", bytes_read=4 * rows * vocabulary, flops=rows * vocabulary),
        "rondo_argmax",
        args,
        (logits, ids, values),
    )


def top_k(tape: Tape, *, logits: Tensor, ids: Tensor, values: Tensor, rows: int) -> None:
    """The k largest logits of each row, value descending, then index ascending.

    A row that holds a NaN gives -1 in every place (and NaN values).

    Args:
        logits: float32 [>= rows, V], unit column stride.
        ids, values: int32 and float32 [>= rows, k], contiguous; k in 1..min(256, V).

    Raises:
        ValueError: an operand differs from the above.
    """
    vocabulary, k = logits.shape[1], ids.shape[1]
    if not 1 <= k <= min(MAX_TOP_K, vocabulary):
        raise ValueError(f"k must lie in 1..{min(MAX_TOP_K, vocabulary)}, got {k}")
    if min(ids.shape[0], values.shape[0]) < rows:
        raise ValueError(f"ids and values must hold at least {rows} rows")
    logits_at, stride = require_rows("logits", logits, torch.float32, rows, vocabulary)
    args = _TopKArgs(
        logits_at,
        require("ids", ids, torch.int32, (None, k)),
        require("values", values, torch.float32, (None, k)),
        stride,
        rows,
        vocabulary,
        k,
    )
    tape.append(
        StepModel("top_k", bytes_read=4 * rows * vocabulary, flops=rows * vocabulary),
        "rondo_top_k",
        args,
        (logits, ids, values),
    )


def log_sum_exp(tape: Tape, *, logits: Tensor, sums: Tensor, rows: int) -> None:
    """sums[r] = ln of the sum of e^logit over row r, so that e^(logit - sum) is a probability.

    A row that holds a NaN or an infinity, or only -infinity, gives NaN.

    Args:
        logits: float32 [>= rows, V], unit column stride.
        sums: float32 [>= rows].

    Raises:
        ValueError: an operand differs from the above.
    """
    vocabulary = logits.shape[1]
    logits_at, stride = require_rows("logits", logits, torch.float32, rows, vocabulary)
    sums_at = _require_results("sums", sums, torch.float32, rows)
    tape.append(
        StepModel("log_sum_exp", bytes_read=8 * rows * vocabulary, flops=20 * rows * vocabulary),
        "rondo_log_sum_exp",
        _LogSumExpArgs(logits_at, sums_at, stride, rows, vocabulary),
        (logits, sums),
    )


def _require_results(name: str, tensor: Tensor, dtype: torch.dtype, rows: int) -> int:
    if tensor.numel() < rows:
        raise ValueError(f"{name} must hold at least {rows} values, got {tensor.numel()}")
    return require(name, tensor, dtype, (None,))
