# SPDX-License-Identifier: MIT OR Apache-2.0
"""What every forward pass of a block drafter shares, whichever kernels compute it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.load.drafter import BlockWeights
from engine.load.weights import parts_of
from engine.model.block_config import BlockConfig


@dataclass(frozen=True, slots=True)
class BlockRows:
    """What one draft computed for each slot behind the anchor.

    Attributes:
        tokens: int32 [slots, K], the likeliest tokens, descending; -1 where no number was computed.
        logits: float32 [slots, K], theirs, scaled and capped as the drafter asks.
        projected: float32 [slots, rank], the selector's view of each slot.
    """

    tokens: np.ndarray
    logits: np.ndarray
    projected: np.ndarray


@dataclass(frozen=True, slots=True)
class BlockBytes:
    """What the parts of a drafter weigh, as they are stored."""

    fusion: int  # read for committed rows
    layers: int
    selector: int  # the hidden projection; of the codebooks only some rows are read
    kv_per_token: int  # bf16

    @staticmethod
    def of(config: BlockConfig, weights: BlockWeights) -> BlockBytes:
        """The byte counts of loaded weights."""
        layers = sum(part.nbytes for layer in weights.layers for part in parts_of(layer))
        return BlockBytes(
            fusion=weights.fc.nbytes + weights.hidden_norm.nbytes,
            layers=layers + weights.norm.nbytes,
            selector=weights.hidden_projection.nbytes,
            kv_per_token=4 * config.kv_width * config.layers,
        )

    def draft(self, context_tokens: int) -> int:
        """Bytes of one draft without the target's head: fusion of new rows, layers, selector, cache."""
        return self.fusion + self.layers + self.selector + self.kv_per_token * context_tokens


def check_width(width: int, room: int) -> None:
    """Raise ValueError unless a block of `width` rows fits."""
    if not 2 <= width <= room:
        raise ValueError(f"a block has 2 to {room} rows here, got {width}")


def block_room(config: BlockConfig, length: int, capacity: int) -> int:
    """Rows of a block behind `length` committed positions, all within the drafter's and the model's context."""
    return min(config.block_size, min(capacity, config.context_tokens) - length)


def shaped(config: BlockConfig, logits: np.ndarray) -> np.ndarray:
    """Logits after the multiplier and the soft cap that a drafter may ask for."""
    logits = logits * np.float32(config.output_multiplier)
    if config.softcap:
        logits = np.float32(config.softcap) * np.tanh(logits / np.float32(config.softcap))
    return logits


def bits_of(table: Tensor) -> np.ndarray:
    """A bf16 tensor's bits as uint16, without a copy: NumPy has no bfloat16."""
    return table.view(torch.int16).numpy().view(np.uint16)
