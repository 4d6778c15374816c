# SPDX-License-Identifier: MIT OR Apache-2.0
"""The demo model as the drafter's training sees it: its residual streams and its own choices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from engine.errors import UsageError
from engine.load.checkpoint import read_checkpoint
from engine.load.weights import GdnLayerWeights, LayerWeights
from engine.model.config import ModelConfig
from ops.demo.network import Network
from ops.demo.shape import TRUNK, Shape

_PUBLISHED = {
    "input_norm": "input_layernorm.weight",
    "post_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "in_qkv": "linear_attn.in_proj_qkv.weight",
    "in_z": "linear_attn.in_proj_z.weight",
    "in_b": "linear_attn.in_proj_b.weight",
    "in_a": "linear_attn.in_proj_a.weight",
    "conv": "linear_attn.conv1d.weight",
    "dt_bias": "linear_attn.dt_bias",
    "a_log": "linear_attn.A_log",
    "gdn_norm": "linear_attn.norm.weight",
    "out": "linear_attn.out_proj.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
}


class TappedNetwork(Network):
    """The training forward of the trunk, which also hands out residual streams."""

    def streams(
        self, w: dict[str, Tensor], ids: Tensor, wanted: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        """(final-normed hidden [B, T, hidden], the streams entering layers `wanted` side by side)."""
        x = functional.embedding(ids, w[TRUNK + "embed_tokens.weight"])
        kept = {0: x}
        for layer in range(self.shape.layers):
            prefix = f"{TRUNK}layers.{layer}."
            normed = self._norm(w, prefix + "input_layernorm", x)
            if self.shape.is_full_attention(layer):
                q, k, v, gate = self._project(w, prefix, normed, 0)
                x = x + self._finish(w, prefix, self._causal(q, k, v), gate)
            else:
                x = x + self._delta(w, prefix + "linear_attn.", normed)
            x = x + self._mlp(w, prefix, x)
            kept[layer + 1] = x
        return self._norm(w, TRUNK + "norm", x), torch.cat([kept[i] for i in wanted], -1)


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A loaded model with its stored values in float32.

    Attributes:
        embed, head: [vocab, hidden]. final_norm: [hidden], what the normed hidden is multiplied by.
        tokens: ids that exist; padded rows behind them are never chosen.
    """

    config: ModelConfig
    network: TappedNetwork
    weights: dict[str, Tensor]
    embed: Tensor
    head: Tensor
    final_norm: Tensor
    tokens: int
    tokenizer: Tokenizer

    @staticmethod
    def read(folder: Path) -> Target:
        """Opens a model folder of the demo model's family."""
        found = read_checkpoint(folder)
        config, weights = found.config, found.weights
        if config.experts:
            raise UsageError(
                "The training forward has no mixture-of-experts layers.",
                next_step="Train a drafter for a dense model.",
            )
        named = {
            TRUNK + "embed_tokens.weight": weights.embed.float(),
            TRUNK + "norm.weight": weights.final_norm.float(),
        }
        for index, layer in enumerate(weights.layers):
            for name, value in _named(layer).items():
                named[f"{TRUNK}layers.{index}.{name}"] = value
        return Target(
            config=config,
            network=TappedNetwork(_shape(config), chunk=32),
            weights=named,
            embed=weights.embed.float(),
            head=weights.head_linear.dequantise().float(),
            final_norm=1.0 + weights.final_norm.float(),
            tokens=found.tokenizer.vocab_size,
            tokenizer=Tokenizer.from_file(str(folder / "tokenizer.json")),
        )

    @torch.no_grad()
    def look(self, ids: Tensor, streams: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """(streams bf16 [B, T, n * hidden], the model's choice int64 [B, T] behind every position)."""
        hidden, taps = self.network.streams(self.weights, ids, streams)
        chosen = torch.stack(
            [functional.linear(row, self.head)[:, : self.tokens].argmax(-1) for row in hidden]
        )
        return taps.bfloat16(), chosen


def _named(layer: LayerWeights) -> dict[str, Tensor]:
    found = {}
    for name, published in _PUBLISHED.items():
        value = getattr(layer, name, None)
        if value is None:
            continue
        values = value if isinstance(value, Tensor) else value.dequantise()
        found[published] = values.float()
    if isinstance(layer, GdnLayerWeights):
        found["linear_attn.conv1d.weight"] = found["linear_attn.conv1d.weight"].unsqueeze(1)
    return found


def _shape(config: ModelConfig) -> Shape:
    attention = config.attention_layers
    return replace(
        Shape(),
        vocab=config.vocab_size,
        hidden=config.hidden_size,
        layers=config.layers,
        full_attention_interval=attention[0] + 1 if attention else config.layers + 1,
        intermediate=config.intermediate_size,
        heads=config.attention_heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        key_heads=config.key_heads,
        value_heads=config.value_heads,
        linear_dim=config.key_dim,
        conv_width=config.conv_width,
        rope_theta=config.rope_theta,
        partial_rotary=config.rotary_dim / config.head_dim,
        eps=config.rms_eps,
        max_positions=config.context_tokens,
    )
