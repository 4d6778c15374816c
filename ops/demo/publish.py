# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes the trained tensors as a model folder in the published layout."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from ops.demo.shape import Shape
from ops.demo.vocabulary import save_tokenizer

TEMPLATE = Path(__file__).with_name("chat_template.jinja")
CARD = Path(__file__).with_name("model_card.md")


def configuration(shape: Shape, end_of_text: int) -> dict[str, Any]:
    """config.json: the multimodal wrapper's nesting with a text model only."""
    kinds = [
        "full_attention" if shape.is_full_attention(layer) else "linear_attention"
        for layer in range(shape.layers)
    ]
    third = shape.rotary_dim // 2 // 3
    text = {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "bos_token_id": end_of_text,
        "dtype": "bfloat16",
        "eos_token_id": end_of_text,
        "full_attention_interval": shape.full_attention_interval,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "layer_types": kinds,
        "linear_conv_kernel_dim": shape.conv_width,
        "linear_key_head_dim": shape.linear_dim,
        "linear_num_key_heads": shape.key_heads,
        "linear_num_value_heads": shape.value_heads,
        "linear_value_head_dim": shape.linear_dim,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": shape.max_positions,
        "model_type": "qwen3_5_text",
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "output_gate_type": "swish",
        "pad_token_id": None,
        "partial_rotary_factor": shape.partial_rotary,
        "rms_norm_eps": shape.eps,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [shape.rotary_dim // 2 - 2 * third, third, third],
            "partial_rotary_factor": shape.partial_rotary,
            "rope_theta": shape.rope_theta,
            "rope_type": "default",
        },
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": shape.vocab,
    }
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "language_model_only": True,
        "model_type": "qwen3_5",
        "text_config": text,
        "tie_word_embeddings": True,
    }


def write_model(
    folder: Path, tensors: Mapping[str, Tensor], shape: Shape, tokenizer: Tokenizer, note: str
) -> None:
    """Writes every file of the model folder; the weights in bf16, one file.

    Args:
        note: one line for the model card about the training behind these weights.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stop = [tokenizer.token_to_id(t) for t in ("<|im_end|>", "<|endoftext|>")]
    weights = {n: v.detach().to(torch.bfloat16).contiguous() for n, v in tensors.items()}
    fresh = folder / "model.safetensors.new"
    save_file(weights, fresh, metadata={"format": "pt"})
    fresh.chmod(0o644)
    fresh.replace(folder / "model.safetensors")
    _write_json(folder / "config.json", configuration(shape, stop[1]))
    _write_json(
        folder / "generation_config.json",
        {
            "bos_token_id": stop[1],
            "do_sample": False,
            "eos_token_id": stop,
            "pad_token_id": stop[1],
        },
    )
    _write_json(
        folder / "tokenizer_config.json",
        {
            "add_bos_token": False,
            "add_prefix_space": False,
            "bos_token": None,
            "clean_up_tokenization_spaces": False,
            "eos_token": "<|im_end|>",
            "errors": "replace",
            "model_max_length": shape.max_positions,
            "pad_token": "<|endoftext|>",
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": None,
        },
    )
    save_tokenizer(tokenizer, folder)
    shutil.copyfile(TEMPLATE, folder / "chat_template.jinja")
    parameters = sum(value.numel() for value in tensors.values())
    card = CARD.read_text(encoding="utf-8")
    card = card.replace("{parameters}", f"{parameters / 1e6:.1f}").replace("{note}", note)
    (folder / "README.md").write_text(card, encoding="utf-8")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
