# SPDX-License-Identifier: MIT OR Apache-2.0
"""Freshly initialised tensors of a block drafter under their published names."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

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


@torch.no_grad()
def aim_attention(
    tensors: dict[str, Tensor], config: BlockConfig, taps: Tensor, mask_row: Tensor
) -> None:
    """Start from what is known to help, in place of finding it in the first thousand steps.

    The fusion lets the last tap through at full strength and adds the others. A part of every local head's keys
    is the same for all context rows, and of its queries the same for all mask rows, turned so that their
    product is largest a few positions back: 1, 2, 4 and so on. In the first layer all heads are local, in the
    others the first half.

    Args:
        taps: [T, taps * hidden], streams of a sample of text.
        mask_row: [hidden], the mask token's embedding.
    """
    hidden, dim = config.hidden_size, config.head_dim
    rms = taps.float().view(len(taps), -1, hidden).square().mean((0, 2)).sqrt()
    fc = tensors["fc.weight"].view(hidden, -1, hidden)
    fc *= 0.5 / rms[None, :, None]
    fc[:, -1] += torch.eye(hidden) / rms[-1]
    fused = functional.linear(taps.float(), tensors["fc.weight"])
    mean = functional.rms_norm(fused, (hidden,)).mean(0)
    mean_way = mean / mean.norm()
    mask_way = mask_row.float() / mask_row.float().norm()
    speed = config.rope_theta ** -(torch.arange(0, dim, 2) / dim)
    level = torch.cat((torch.ones(dim // 2), torch.zeros(dim // 2)))
    group = config.attention_heads // config.kv_heads
    for layer in range(config.layers):
        prefix = f"layers.{layer}.self_attn."
        for head in range(config.kv_heads if layer == 0 else max(1, config.kv_heads // 2)):
            rows = slice(head * dim, (head + 1) * dim)
            keys = tensors[prefix + "k_proj.weight"][rows]
            keys *= 0.3
            keys += level[:, None] * mean_way * 2 / mean.norm()
            for query in range(head * group, (head + 1) * group):
                angle = 2.0**query * speed
                turned = torch.cat((angle.cos(), angle.sin()))
                queries = tensors[prefix + "q_proj.weight"][query * dim : (query + 1) * dim]
                queries *= 0.3
                # A normed row has length sqrt(hidden).
                queries += turned[:, None] * mask_way * 2 * hidden**-0.5
