# SPDX-License-Identifier: MIT OR Apache-2.0
"""The config.json of a block drafter in the published DFlash2 layout, read and written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import UnsupportedModelError
from engine.model.block_config import CONV_TAPS, MAX_BLOCK, BlockConfig
from engine.model.config_fields import ConfigFields

ARCHITECTURE = "DFlash2DraftModel"
_OTHERS = {
    "DFlashDraftModel": "the first DFlash form, without convolutions and selector",
    "DSparkDraftModel": "the DSpark form with its Markov head",
    "LlamaForCausalLMEagle3": "an EAGLE-3 head",
}
_SLIDING, _FULL = "sliding_attention", "full_attention"
_NEXT = "Choose a DFlash2 drafter that was made for this model."
_MOST = 1 << 20


def read_block_config(
    values: Mapping[str, Any], *, default_offset: int = 1, file: str = "config.json"
) -> BlockConfig:
    """Read a parsed config.json.

    Args:
        default_offset: which residual stream a tap means when the file does not say (`tap_offset` in
            dflash_config): 1 the one that leaves the layer, 0 the one that enters it.

    Raises:
        UnsupportedModelError: another drafter form, or an option that is not run here.
        CheckpointError: a field that is missing or makes no sense.
    """
    fields = ConfigFields(values, file)
    _accept_architecture(fields)
    nested = fields.get("dflash_config")
    if not isinstance(nested, Mapping):
        fields.wrong("dflash_config", "an object", nested)
    inner = ConfigFields(
        {"block_size": fields.get("block_size"), **nested}, f"{file}, dflash_config"
    )
    _refuse_variants(fields, inner)
    layers = fields.integer("num_hidden_layers", 64)
    context = fields.integer("max_position_embeddings", 1 << 24)
    config = BlockConfig(
        hidden_size=fields.integer("hidden_size", 1 << 17),
        intermediate_size=fields.integer("intermediate_size", _MOST),
        layers=layers,
        attention_heads=fields.integer("num_attention_heads", 4096),
        kv_heads=fields.integer("num_key_value_heads", 4096),
        head_dim=fields.integer("head_dim", 256, smallest=2),
        vocab_size=fields.integer("vocab_size", 1 << 22),
        rms_eps=fields.number("rms_norm_eps", 1.0),
        rope_theta=_theta(fields),
        window=_window(fields, layers, context),
        block_size=inner.integer("block_size", MAX_BLOCK, smallest=2),
        conv_group=inner.integer("conv_group_size", _MOST),
        selector_rank=inner.integer("selector_rank", 4096),
        top_k=inner.integer("selector_top_k", 256),
        mask_id=inner.integer("mask_token_id", 1 << 22, smallest=0),
        taps=_taps(inner),
        tap_offset=_offset(inner, default_offset),
        target_layers=fields.integer("num_target_layers", 1024),
        context_tokens=context,
        output_multiplier=_optional(fields, "output_multiplier", 1.0),
        softcap=_optional(fields, "final_logit_softcapping", 0.0),
    )
    _check_together(config, fields, inner)
    return config


def block_config_values(config: BlockConfig) -> dict[str, Any]:
    """config.json of a drafter; reads back as the same BlockConfig."""
    values: dict[str, Any] = {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.layers,
        "layer_types": [_SLIDING] * config.layers,
        "num_attention_heads": config.attention_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "vocab_size": config.vocab_size,
        "rms_norm_eps": config.rms_eps,
        "rope_theta": config.rope_theta,
        "sliding_window": config.window,
        "is_causal": False,
        "num_target_layers": config.target_layers,
        "max_position_embeddings": config.context_tokens,
        "dflash_config": {
            "block_size": config.block_size,
            "conv_kernel_size": CONV_TAPS,
            "conv_group_size": config.conv_group,
            "selector_rank": config.selector_rank,
            "selector_top_k": config.top_k,
            "mask_token_id": config.mask_id,
            "target_layer_ids": list(config.taps),
            "tap_offset": config.tap_offset,
        },
    }
    if config.output_multiplier != 1.0:
        values["output_multiplier"] = config.output_multiplier
    if config.softcap:
        values["final_logit_softcapping"] = config.softcap
    return values


def _accept_architecture(fields: ConfigFields) -> None:
    given = fields.get("architectures")
    names = given if isinstance(given, list) else [given]
    if ARCHITECTURE in names:
        return
    known = next((what for name, what in _OTHERS.items() if name in names), None)
    reason = f" That is {known}." if known else ""
    raise UnsupportedModelError(
        f"{fields.file}: architectures is {given!r}; as a block drafter this engine runs {ARCHITECTURE}."
        + reason,
        next_step=_NEXT,
    )


def _refuse_variants(fields: ConfigFields, inner: ConfigFields) -> None:
    if fields.get("hidden_act") not in (None, "silu"):
        fields.unsupported("hidden_act", "silu", fields.get("hidden_act"), _NEXT)
    if fields.get("is_causal") is not False:
        fields.unsupported("is_causal", "false", fields.get("is_causal"), _NEXT)
    if fields.get("attention_bias") not in (None, False):
        fields.unsupported("attention_bias", "false", fields.get("attention_bias"), _NEXT)
    scaling = fields.get("rope_scaling")
    if isinstance(scaling, Mapping) and scaling.get("rope_type", "default") != "default":
        fields.unsupported("rope_scaling.rope_type", "the type default", scaling, _NEXT)
    taps = inner.integer("conv_kernel_size", 64)
    if taps != CONV_TAPS:
        inner.unsupported("conv_kernel_size", f"a kernel of {CONV_TAPS}", taps, _NEXT)


def _theta(fields: ConfigFields) -> float:
    nested = fields.get("rope_parameters")
    theta = nested.get("rope_theta") if isinstance(nested, Mapping) else None
    return fields.number("rope_theta", 1e12, theta)


def _window(fields: ConfigFields, layers: int, context: int) -> int:
    """The window of the layers, which must all be of one kind."""
    kinds = fields.get("layer_types")
    if kinds is None:
        kinds = [_SLIDING if fields.get("sliding_window") else _FULL] * layers
    if not isinstance(kinds, list) or len(kinds) != layers:
        fields.wrong("layer_types", f"a list of {layers} entries, as num_hidden_layers says", kinds)
    if set(kinds) == {_FULL}:
        return context
    if set(kinds) != {_SLIDING}:
        fields.unsupported("layer_types", f"layers that are all {_SLIDING}", kinds, _NEXT)
    return fields.integer("sliding_window", 1 << 24)


def _taps(inner: ConfigFields) -> tuple[int, ...]:
    """The target layers, never guessed: another list loads as well and ruins what is proposed."""
    name, ids = "target_layer_ids", inner.get("target_layer_ids")
    if not isinstance(ids, list) or not ids or any(type(item) is not int for item in ids):
        inner.wrong(name, "a list of layer numbers", ids)
    if ids != sorted(set(ids)) or ids[0] < 0:
        inner.wrong(name, "ascending layer numbers from 0", ids)
    return tuple(ids)


def _offset(inner: ConfigFields, default: int) -> int:
    if inner.get("tap_offset") is None:
        return default
    return inner.integer("tap_offset", 1, smallest=0)


def _optional(fields: ConfigFields, name: str, default: float) -> float:
    return default if fields.get(name) is None else fields.number(name, 1e6)


def _check_together(config: BlockConfig, fields: ConfigFields, inner: ConfigFields) -> None:
    if config.attention_heads % config.kv_heads:
        fields.wrong(
            "num_attention_heads",
            f"a multiple of num_key_value_heads ({config.kv_heads})",
            config.attention_heads,
        )
    if config.head_dim % 2:
        fields.wrong("head_dim", "even", config.head_dim)
    if config.hidden_size % config.conv_group:
        inner.wrong("conv_group_size", f"a divisor of {config.hidden_size}", config.conv_group)
    if config.top_k > config.vocab_size:
        inner.wrong("selector_top_k", f"at most {config.vocab_size}", config.top_k)
    if config.mask_id >= config.vocab_size:
        inner.wrong("mask_token_id", f"below {config.vocab_size}", config.mask_id)
    if config.streams[-1] > config.target_layers:
        inner.wrong("target_layer_ids", f"layers of {config.target_layers}", list(config.taps))
