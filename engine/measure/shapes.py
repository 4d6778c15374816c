# SPDX-License-Identifier: MIT OR Apache-2.0
"""Named model shapes for measuring: geometry without weights, whole or cut to a slice of their layers."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from engine.errors import UsageError
from engine.model.config import FULL, ModelConfig
from engine.paths import demo_model

DEMO = "demo"
# A slice keeps a slice of the head, so that the head's share of a round stays small.
CUT_VOCAB = 8192
_VOCAB = 248320
_LARGEST_VOCAB = 1 << 22

# hidden, layers, query heads, kv heads, intermediate, value heads, tied
_DENSE: dict[str, tuple[int, int, int, int, int, int, bool]] = {
    "qwen3.5-0.8b": (1024, 24, 8, 2, 3584, 16, True),
    "qwen3.5-2b": (2048, 24, 8, 2, 6144, 16, True),
    "qwen3.5-4b": (2560, 32, 16, 4, 9216, 32, True),
    "qwen3.5-9b": (4096, 32, 16, 4, 12288, 32, False),
    "qwen3.8-27b": (5120, 64, 24, 4, 17408, 48, False),
}
# hidden, layers, query heads, experts, those of a token, expert size (the shared expert's, too), value heads
_MOE: dict[str, tuple[int, int, int, int, int, int, int]] = {
    "qwen3.5-35b-a3b": (2048, 40, 16, 256, 8, 512, 32),
    "qwen3.5-122b-a10b": (3072, 48, 32, 256, 8, 1024, 64),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """A geometry to measure and what was cut from the model it is named after.

    `config` has no MTP layer unless it was asked for: a timed round is one verify pass.
    """

    name: str
    config: ModelConfig
    full_layers: int
    full_vocab: int

    @property
    def note(self) -> str:
        """What was cut, in words; empty for a whole model."""
        cuts = []
        if self.config.layers != self.full_layers:
            cuts.append(f"{self.config.layers} of {self.full_layers} layers")
        if self.config.vocab_size != self.full_vocab:
            cuts.append(f"vocabulary {self.config.vocab_size} in place of {self.full_vocab}")
        return ", ".join(cuts)


def shape_names() -> tuple[str, ...]:
    """The names `named_shape` accepts."""
    return (DEMO, *_DENSE, *_MOE)


def named_shape(text: str, *, vocab: int | None = None, mtp: bool = False) -> Shape:
    """The shape called NAME or NAME:LAYERS.

    A slice keeps the first LAYERS layers, a multiple of the period of gated delta and full-attention layers so
    that their mix stays, and at most CUT_VOCAB rows of the vocabulary; `vocab` sets the rows outright. `mtp`
    keeps the multi-token-prediction layer.

    Raises:
        UsageError: an unknown name, a layer count or a vocabulary that the shape does not allow.
    """
    name, colon, count = text.strip().lower().partition(":")
    if name not in shape_names():
        raise UsageError(
            f"There is no shape called {name!r}.",
            next_step=f"Use one of {', '.join(shape_names())}, with :LAYERS for a slice.",
        )
    whole = _demo_config() if name == DEMO else ModelConfig.from_dict(_text_config(name))
    config = whole if mtp else replace(whole, mtp_layers=0)
    if colon:
        layers = _layer_count(count, whole, name)
        rows = min(whole.vocab_size, CUT_VOCAB) if layers < whole.layers else whole.vocab_size
        kinds = whole.layer_types[:layers]
        config = replace(config, layers=layers, layer_types=kinds, vocab_size=rows)
    if vocab is not None:
        if not 1 <= vocab <= _LARGEST_VOCAB:
            raise UsageError(
                f"A vocabulary of {vocab} rows cannot be measured.",
                next_step=f"Use a whole number from 1 to {_LARGEST_VOCAB}.",
            )
        config = replace(config, vocab_size=vocab)
    cut = f"{name}:{config.layers}" if config.layers != whole.layers else name
    return Shape(cut, config, whole.layers, whole.vocab_size)


def dense_config(name: str) -> dict[str, Any]:
    """The text configuration of a dense relative, in the fields of its published config.json."""
    hidden, layers, heads, kv_heads, intermediate, value_heads, tied = _DENSE[name]
    mlp = {"model_type": "qwen3_5_text", "intermediate_size": intermediate}
    return mlp | _trunk(hidden, layers, heads, kv_heads, value_heads, tied=tied)


def moe_config(name: str) -> dict[str, Any]:
    """The text configuration of a mixture-of-experts relative, in the fields of its published config.json."""
    hidden, layers, heads, experts, per_token, size, value_heads = _MOE[name]
    mlp = {
        "model_type": "qwen3_5_moe_text",
        "num_experts": experts,
        "num_experts_per_tok": per_token,
        "moe_intermediate_size": size,
        "shared_expert_intermediate_size": size,
    }
    return mlp | _trunk(hidden, layers, heads, 2, value_heads, tied=False)


def _text_config(name: str) -> dict[str, Any]:
    return moe_config(name) if name in _MOE else dense_config(name)


def _trunk(
    hidden: int, layers: int, heads: int, kv_heads: int, value_heads: int, *, tied: bool
) -> dict[str, Any]:
    """What all relatives have beside their MLPs."""
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "full_attention_interval": 4,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 256,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "vocab_size": _VOCAB,
        "max_position_embeddings": 262144,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": value_heads,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "attn_output_gate": True,
        "mtp_num_hidden_layers": 1,
        "tie_word_embeddings": tied,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
        },
    }


def _demo_config() -> ModelConfig:
    try:
        text = (demo_model() / "config.json").read_text(encoding="utf-8")
        return ModelConfig.from_dict(json.loads(text), file="demo-model/config.json")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"The demo model's config.json cannot be read: {error}.",
            next_step="Restore assets/demo-model, or name another shape: "
            + ", ".join((*_DENSE, *_MOE)),
        ) from error


def _layer_count(text: str, whole: ModelConfig, name: str) -> int:
    period = whole.layer_types.index(FULL) + 1 if FULL in whole.layer_types else 1
    layers = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
    if not 1 <= layers <= whole.layers or layers % period:
        raise UsageError(
            f"{name} cannot be cut to {text!r} layers.",
            next_step=f"Use a multiple of {period} up to {whole.layers}, as in {name}:{period}.",
        )
    return layers
