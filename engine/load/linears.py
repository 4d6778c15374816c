# SPDX-License-Identifier: MIT OR Apache-2.0
"""Reads planned linears and small tensors into memory, and refuses values that are no numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.errors import CheckpointError
from engine.load import formats
from engine.load.formats import LinearPlan
from engine.load.reader import TensorReader
from engine.load.safetensors_index import TensorEntry
from engine.load.stored import Dense, Fp8Block, Fp8Row, Nvfp4, StoredLinear
from engine.numbers import grouped
from kernels.cpu.threads import one_torch_thread

_LARGEST_E4M3 = 0x7E  # the byte of 448; the next one is NaN
_MINUS_ZERO = 0x80
_LARGEST_FP8 = 448.0
_LARGEST_NVFP4 = 6.0 * 448.0  # e2m1 code times block scale
_LARGEST_WEIGHT = torch.finfo(torch.bfloat16).max


def read_linear(
    reader: TensorReader, plan: LinearPlan, *, keep_float32: bool = False
) -> StoredLinear:
    """The linear in its stored form; a plain one in bf16, or as it is when float32 is kept.

    Raises:
        CheckpointError: a weight or a scale that is no finite number, or a scale that no product takes.
    """
    codes = reader.read(plan.codes)
    if plan.form == formats.DENSE:
        weight = rounded(codes, keep_float32=keep_float32)
        refuse_invalid(weight, plan.codes)
        return Dense(weight)
    if plan.form in (formats.NVFP4_MULTIPLY, formats.NVFP4_DIVIDE):
        scales = reader.read(plan.scale)
        _refuse_block_scales(scales, plan.scale)
        return Nvfp4(codes, scales, _scale_2(reader, plan))
    refuse_invalid(codes, plan.codes)
    scale = reader.read(plan.scale).float()
    refuse_invalid(scale, plan.scale)
    _refuse_overflow(scale, plan.scale)
    if plan.form == formats.FP8_BLOCKS:
        return Fp8Block(codes, scale)
    return Fp8Row(codes, scale.reshape(-1).expand(plan.slot.rows).contiguous())


def rounded(tensor: Tensor, *, keep_float32: bool = False) -> Tensor:
    """The tensor in bf16, or as it is when it is float32 and that is kept."""
    keep = keep_float32 and tensor.dtype == torch.float32
    return tensor if keep else tensor.to(torch.bfloat16)


def refuse_invalid(tensor: Tensor, entry: TensorEntry) -> None:
    """Raise CheckpointError when a value is NaN or infinite; e4m3 has no infinities."""
    if _all_finite(tensor):
        return
    if tensor.dtype == torch.float8_e4m3fn:
        tensor = tensor.float()
    bad = int((~torch.isfinite(tensor)).sum())
    raise CheckpointError(
        f"{entry.file.name}: tensor {entry.name} holds {grouped(bad)} of {grouped(tensor.numel())} values "
        "that are NaN or infinite.",
        next_step="Download this file again.",
    )


def _all_finite(tensor: Tensor) -> bool:
    """Many times faster than a file is read, and without a copy: a load asks it of every weight.

    On one thread: others that wait for their part of it take the cores from the copying.
    """
    with one_torch_thread():
        if tensor.dtype == torch.float8_e4m3fn:
            # The bytes 0x7f and 0xff are NaN: the largest with a sign, the largest without one.
            signed, plain = tensor.view(torch.int8), tensor.view(torch.uint8)
            return int(signed.max()) < 0x7F and int(plain.max()) < 0xFF
        return bool(torch.stack(tensor.aminmax()).isfinite().all())  # a NaN anywhere is both


def _refuse_overflow(scale: Tensor, entry: TensorEntry) -> None:
    """An FP8 scale has to keep the largest weight that it can make finite."""
    largest = float(scale.abs().max())
    if largest * _LARGEST_FP8 > _LARGEST_WEIGHT:
        raise CheckpointError(
            f"{entry.file.name}: tensor {entry.name} holds a scale of {largest:.3g}, which makes weights "
            "infinite.",
            next_step="Download this file again, or choose another quantisation.",
        )


def _refuse_block_scales(scales: Tensor, entry: TensorEntry) -> None:
    """Block scales are magnitudes: a sign or a NaN among them is damage, or another meaning of the byte."""
    raw = scales.view(torch.uint8)
    if int(raw.max()) <= _LARGEST_E4M3:
        return
    bad = int(((raw > _MINUS_ZERO) | (raw == _LARGEST_E4M3 + 1)).sum())
    if bad:
        raise CheckpointError(
            f"{entry.file.name}: tensor {entry.name} holds {bad} of {scales.numel()} scales that are "
            "negative or NaN.",
            next_step="Download this file again, or choose another quantisation.",
        )


def _scale_2(reader: TensorReader, plan: LinearPlan) -> float:
    value = reader.read(plan.scale_2).item()
    good = math.isfinite(value) and value > 0
    scale_2 = 1.0 / value if good and plan.form == formats.NVFP4_DIVIDE else value
    # The largest weight it makes has to be a number, too.
    if not good or scale_2 * _LARGEST_NVFP4 > _LARGEST_WEIGHT:
        raise CheckpointError(
            f"{plan.scale_2.file.name}: tensor {plan.scale_2.name} is {value}; a scale above 0 that "
            "keeps weights finite is expected.",
            next_step="Download this file again, or choose another quantisation.",
        )
    return scale_2
