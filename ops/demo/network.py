# SPDX-License-Identifier: MIT OR Apache-2.0
"""Batched training forward of the hybrid and of its chained multi-token-prediction head."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from kernels.gated_delta.reference import decay_log
from ops.demo.fused import Fused
from ops.demo.shape import MTP, TRUNK, Shape

Weights = Mapping[str, Tensor]


class Network:
    """Pure functions of (weights, token ids); holds only sizes and rotary tables.

    Attributes:
        shape: sizes of the model.
        drop: share of channels silenced per sequence after each mixer and MLP (0 when unused).
        chunk: tokens the delta rule solves together.
    """

    def __init__(
        self, shape: Shape, *, drop: float = 0.0, chunk: int = 32, compiled: bool = False
    ) -> None:
        self.shape, self.drop, self.chunk = shape, drop, chunk
        self.fused = Fused(compiled)
        even = torch.arange(0, shape.rotary_dim, 2, dtype=torch.float32)
        inverse = 1.0 / shape.rope_theta ** (even / shape.rotary_dim)
        half = torch.arange(shape.max_positions + 8).float()[:, None] * inverse
        angles = torch.cat((half, half), -1)
        self._cos, self._sin = angles.cos(), angles.sin()

    def trunk(self, w: Weights, ids: Tensor) -> Tensor:
        """Final-normed hidden [B, T, hidden] of ids [B, T]; T a multiple of half the chunk."""
        x = functional.embedding(ids, w[TRUNK + "embed_tokens.weight"])
        for layer in range(self.shape.layers):
            prefix = f"{TRUNK}layers.{layer}."
            normed = self._norm(w, prefix + "input_layernorm", x)
            if self.shape.is_full_attention(layer):
                q, k, v, gate = self._project(w, prefix, normed, 0)
                mixed = self._finish(w, prefix, self._causal(q, k, v), gate)
            else:
                mixed = self._delta(w, prefix + "linear_attn.", normed)
            x = x + self._thin(mixed)
            x = x + self._thin(self._mlp(w, prefix, x))
        return self._norm(w, TRUNK + "norm", x)

    def logits(self, w: Weights, hidden: Tensor) -> Tensor:
        """Float32 logits of the tied head."""
        return functional.linear(hidden, w[TRUNK + "embed_tokens.weight"]).float()

    def draft(self, w: Weights, hidden: Tensor, ids: Tensor, depth: int) -> list[Tensor]:
        """Hidden states of a chain of drafts started at every position.

        Step s at position p reads the embedding of token p + s and the hidden state of step
        s - 1 (the trunk's for s = 1); it attends to the first-step entries up to p and to its own
        chain, exactly as drafting does. Its head output predicts token p + s + 1.

        Args:
            hidden: final-normed trunk hidden [B, T, hidden]; ids: [B, T].
            depth: chained steps, at least 1.

        Returns:
            depth tensors [B, T, hidden]; positions whose tokens lie beyond T hold no meaning.
        """
        prefix, chain_k, chain_v, answers = MTP + "layers.0.", [], [], []
        base_k = base_v = None
        for step in range(1, depth + 1):
            following = functional.pad(ids[:, step:], (0, step))
            token = functional.embedding(following, w[TRUNK + "embed_tokens.weight"])
            pair = torch.cat(
                (
                    self._norm(w, MTP + "pre_fc_norm_embedding", token),
                    self._norm(w, MTP + "pre_fc_norm_hidden", hidden),
                ),
                -1,
            )
            x = functional.linear(pair, w[MTP + "fc.weight"])
            normed = self._norm(w, prefix + "input_layernorm", x)
            q, k, v, gate = self._project(w, prefix, normed, step - 1)
            if step == 1:
                base_k, base_v = k, v
                mixed = self._causal(q, k, v)
            else:
                chain_k.append(k)
                chain_v.append(v)
                mixed = self._chained(q, base_k, base_v, chain_k, chain_v)
            x = x + self._finish(w, prefix, mixed, gate)
            x = x + self._mlp(w, prefix, x)
            hidden = self._norm(w, MTP + "norm", x)
            answers.append(hidden)
        return answers

    def _norm(self, w: Weights, name: str, x: Tensor) -> Tensor:
        return self.fused.norm(x, w[name + ".weight"], self.shape.eps)

    def _thin(self, x: Tensor) -> Tensor:
        if not self.drop:
            return x
        keep = 1.0 - self.drop
        mask = torch.empty(x.shape[0], 1, x.shape[2], dtype=x.dtype).bernoulli_(keep)
        return x * (mask / keep)

    def _mlp(self, w: Weights, prefix: str, x: Tensor) -> Tensor:
        normed = self._norm(w, prefix + "post_attention_layernorm", x)
        gate = functional.linear(normed, w[prefix + "mlp.gate_proj.weight"])
        up = functional.linear(normed, w[prefix + "mlp.up_proj.weight"])
        return functional.linear(self.fused.swiglu(gate, up), w[prefix + "mlp.down_proj.weight"])

    def _project(
        self, w: Weights, prefix: str, x: Tensor, shift: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q [B, H, T, D], k and v [B, Hkv, T, D], gate [B, T, H * D], rotated from `shift` on."""
        s, (batch, tokens, _) = self.shape, x.shape
        prefix += "self_attn."
        both = functional.linear(x, w[prefix + "q_proj.weight"])
        q, gate = both.view(batch, tokens, s.heads, 2 * s.head_dim).chunk(2, -1)
        k = functional.linear(x, w[prefix + "k_proj.weight"])
        v = functional.linear(x, w[prefix + "v_proj.weight"])
        k, v = (y.view(batch, tokens, s.kv_heads, s.head_dim) for y in (k, v))
        q = self._rotate(self._norm(w, prefix + "q_norm", q), shift)
        k = self._rotate(self._norm(w, prefix + "k_norm", k), shift)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), gate.flatten(2)

    def _rotate(self, x: Tensor, shift: int) -> Tensor:
        rows = slice(shift, shift + x.shape[1])
        return self.fused.rotate(x, self._cos[rows], self._sin[rows])

    def _causal(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        group = self.shape.heads // self.shape.kv_heads
        k, v = (y.repeat_interleave(group, 1) for y in (k, v))
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def _chained(
        self, q: Tensor, k: Tensor, v: Tensor, chain_k: list[Tensor], chain_v: list[Tensor]
    ) -> Tensor:
        group, tokens = self.shape.heads // self.shape.kv_heads, q.shape[2]
        k, v = (y.repeat_interleave(group, 1) for y in (k, v))
        mask = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        scores = [(q @ k.mT).float().masked_fill(mask, float("-inf"))]
        scores += [(q * own).sum(-1, keepdim=True).float() for own in chain_k]
        weights = (torch.cat(scores, -1) * self.shape.head_dim**-0.5).softmax(-1).to(q.dtype)
        mixed = weights[..., :tokens] @ v
        for step, own in enumerate(chain_v):
            mixed = mixed + weights[..., tokens + step, None] * own
        return mixed

    def _finish(self, w: Weights, prefix: str, mixed: Tensor, gate: Tensor) -> Tensor:
        flat = mixed.transpose(1, 2).flatten(2)
        return functional.linear(flat * torch.sigmoid(gate), w[prefix + "self_attn.o_proj.weight"])

    def _delta(self, w: Weights, prefix: str, x: Tensor) -> Tensor:
        s, tokens = self.shape, x.shape[1]
        raw = functional.linear(x, w[prefix + "in_proj_qkv.weight"])
        a = functional.linear(x, w[prefix + "in_proj_a.weight"])
        b = functional.linear(x, w[prefix + "in_proj_b.weight"])
        q, k, v = self.fused.convolve(raw, w[prefix + "conv1d.weight"][:, 0], s.linear_dim)
        o = self.fused.delta(
            q,
            k,
            v.unflatten(-1, (s.value_heads, s.linear_dim)),
            decay_log(a, w[prefix + "A_log"], w[prefix + "dt_bias"]),
            torch.sigmoid(b.float()),
            self.chunk if tokens % self.chunk == 0 else self.chunk // 2,
        )
        z = functional.linear(x, w[prefix + "in_proj_z.weight"])
        gated = self.fused.gate_norm(o, z, w[prefix + "norm.weight"], s.eps)
        return functional.linear(gated, w[prefix + "out_proj.weight"])
