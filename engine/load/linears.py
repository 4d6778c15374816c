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

_LARGEST_E4M3 = 0x7E  # the byte of 448; the next one is NaN
_MINUS_ZERO = 0x80
_LARGEST_NVFP4 = 6.0 * 448.0  # e2m1 code times block scale


def read_linear(
    reader: TensorReader, plan: LinearPlan, *, keep_float32: bool = False
) -> StoredLinear:
    """The linear in its stored form; a plain one in bf16, or as it is when float32 is kept.

    Raises:
        CheckpointError: a scale that is no number, or an NVFP4 scale that no product takes.
    """
    codes = reader.read(plan.codes)
    if plan.form == formats.DENSE:
        return Dense(rounded(codes, keep_float32=keep_float32))
    if plan.form in (formats.NVFP4_MULTIPLY, formats.NVFP4_DIVIDE):
        scales = reader.read(plan.scale)
        _refuse_block_scales(scales, plan.scale)
        return Nvfp4(codes, scales, _scale_2(reader, plan))
    scale = reader.read(plan.scale).float()
    refuse_invalid(scale, plan.scale)
    if plan.form == formats.FP8_BLOCKS:
        return Fp8Block(codes, scale)
    return Fp8Row(codes, scale.reshape(-1).expand(plan.slot.rows).contiguous())


def rounded(tensor: Tensor, *, keep_float32: bool = False) -> Tensor:
    """The tensor in bf16, or as it is when it is float32 and that is kept."""
    keep = keep_float32 and tensor.dtype == torch.float32
    return tensor if keep else tensor.to(torch.bfloat16)


def refuse_invalid(tensor: Tensor, entry: TensorEntry) -> None:
    """Raise CheckpointError when a value is NaN or infinite."""
    bad = int((~torch.isfinite(tensor)).sum())
    if bad:
        raise CheckpointError(
            f"{entry.file.name}: tensor {entry.name} holds {bad} of {tensor.numel()} values that are "
            "NaN or infinite.",
            next_step="Download this file again.",
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
    if not good or scale_2 * _LARGEST_NVFP4 > torch.finfo(torch.float32).max:
        raise CheckpointError(
            f"{plan.scale_2.file.name}: tensor {plan.scale_2.name} is {value}; a scale above 0 that "
            "keeps weights finite is expected.",
            next_step="Download this file again, or choose another quantisation.",
        )
    return scale_2
