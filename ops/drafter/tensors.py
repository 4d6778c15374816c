# SPDX-License-Identifier: MIT OR Apache-2.0
"""Freshly initialised tensors of a block drafter under their published names."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.model.block_config import BlockConfig


def initial_tensors(config: BlockConfig, seed: int, final_norm: Tensor) -> dict[str, Tensor]:
    """Float32 tensors: convolutions start as the identity, the selector adds next to nothing.

    `final_norm` [hidden] scales what the target's head reads; the drafter's own starts from it.
    """
    generator = torch.Generator().manual_seed(seed)
    hidden, inner = config.hidden_size, config.intermediate_size
    tensors: dict[str, Tensor] = {}

    def matrix(name: str, rows: int, columns: int, scale: float = 1.0) -> None:
        values = torch.randn(rows, columns, generator=generator)
        tensors[name + ".weight"] = values * scale * columns**-0.5

    def ones(name: str, size: int) -> None:
        tensors[name + ".weight"] = torch.ones(size)

    def conv(prefix: str) -> None:
        base = torch.zeros(2, 2, hidden)
        base[:, 0] = 1.0
        tensors[prefix + "base_kernel"] = base
        matrix(prefix + "kernel_projection", 4 * config.conv_groups, hidden, 0.1)

    matrix("fc", hidden, len(config.taps) * hidden)
    ones("hidden_norm", hidden)
    tensors["norm.weight"] = 0.5 * final_norm  # an untrained row should not be sure of a token
    out_scale = (2 * config.layers) ** -0.5
    for layer in range(config.layers):
        prefix = f"layers.{layer}."
        ones(prefix + "input_layernorm", hidden)
        ones(prefix + "post_attention_layernorm", hidden)
        matrix(prefix + "self_attn.q_proj", config.attention_width, hidden)
        matrix(prefix + "self_attn.k_proj", config.kv_width, hidden)
        matrix(prefix + "self_attn.v_proj", config.kv_width, hidden)
        matrix(prefix + "self_attn.o_proj", hidden, config.attention_width, out_scale)
        ones(prefix + "self_attn.q_norm", config.head_dim)
        ones(prefix + "self_attn.k_norm", config.head_dim)
        matrix(prefix + "mlp.gate_proj", inner, hidden)
        matrix(prefix + "mlp.up_proj", inner, hidden)
        matrix(prefix + "mlp.down_proj", hidden, inner, out_scale)
        conv(prefix + "attention_conv.")
        conv(prefix + "mlp_conv.")
    matrix("candidate_selector.hidden_projection", config.selector_rank, hidden)
    for name in ("predecessor", "successor"):
        table = torch.randn(config.vocab_size, config.selector_rank, generator=generator)
        tensors[f"candidate_selector.{name}_codebook"] = table * 0.1
    return tensors
