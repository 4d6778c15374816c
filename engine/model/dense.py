# SPDX-License-Identifier: MIT OR Apache-2.0
"""Weight records with every linear dense, for the readable operations."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import fields, replace
from typing import TypeVar

import torch
from torch import Tensor

from engine.load.stored import Dense, Fp8Block, Fp8Row, Nvfp4

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
