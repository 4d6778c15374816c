# SPDX-License-Identifier: MIT OR Apache-2.0
"""The state of one sequence: KV of the attention layers, recurrent state and convolution tail of the others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.config import ModelConfig

CONV_TAIL = 3  # rows a width-4 convolution looks back


@dataclass(slots=True)
class KvCache:
    """Keys and values [capacity, kv heads, head dim]; rows at or past `length` are garbage."""

    keys: Tensor
    values: Tensor
    length: int = 0

    @staticmethod
    def empty(capacity: int, heads: int, head_dim: int, dtype: torch.dtype) -> KvCache:
        """A cache without rows; its pages are taken from the system as rows are written."""
        shape = (capacity, heads, head_dim)
        return KvCache(torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=dtype))

    def write(self, keys: Tensor, values: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Store rows at `start` and return views of all rows up to their end."""
        end = start + keys.shape[0]
        self.keys[start:end] = keys
        self.values[start:end] = values
        return self.keys[:end], self.values[:end]


@dataclass(slots=True)
class RecurrentState:
    """A Gated DeltaNet layer's state: float32 [Hv, dk, dv] and the last raw rows [3, channels]."""

    state: Tensor
    tail: Tensor

    @staticmethod
    def zeros(config: ModelConfig, dtype: torch.dtype) -> RecurrentState:
        """The state before the first token."""
        return RecurrentState(
            torch.zeros(config.value_heads, config.key_dim, config.value_dim),
            torch.zeros(CONV_TAIL, config.qkv_rows, dtype=dtype),
        )
