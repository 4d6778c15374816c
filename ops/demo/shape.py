# SPDX-License-Identifier: MIT OR Apache-2.0
"""The demo model's shape and its tensors under their published names."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

TRUNK = "model.language_model."
MTP = "mtp."


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the hybrid; every matrix side is a multiple of 128 except the per-head gates."""

    vocab: int = 4096
    hidden: int = 256
    layers: int = 8
    full_attention_interval: int = 4
    intermediate: int = 512
    heads: int = 4
    kv_heads: int = 1
    head_dim: int = 128
    key_heads: int = 1
    value_heads: int = 3
    linear_dim: int = 128
    conv_width: int = 4
    rope_theta: float = 1e5
    partial_rotary: float = 0.25
    eps: float = 1e-6
    max_positions: int = 4096

    @property
    def rotary_dim(self) -> int:
        return int(self.head_dim * self.partial_rotary)

    @property
    def conv_channels(self) -> int:
        return (2 * self.key_heads + self.value_heads) * self.linear_dim

    def is_full_attention(self, layer: int) -> bool:
        return layer % self.full_attention_interval == self.full_attention_interval - 1


def initial_tensors(shape: Shape, seed: int) -> dict[str, Tensor]:
    """Freshly initialised float32 tensors under the names of the published layout (tied head)."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    out_scale = 1 / math.sqrt(2 * shape.layers)

    def normal(name: str, *sizes: int, std: float) -> None:
        tensors[name] = torch.randn(*sizes, generator=generator) * std

    def matrix(name: str, rows: int, columns: int, scale: float = 1.0) -> None:
        normal(name + ".weight", rows, columns, std=scale * columns**-0.5)

    def norm(name: str, size: int) -> None:
        tensors[name + ".weight"] = torch.zeros(size)

    def mlp(prefix: str) -> None:
        matrix(prefix + "mlp.gate_proj", shape.intermediate, shape.hidden)
        matrix(prefix + "mlp.up_proj", shape.intermediate, shape.hidden)
        matrix(prefix + "mlp.down_proj", shape.hidden, shape.intermediate, out_scale)

    def attention(prefix: str) -> None:
        inner = shape.heads * shape.head_dim
        matrix(prefix + "self_attn.q_proj", 2 * inner, shape.hidden)
        matrix(prefix + "self_attn.k_proj", shape.kv_heads * shape.head_dim, shape.hidden)
        matrix(prefix + "self_attn.v_proj", shape.kv_heads * shape.head_dim, shape.hidden)
        matrix(prefix + "self_attn.o_proj", shape.hidden, inner, out_scale)
        norm(prefix + "self_attn.q_norm", shape.head_dim)
        norm(prefix + "self_attn.k_norm", shape.head_dim)

    def delta(prefix: str) -> None:
        value = shape.value_heads * shape.linear_dim
        prefix += "linear_attn."
        matrix(prefix + "in_proj_qkv", shape.conv_channels, shape.hidden)
        matrix(prefix + "in_proj_z", value, shape.hidden)
        matrix(prefix + "in_proj_b", shape.value_heads, shape.hidden)
        matrix(prefix + "in_proj_a", shape.value_heads, shape.hidden, 0.1)
        matrix(prefix + "out_proj", shape.hidden, value, out_scale)
        normal(prefix + "conv1d.weight", shape.conv_channels, 1, shape.conv_width, std=0.3)
        tensors[prefix + "conv1d.weight"][..., -1] += 0.5
        spread = torch.rand(shape.value_heads, generator=generator)
        tensors[prefix + "A_log"] = (1.0 + 15.0 * spread).log()
        fraction = torch.rand(shape.value_heads, generator=generator)
        step = (math.log(1e-3) + fraction * math.log(1e2)).exp()
        tensors[prefix + "dt_bias"] = step + torch.log(-torch.expm1(-step))
        tensors[prefix + "norm.weight"] = torch.ones(shape.linear_dim)

    normal(TRUNK + "embed_tokens.weight", shape.vocab, shape.hidden, std=0.03)
    norm(TRUNK + "norm", shape.hidden)
    for layer in range(shape.layers):
        prefix = f"{TRUNK}layers.{layer}."
        norm(prefix + "input_layernorm", shape.hidden)
        norm(prefix + "post_attention_layernorm", shape.hidden)
        (attention if shape.is_full_attention(layer) else delta)(prefix)
        mlp(prefix)
    matrix(MTP + "fc", shape.hidden, 2 * shape.hidden)
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        norm(MTP + name, shape.hidden)
    norm(MTP + "layers.0.input_layernorm", shape.hidden)
    norm(MTP + "layers.0.post_attention_layernorm", shape.hidden)
    attention(MTP + "layers.0.")
    mlp(MTP + "layers.0.")
    return tensors
