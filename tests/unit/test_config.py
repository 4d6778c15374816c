# SPDX-License-Identifier: MIT OR Apache-2.0
"""config.json: published shapes are read exactly, everything else is refused with its field's name."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from transformers import Qwen3_5Config, Qwen3_5TextConfig

from engine.errors import CheckpointError, UnsupportedModelError
from engine.model.config import FULL, LINEAR, ModelConfig

BIG: dict[str, Any] = {
    "model_type": "qwen3_5",
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "text_config": {
        "model_type": "qwen3_5_text",
        "hidden_size": 5120,
        "num_hidden_layers": 64,
        "full_attention_interval": 4,
        "intermediate_size": 17408,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "vocab_size": 248320,
        "max_position_embeddings": 262144,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mtp_num_hidden_layers": 1,
        "attn_output_gate": True,
        "attention_bias": False,
        "output_gate_type": "swish",
        "mlp_only_layers": [],
        "partial_rotary_factor": 0.25,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "mrope_section": [11, 11, 10],
        },
    },
}


def changed(**fields: Any) -> dict[str, Any]:
    config = copy.deepcopy(BIG)
    for name, value in fields.items():
        if value is None:
            config["text_config"].pop(name, None)
        else:
            config["text_config"][name] = value
    return config


def test_the_27b_shape_gives_the_published_sizes() -> None:
    model = ModelConfig.from_dict(BIG)
    assert model.layer_types[:4] == (LINEAR, LINEAR, LINEAR, FULL)
    assert model.attention_layers == tuple(range(3, 64, 4))
    assert (model.q_rows, model.kv_rows, model.qkv_rows) == (12288, 1024, 10240)
    assert (model.attention_width, model.value_width) == (6144, 6144)
    assert (model.rotary_dim, model.rope_theta) == (64, 1e7)
    assert model.parameters == pytest.approx(26.895e9, rel=1e-4)
    assert model.kv_bytes_per_token() == 17 * 4096  # 16 attention layers and the MTP layer
    assert model.state_bytes == 48 * (48 * 128 * 128 * 4 + 3 * 10240 * 2)


@pytest.mark.parametrize(
    ("hidden", "layers", "heads", "ffn", "value_heads", "tied", "billions"),
    [
        (1024, 24, (8, 2), 3584, 16, True, 0.752),
        (2048, 24, (8, 2), 6144, 16, True, 1.882),
        (2560, 32, (16, 4), 9216, 32, True, 4.206),
        (4096, 32, (16, 4), 12288, 32, False, 8.954),
    ],
)
def test_relatives_have_their_published_parameter_counts(
    hidden: int,
    layers: int,
    heads: tuple[int, int],
    ffn: int,
    value_heads: int,
    tied: bool,
    billions: float,
) -> None:
    model = ModelConfig.from_dict(
        changed(
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads[0],
            num_key_value_heads=heads[1],
            intermediate_size=ffn,
            linear_num_value_heads=value_heads,
            tie_word_embeddings=tied,
        )
    )
    assert model.parameters / 1e9 == pytest.approx(billions, abs=6e-4)


def test_configs_that_transformers_writes_are_read_flat_and_nested() -> None:
    flat = ModelConfig.from_dict(Qwen3_5TextConfig(hidden_size=512, num_hidden_layers=4).to_dict())
    nested = ModelConfig.from_dict(
        Qwen3_5Config(text_config={"hidden_size": 512, "num_hidden_layers": 4}).to_dict()
    )
    assert flat == nested
    assert (flat.hidden_size, flat.layers, flat.mtp_layers) == (512, 4, 0)


def test_rope_parameters_win_over_flat_fields() -> None:
    rope = {"rope_theta": 5e5, "partial_rotary_factor": 0.5}
    model = ModelConfig.from_dict(changed(rope_parameters=rope, rope_theta=3.0))
    assert (model.rope_theta, model.rotary_dim) == (5e5, 128)
    flat = ModelConfig.from_dict(changed(rope_parameters=None, rope_theta=3.0))
    assert (flat.rope_theta, flat.rotary_dim) == (3.0, 64)


@pytest.mark.parametrize("place", ["top", "text"])
def test_a_tied_head_may_be_declared_in_either_place(place: str) -> None:
    config = changed(tie_word_embeddings=place == "text")
    config["tie_word_embeddings"] = place == "top"
    assert ModelConfig.from_dict(config).tied


@pytest.mark.parametrize(
    "model_type",
    ["qwen4_exp", "qwen3_next", "qwen3_5_vl", "llama", None, 7, ["qwen3_5"]],
)
@pytest.mark.parametrize("nested", [False, True])
def test_other_model_types_are_refused(model_type: Any, nested: bool) -> None:
    config = changed(model_type=model_type) if nested else {**BIG, "model_type": model_type}
    if nested and model_type is None:
        assert ModelConfig.from_dict(config).layers == 64  # the outer type says enough
        return
    with pytest.raises(UnsupportedModelError, match=r"config\.json.*model_type") as raised:
        ModelConfig.from_dict(config)
    assert ("null" if model_type is None else repr(model_type)) in raised.value.cause
    assert raised.value.next_step


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rope_parameters", {"rope_type": "yarn", "rope_theta": 1e7, "factor": 4.0}),
        ("rope_parameters", {"type": "linear", "rope_theta": 1e7}),
        ("rope_scaling", {"type": "yarn", "factor": 4.0}),
        ("hidden_act", "gelu"),
        ("attention_bias", True),
        ("attn_output_gate", False),
        ("output_gate_type", "sigmoid"),
        ("linear_conv_kernel_dim", 3),
        ("mtp_num_hidden_layers", 2),
        ("mtp_use_dedicated_embeddings", True),
        ("num_experts", 256),
        ("layer_types", ["sliding_attention"] * 64),
    ],
)
def test_variants_are_refused_by_field(field: str, value: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=field) as raised:
        ModelConfig.from_dict(changed(**{field: value}))
    assert raised.value.next_step


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_hidden_layers", None),
        ("hidden_size", None),
        ("rms_norm_eps", None),
        ("hidden_size", 5120.0),
        ("hidden_size", "5120"),
        ("hidden_size", True),
        ("hidden_size", -1),
        ("hidden_size", 0),
        ("hidden_size", 10**30),
        ("num_hidden_layers", 10**6),
        ("vocab_size", 10**9),
        ("head_dim", 1 << 20),
        ("num_key_value_heads", 5),
        ("linear_num_key_heads", 13),
        ("rms_norm_eps", float("nan")),
        ("rms_norm_eps", -1e-6),
        ("rms_norm_eps", "small"),
        ("layer_types", [FULL] * 63),
        ("layer_types", "full"),
        ("full_attention_interval", 0),
        ("mtp_num_hidden_layers", -1),
        ("tie_word_embeddings", "yes"),
        ("rope_parameters", [1e7]),
        ("rope_parameters", {"rope_theta": float("inf")}),
        ("rope_parameters", {"rope_theta": 1e7, "partial_rotary_factor": 1.5}),
        ("rope_parameters", {"rope_theta": 1e7, "partial_rotary_factor": 0.001}),
        ("rope_parameters", {"rope_type": "default"}),
    ],
)
def test_fields_that_make_no_sense_are_named(field: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json") as raised:
        ModelConfig.from_dict(changed(**{field: value}))
    assert not isinstance(raised.value, UnsupportedModelError)
    assert raised.value.next_step


@pytest.mark.parametrize("field", ["hidden_size", "rms_norm_eps", "model_type", "rope_theta"])
def test_a_field_without_a_value_is_told_from_one_that_is_not_there(field: str) -> None:
    config = {**BIG, **BIG["text_config"], "text_config": None, "rope_parameters": None}
    config |= {"rope_theta": 1e7}
    assert ModelConfig.from_dict(config).hidden_size == 5120
    with pytest.raises(CheckpointError, match=rf"{field} is null"):
        ModelConfig.from_dict({**config, field: None})
    del config[field]
    with pytest.raises(CheckpointError, match=rf"{field} is missing\."):
        ModelConfig.from_dict(config)


def test_a_wrong_value_is_shown_short() -> None:
    with pytest.raises(CheckpointError, match="hidden_size") as raised:
        ModelConfig.from_dict(changed(hidden_size=["x"] * 10_000))
    assert len(raised.value.cause) < 250


def test_a_text_config_that_is_no_object_is_refused() -> None:
    with pytest.raises(CheckpointError, match="text_config"):
        ModelConfig.from_dict({"model_type": "qwen3_5", "text_config": [1]})
