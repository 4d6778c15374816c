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


def read_linear(
    reader: TensorReader, plan: LinearPlan, *, keep_float32: bool = False
) -> StoredLinear:
    """The linear in its stored form; a plain one in bf16, or as it is when float32 is kept.

    Raises:
        CheckpointError: a scale that is no number, or a matrix scale that is not above 0.
    """
    codes = reader.read(plan.codes)
    if plan.form == formats.DENSE:
        return Dense(rounded(codes, keep_float32=keep_float32))
    if plan.form in (formats.NVFP4_MULTIPLY, formats.NVFP4_DIVIDE):
        return Nvfp4(codes, reader.read(plan.scale), _scale_2(reader, plan))
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


def _scale_2(reader: TensorReader, plan: LinearPlan) -> float:
    value = reader.read(plan.scale_2).item()
    if not (math.isfinite(value) and value > 0):
        raise CheckpointError(
            f"{plan.scale_2.file.name}: tensor {plan.scale_2.name} is {value}; a scale above 0 is "
            "expected.",
            next_step="Download this file again, or choose another quantisation.",
        )
    return value if plan.form == formats.NVFP4_MULTIPLY else 1.0 / value
