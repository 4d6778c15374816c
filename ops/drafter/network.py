# SPDX-License-Identifier: MIT OR Apache-2.0
"""Batched training forward of a block drafter: many blocks of one sequence at once.

The arithmetic of `engine.model.block_reference` in float32, without its rounding points.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engine.model.block_config import BlockConfig

Weights = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Context:
    """Keys and values of every layer, float32 [B, KV heads, T, D] each, from the fused target states."""

    layers: tuple[tuple[Tensor, Tensor], ...]


class BlockNetwork:
    """Pure functions of (weights, target states); holds only sizes and rotary tables."""

    def __init__(self, config: BlockConfig) -> None:
        self.config = config
        even = torch.arange(0, config.head_dim, 2, dtype=torch.float32)
        inverse = 1.0 / config.rope_theta ** (even / config.head_dim)
        half = torch.arange(config.context_tokens + 2 * config.block_size).float()[:, None]
        angles = torch.cat((half * inverse, half * inverse), -1)
        self._cos, self._sin = angles.cos(), angles.sin()

    def context(self, w: Weights, taps: Tensor) -> Context:
        """Fused states of taps [B, T, taps * hidden], turned into every layer's keys and values."""
        fused = self._norm(w, "hidden_norm", functional.linear(taps, w["fc.weight"]))
        positions = torch.arange(taps.shape[1])
        layers = []
        for layer in range(self.config.layers):
            prefix = f"layers.{layer}.self_attn."
            layers.append(self._key_value(w, prefix, fused, positions))
        return Context(tuple(layers))

    def block(
        self, w: Weights, context: Context, embedded: Tensor, anchors: Tensor, width: int
    ) -> Tensor:
        """Final-normed rows of blocks that follow different anchors of the same sequences.

        Args:
            embedded: [B, A, width, hidden], the anchors' embeddings and the mask token's behind each.
            anchors: int64 [B, A], positions of the anchors; a block sees the context before its anchor.

        Returns:
            [B, A, width, hidden]; row j stands for position anchor + j.
        """
        batch, count = anchors.shape
        rows = anchors[..., None] + torch.arange(width)  # [B, A, W]
        mask = self._mask(anchors, width, context.layers[0][0].shape[2])
        x = embedded.reshape(batch, count * width, -1)
        flat = rows.reshape(batch, -1)
        for layer in range(self.config.layers):
            prefix = f"layers.{layer}."
            normed = self._norm(w, prefix + "input_layernorm", x)
            normed, kernel = self._prepare(w, prefix + "attention_conv.", normed, width)
            mixed = self._attend(
                w, prefix + "self_attn.", normed, context.layers[layer], flat, mask
            )
            x = x + self._convolve(mixed, kernel[1], width)
            normed = self._norm(w, prefix + "post_attention_layernorm", x)
            normed, kernel = self._prepare(w, prefix + "mlp_conv.", normed, width)
            gate = functional.linear(normed, w[prefix + "mlp.gate_proj.weight"])
            up = functional.linear(normed, w[prefix + "mlp.up_proj.weight"])
            mixed = functional.linear(
                functional.silu(gate) * up, w[prefix + "mlp.down_proj.weight"]
            )
            x = x + self._convolve(mixed, kernel[1], width)
        return self._norm(w, "norm", x).view(batch, count, width, -1)

    def logits(self, hidden: Tensor, head: Tensor) -> Tensor:
        """Logits of the target's head, scaled and capped as the drafter asks."""
        logits = functional.linear(hidden, head) * self.config.output_multiplier
        cap = self.config.softcap
        return cap * torch.tanh(logits / cap) if cap else logits

    def transition(
        self, w: Weights, hidden: Tensor, previous: Tensor, candidates: Tensor
    ) -> Tensor:
        """What the selector adds to the logits of candidates [N, C] behind previous tokens [N]."""
        inner = functional.linear(hidden, w["candidate_selector.hidden_projection.weight"])
        left = w["candidate_selector.predecessor_codebook"][previous] * inner
        right = w["candidate_selector.successor_codebook"][candidates]
        return (right @ left[..., None]).squeeze(-1)

    def _norm(self, w: Weights, name: str, x: Tensor) -> Tensor:
        unit = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.config.rms_eps)
        return unit * w[name + ".weight"]

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate-half of x [B, T, heads, D] at positions [T] or [B, T]."""
        cos, sin = self._cos[positions][..., None, :], self._sin[positions][..., None, :]
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    def _key_value(
        self, w: Weights, prefix: str, x: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        shape = (*x.shape[:2], self.config.kv_heads, self.config.head_dim)
        k = functional.linear(x, w[prefix + "k_proj.weight"]).view(shape)
        v = functional.linear(x, w[prefix + "v_proj.weight"]).view(shape)
        k = self._rotate(self._norm(w, prefix + "k_norm", k), positions)
        return k.transpose(1, 2), v.transpose(1, 2)

    def _attend(
        self,
        w: Weights,
        prefix: str,
        x: Tensor,
        context: tuple[Tensor, Tensor],
        positions: Tensor,
        mask: Tensor,
    ) -> Tensor:
        c = self.config
        q = functional.linear(x, w[prefix + "q_proj.weight"])
        q = q.view(*x.shape[:2], c.attention_heads, c.head_dim)
        q = self._rotate(self._norm(w, prefix + "q_norm", q), positions).transpose(1, 2)
        own_k, own_v = self._key_value(w, prefix, x, positions)
        group = c.attention_heads // c.kv_heads
        k = torch.cat((context[0], own_k), 2).repeat_interleave(group, 1)
        v = torch.cat((context[1], own_v), 2).repeat_interleave(group, 1)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return functional.linear(mixed.transpose(1, 2).flatten(2), w[prefix + "o_proj.weight"])

    def _mask(self, anchors: Tensor, width: int, tokens: int) -> Tensor:
        """bool [B, 1, A * W, T + A * W]: the context before the anchor, and the rows of the own block."""
        batch, count = anchors.shape
        keys = torch.arange(tokens)
        rows = anchors[..., None] + torch.arange(width)
        seen = (keys < anchors[..., None, None]) & (rows[..., None] - keys < self.config.window)
        own = torch.eye(count, dtype=torch.bool)[:, None, :, None]
        own = own.expand(count, width, count, width).reshape(1, count * width, count * width)
        seen = seen.reshape(batch, count * width, tokens)
        return torch.cat((seen, own.expand(batch, -1, -1)), -1)[:, None]

    def _prepare(
        self, w: Weights, prefix: str, x: Tensor, width: int
    ) -> tuple[Tensor, list[Tensor]]:
        """x after its input convolution, and the coefficients [.., taps, hidden] of both sides."""
        c = self.config
        dynamic = functional.linear(x, w[prefix + "kernel_projection.weight"])
        dynamic = dynamic.view(*x.shape[:2], 2, 2, c.conv_groups, 1)
        base = w[prefix + "base_kernel"].view(2, 2, c.conv_groups, c.conv_group)
        both = (base + dynamic).flatten(-2)
        kernel = [both[:, :, side] for side in range(2)]
        return self._convolve(x, kernel[0], width), kernel

    def _convolve(self, x: Tensor, kernel: Tensor, width: int) -> Tensor:
        blocks = x.unflatten(1, (-1, width))
        before = functional.pad(blocks[:, :, :-1], (0, 0, 1, 0)).flatten(1, 2)
        return kernel[:, :, 0] * x + kernel[:, :, 1] * before
