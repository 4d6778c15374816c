# SPDX-License-Identifier: MIT OR Apache-2.0
"""Weight records with every linear dense, for the readable operations."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import fields, replace
from typing import TypeVar

import torch
from torch import Tensor

from engine.load.stored import Dense, Fp8Block, Fp8Row, Nvfp4
from engine.load.weights import ModelWeights, parts_of

_EXACT = ("a_log", "dt_bias", "gdn_norm")

Record = TypeVar("Record")


def first_unsound(record: object) -> str:
    """The first weight of a record of `in_dtype` that holds a NaN or an infinity, in words; empty for none."""
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, tuple):
            inner = [(f"expert {at}, ", first_unsound(item)) for at, item in enumerate(value)]
            found = next((place + name for place, name in inner if name), "")
        elif isinstance(value, Dense | Tensor):
            sound = (value.weight if isinstance(value, Dense) else value).isfinite().all()
            found = "" if sound else f"weight {field.name}"
        else:
            found = "" if value is None else first_unsound(value)
        if found:
            return found
    return ""


def first_suspect(weights: ModelWeights, head: Tensor, states: Mapping[int, Tensor]) -> str:
    """The first place that holds a NaN or an infinity, in words.

    Args:
        weights: a record of `in_dtype`.
        head: the output head, dense.
        states: the recurrent state of every delta layer.
    """
    if not weights.embed.isfinite().all():
        return "the token embedding"
    for index, layer in enumerate(weights.layers):
        unsound = first_unsound(layer)
        if unsound:
            return f"layer {index}, {unsound}"
    for index, state in states.items():
        if not state.isfinite().all():
            return f"layer {index}, recurrent state"
    if not weights.final_norm.isfinite().all():
        return "the final norm"
    if not head.isfinite().all():
        return "the output head"
    return "the state of this sequence; every weight is sound"


def unpacked_bytes(weights: ModelWeights, dtype: torch.dtype) -> int:
    """Bytes that dense linears in dtype and a float32 head take beside the stored weights."""
    item, total = dtype.itemsize, 4 * math.prod(weights.head_linear.shape)
    for part in parts_of(weights):
        plain = part if isinstance(part, Tensor) else getattr(part, "weight", None)
        if plain is None or plain.dtype != dtype:
            total += item * math.prod(part.shape)
    return total


def in_dtype(record: Record, dtype: torch.dtype, keep: Container[str] = _EXACT) -> Record:
    """The same record with every linear dense and every tensor in dtype; fields named in `keep` stay."""
    changes = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, tuple):
            changes[field.name] = tuple(in_dtype(item, dtype, keep) for item in value)
        elif isinstance(value, Dense | Nvfp4 | Fp8Block | Fp8Row):
            changes[field.name] = Dense(value.dequantise().to(dtype))
        elif isinstance(value, Tensor):
            changes[field.name] = value if field.name in keep else value.to(dtype)
        elif value is not None:
            changes[field.name] = in_dtype(value, dtype, keep)
    return replace(record, **changes)
