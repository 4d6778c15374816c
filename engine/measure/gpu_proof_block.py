# SPDX-License-Identifier: MIT OR Apache-2.0
"""A small random block drafter for the proofs of a GPU."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from engine.load.drafter import BlockCheckpoint, BlockLayerWeights, BlockWeights
from engine.load.stored import Dense
from engine.model.block_config import CONV_SIDES, CONV_TAPS, BlockConfig
from engine.model.config import ModelConfig


def random_block(target: ModelConfig, *, seed: int = 0) -> BlockCheckpoint:
    """Two layers that read the first and the last stream of `target`; equal seeds give equal weights."""
    hidden = target.hidden_size
    config = BlockConfig(
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        layers=2,
        attention_heads=4,
        kv_heads=2,
        head_dim=32,
        vocab_size=target.vocab_size,
        rms_eps=1e-6,
        rope_theta=1e4,
        window=24,
        block_size=16,
        conv_group=16,
        selector_rank=16,
        top_k=8,
        mask_id=1,
        taps=(0, target.layers - 1),
        tap_offset=1,
        target_layers=target.layers,
        context_tokens=target.context_tokens,
    )
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int, around: float = 0.0, spread: float = 0.2) -> Tensor:
        return (around + spread * torch.randn(shape, generator=generator)).bfloat16()

    def linear(rows: int, columns: int) -> Dense:
        return Dense(drawn(rows, columns, spread=columns**-0.5))

    def layer() -> BlockLayerWeights:
        taps = CONV_SIDES * CONV_TAPS * config.conv_groups
        return BlockLayerWeights(
            input_norm=drawn(hidden, around=1.0),
            q=linear(config.attention_width, hidden),
            k=linear(config.kv_width, hidden),
            v=linear(config.kv_width, hidden),
            o=linear(hidden, config.attention_width),
            q_norm=drawn(config.head_dim, around=1.0),
            k_norm=drawn(config.head_dim, around=1.0),
            post_norm=drawn(hidden, around=1.0),
            gate=linear(config.intermediate_size, hidden),
            up=linear(config.intermediate_size, hidden),
            down=linear(hidden, config.intermediate_size),
            attention_conv=drawn(CONV_SIDES, CONV_TAPS, hidden, around=0.5),
            attention_kernel=linear(taps, hidden),
            mlp_conv=drawn(CONV_SIDES, CONV_TAPS, hidden, around=0.5),
            mlp_kernel=linear(taps, hidden),
        )

    weights = BlockWeights(
        fc=linear(hidden, len(config.taps) * hidden),
        hidden_norm=drawn(hidden, around=1.0),
        norm=drawn(hidden, around=1.0),
        hidden_projection=linear(config.selector_rank, hidden),
        predecessor=drawn(config.vocab_size, config.selector_rank),
        successor=drawn(config.vocab_size, config.selector_rank),
        layers=tuple(layer() for _ in range(config.layers)),
    )
    return BlockCheckpoint(Path(), "random", config, weights, ())
