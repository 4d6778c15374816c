# SPDX-License-Identifier: MIT OR Apache-2.0
"""config.json of mixture-of-experts models: published shapes are read exactly, the rest is refused by field."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Qwen3_5MoeConfig, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

from engine.errors import CheckpointError, UnsupportedModelError
from engine.model.config import ModelConfig

# hidden, layers, query heads, value heads, experts, a token's, expert size, billions in all and active
RELATIVES = {
    "35B-A3B": (2048, 40, 16, 32, 256, 8, 512, 35, 3),
    "122B-A10B": (3072, 48, 32, 64, 256, 8, 1024, 122, 10),
    "397B-A17B": (4096, 60, 32, 64, 512, 10, 1024, 397, 17),
}


def published(name: str = "35B-A3B", **changes: Any) -> dict[str, Any]:
    """A nested config.json; a change of None removes the field."""
    hidden, layers, heads, value_heads, experts, per_token, size, *_ = RELATIVES[name]
    text = {
        "model_type": "qwen3_5_moe_text",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "full_attention_interval": 4,
        "num_attention_heads": heads,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "rms_norm_eps": 1e-6,
        "vocab_size": 248320,
        "max_position_embeddings": 262144,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": value_heads,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mtp_num_hidden_layers": 1,
        "num_experts": experts,
        "num_experts_per_tok": per_token,
        "moe_intermediate_size": size,
        "shared_expert_intermediate_size": size,
        "mlp_only_layers": [],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7},
    } | changes
    text = {field: value for field, value in text.items() if value is not None}
    return {"model_type": "qwen3_5_moe", "text_config": text}


@pytest.mark.parametrize("name", RELATIVES)
def test_relatives_have_the_parameters_that_transformers_makes(name: str) -> None:
    config = published(name)
    model = ModelConfig.from_dict(config)
    with torch.device("meta"):
        theirs = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**config["text_config"]))
    assert model.parameters == sum(each.numel() for each in theirs.parameters())
    assert (model.experts, model.experts_per_token, model.expert_size) == RELATIVES[name][4:7]
    assert model.intermediate_size == RELATIVES[name][6]
    in_all, active = RELATIVES[name][7:]
    assert model.parameters / 1e9 == pytest.approx(in_all, rel=0.02)
    # The names leave out both tables, or one of them.
    tables = 2 * model.vocab_size * model.hidden_size
    assert model.active_parameters - tables < 1.06e9 * active < model.active_parameters + tables


def test_a_dense_model_is_all_active() -> None:
    config = published(model_type="qwen3_5_text", num_experts=None, intermediate_size=6144)
    model = ModelConfig.from_dict(config | {"model_type": "qwen3_5"})
    assert (model.experts, model.experts_per_token, model.expert_size) == (0, 0, 0)
    assert not {"experts", "experts_per_token", "expert_size"} & model.geometry().keys()
    assert model.geometry()["layers"] == 40
    assert ModelConfig.from_dict(published()).geometry()["experts"] == 256
    assert model.active_parameters == model.parameters


def test_configs_that_transformers_writes_are_read_flat_and_nested() -> None:
    sizes = {"hidden_size": 512, "num_hidden_layers": 4, "num_experts": 16}
    flat = ModelConfig.from_dict(Qwen3_5MoeTextConfig(**sizes).to_dict())
    nested = ModelConfig.from_dict(Qwen3_5MoeConfig(text_config=sizes).to_dict())
    assert flat == nested
    assert (flat.experts, flat.experts_per_token, flat.expert_size) == (16, 8, 512)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_experts", None),
        ("num_experts", 0),
        ("num_experts", 7),  # fewer than a token takes
        ("num_experts", "256"),
        ("num_experts", 10**6),
        ("num_experts_per_tok", None),
        ("num_experts_per_tok", 0),
        ("num_experts_per_tok", 257),
        ("num_experts_per_tok", True),
        ("moe_intermediate_size", None),
        ("moe_intermediate_size", -512),
        ("shared_expert_intermediate_size", None),
        ("shared_expert_intermediate_size", 0),
    ],
)
def test_fields_that_make_no_sense_are_named(field: str, value: Any) -> None:
    named = "num_experts_per_tok" if value == 7 else field
    with pytest.raises(CheckpointError, match=rf"config\.json.*{named}") as raised:
        ModelConfig.from_dict(published(**{field: value}))
    assert not isinstance(raised.value, UnsupportedModelError)
    assert raised.value.next_step


def test_every_expert_may_run() -> None:
    model = ModelConfig.from_dict(published(num_experts=8))
    assert model.active_parameters == model.parameters


@pytest.mark.parametrize(
    ("field", "value"),
    [("mlp_only_layers", [0]), ("decoder_sparse_step", 2), ("norm_topk_prob", False)],
)
def test_variants_are_refused_by_field(field: str, value: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=field) as raised:
        ModelConfig.from_dict(published(**{field: value}))
    assert raised.value.next_step


def test_a_dense_and_an_expert_type_do_not_mix() -> None:
    for outer, inner in (("qwen3_5", "qwen3_5_moe_text"), ("qwen3_5_moe", "qwen3_5_text")):
        config = published(model_type=inner) | {"model_type": outer}
        with pytest.raises(CheckpointError, match=rf"text_config\.model_type.*{outer}.*{inner}"):
            ModelConfig.from_dict(config)
