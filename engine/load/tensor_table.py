# SPDX-License-Identifier: MIT OR Apache-2.0
"""The tensors a model of a given shape consists of, under their canonical names.

A canonical name is the published one without the prefix `model.language_model.` or `model.`:
`layers.3.self_attn.q_proj`, `norm.weight`, `lm_head`, `mtp.fc`.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.model.config import FULL, ModelConfig

_PREFIXES = ("model.language_model.", "language_model.model.", "language_model.", "model.")


@dataclass(frozen=True, slots=True)
class LinearSlot:
    """A linear's module name and its shape (N, K); which tensors store it is found by looking."""

    module: str
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class VectorSlot:
    """A tensor that is stored plainly; `exact` ones are kept in float32, the others in bf16."""

    name: str
    shape: tuple[int, ...]
    exact: bool = False


Slot = LinearSlot | VectorSlot


def canonical_name(name: str) -> str | None:
    """The name without its prefix; None for what a text engine has no use for (vision, RoPE buffers)."""
    if "visual." in name or name.endswith("rotary_emb.inv_freq"):
        return None
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name


def model_slots(config: ModelConfig) -> list[Slot]:
    """Embedding, final norm and every layer; the head and the MTP head have their own functions."""
    hidden = config.hidden_size
    slots: list[Slot] = [
        VectorSlot("embed_tokens.weight", (config.vocab_size, hidden)),
        VectorSlot("norm.weight", (hidden,)),
    ]
    for index, kind in enumerate(config.layer_types):
        prefix = f"layers.{index}."
        slots += attention_slots(config, prefix) if kind == FULL else gdn_slots(config, prefix)
    return slots


def head_slot(config: ModelConfig) -> LinearSlot:
    """The output head of an untied model."""
    return LinearSlot("lm_head", config.vocab_size, config.hidden_size)


def mtp_slots(config: ModelConfig) -> list[Slot]:
    """The one-layer MTP head."""
    hidden = config.hidden_size
    return [
        LinearSlot("mtp.fc", hidden, 2 * hidden),
        VectorSlot("mtp.pre_fc_norm_embedding.weight", (hidden,)),
        VectorSlot("mtp.pre_fc_norm_hidden.weight", (hidden,)),
        VectorSlot("mtp.norm.weight", (hidden,)),
        *attention_slots(config, "mtp.layers.0."),
    ]


def attention_slots(config: ModelConfig, prefix: str) -> list[Slot]:
    """One gated full-attention layer with its MLP."""
    hidden, mixer = config.hidden_size, prefix + "self_attn."
    return [
        VectorSlot(prefix + "input_layernorm.weight", (hidden,)),
        LinearSlot(mixer + "q_proj", config.q_rows, hidden),
        LinearSlot(mixer + "k_proj", config.kv_rows, hidden),
        LinearSlot(mixer + "v_proj", config.kv_rows, hidden),
        LinearSlot(mixer + "o_proj", hidden, config.attention_width),
        VectorSlot(mixer + "q_norm.weight", (config.head_dim,)),
        VectorSlot(mixer + "k_norm.weight", (config.head_dim,)),
        *_mlp_slots(config, prefix),
    ]


def gdn_slots(config: ModelConfig, prefix: str) -> list[Slot]:
    """One gated delta layer with its MLP."""
    hidden, mixer = config.hidden_size, prefix + "linear_attn."
    return [
        VectorSlot(prefix + "input_layernorm.weight", (hidden,)),
        LinearSlot(mixer + "in_proj_qkv", config.qkv_rows, hidden),
        LinearSlot(mixer + "in_proj_z", config.value_width, hidden),
        LinearSlot(mixer + "in_proj_b", config.value_heads, hidden),
        LinearSlot(mixer + "in_proj_a", config.value_heads, hidden),
        VectorSlot(mixer + "conv1d.weight", (config.qkv_rows, 1, config.conv_width)),
        VectorSlot(mixer + "dt_bias", (config.value_heads,), exact=True),
        VectorSlot(mixer + "A_log", (config.value_heads,), exact=True),
        VectorSlot(mixer + "norm.weight", (config.value_dim,), exact=True),
        LinearSlot(mixer + "out_proj", hidden, config.value_width),
        *_mlp_slots(config, prefix),
    ]


def mlp_prefix(config: ModelConfig, prefix: str) -> str:
    """Where the MLP that every token passes stands in a layer: the shared expert's where there are experts."""
    return prefix + ("mlp.shared_expert." if config.experts else "mlp.")


def router_slots(config: ModelConfig, prefix: str) -> list[Slot]:
    """The router of a mixture-of-experts layer and the gate of its shared expert."""
    hidden = config.hidden_size
    return [
        LinearSlot(prefix + "mlp.gate", config.experts, hidden),
        LinearSlot(prefix + "mlp.shared_expert_gate", 1, hidden),
    ]


def expert_prefix(prefix: str, expert: int) -> str:
    """Where a routed expert's matrices stand in a layer."""
    return f"{prefix}mlp.experts.{expert}."


def _mlp_slots(config: ModelConfig, prefix: str) -> list[Slot]:
    hidden, mlp = config.hidden_size, mlp_prefix(config, prefix)
    slots = [
        VectorSlot(prefix + "post_attention_layernorm.weight", (hidden,)),
        *_gated_slots(mlp, hidden, config.intermediate_size),
    ]
    if config.experts:
        slots += router_slots(config, prefix)
    for expert in range(config.experts):
        slots += _gated_slots(expert_prefix(prefix, expert), hidden, config.expert_size)
    return slots


def _gated_slots(prefix: str, hidden: int, inner: int) -> list[Slot]:
    return [
        LinearSlot(prefix + "gate_proj", inner, hidden),
        LinearSlot(prefix + "up_proj", inner, hidden),
        LinearSlot(prefix + "down_proj", hidden, inner),
    ]
