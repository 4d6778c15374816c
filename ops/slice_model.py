# SPDX-License-Identifier: MIT OR Apache-2.0
"""A model folder of a named shape, or of a slice of one, with random weights: for measuring, never for text.

`python -m ops.slice_model --shape NAME[:LAYERS] --out DIR [--vocab N] [--seed N]`. NVFP4 linears and an FP8
head, as `rondo quantize` writes them; tokenizer and chat template are the demo model's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.errors import RondoError, UsageError
from engine.load.checkpoint import CONFIG_FILE
from engine.load.stored import Dense, Fp8Row, Nvfp4
from engine.load.synthetic import synthetic_weights
from engine.load.tensor_table import LinearSlot, head_slot, model_slots, mtp_slots
from engine.load.tokenizer import Tokenizer
from engine.load.weights import ModelWeights, parts_of
from engine.load.writer import (
    copy_text_files,
    new_folder,
    published_name,
    quantization_config,
    write_shards,
)
from engine.measure.bench import stored_bytes
from engine.measure.peers.worker import require_memory
from engine.measure.shapes import named_shape
from engine.model.config import ModelConfig
from engine.numbers import byte_size
from engine.paths import demo_model

_SHARD_BYTES = 256 << 20  # what a file takes beside the weights while it is written


def write_slice(config: ModelConfig, target: str | Path, *, seed: int = 0) -> None:
    """Write the synthetic NVFP4 weights of `config` as the new folder `target`.

    Raises:
        UsageError: a vocabulary smaller than the tokenizer's, or a target that holds something.
        MemoryShortError: the weights do not fit what is free.
        CheckpointError: the folder cannot be written; what was written is removed.
    """
    config = replace(config, tied=False)  # NVFP4 weights have an FP8 head of their own
    needed = Tokenizer.read(demo_model()).vocab_size
    if config.vocab_size < needed:
        raise UsageError(
            f"A vocabulary of {config.vocab_size} rows is smaller than the tokenizer's {needed}.",
            next_step=f"Use --vocab {needed} or more.",
        )
    require_memory(stored_bytes(config, "nvfp4"), "these weights")
    with new_folder(target, kept="Nothing else was touched.") as folder:
        weights = synthetic_weights(config, "nvfp4", seed)
        write_shards(folder, stored_tensors(config, weights), shard_bytes=_SHARD_BYTES)
        nvfp4 = [module for module, part in _named(config, weights) if isinstance(part, Nvfp4)]
        values = published_config(config) | {"quantization_config": quantization_config(nvfp4)}
        (folder / CONFIG_FILE).write_text(json.dumps(values, indent=2) + "\n", "utf-8")
        copy_text_files(demo_model(), folder)


def stored_tensors(config: ModelConfig, weights: ModelWeights) -> Iterator[tuple[str, Tensor]]:
    """Every tensor under its published name, as the ModelOpt layout stores it."""
    for name, part in _named(config, weights):
        if isinstance(part, Tensor):
            tensors = {name: part}
        elif isinstance(part, Nvfp4):
            scale_2 = torch.tensor(part.scale_2, dtype=torch.float32)
            tensors = {
                f"{name}.weight": part.codes,
                f"{name}.weight_scale": part.scales,
                f"{name}.weight_scale_2": scale_2,
            }
        elif isinstance(part, Fp8Row):
            tensors = {f"{name}.weight": part.codes, f"{name}.weight_scale": part.scale[:, None]}
        else:
            tensors = {f"{name}.weight": part.weight}
        yield from ((published_name(each), tensor) for each, tensor in tensors.items())


def published_config(config: ModelConfig) -> dict[str, Any]:
    """The fields of a config.json that `ModelConfig.from_dict` reads back as `config`."""
    if config.experts:
        mlp = {
            "model_type": "qwen3_5_moe_text",
            "num_experts": config.experts,
            "num_experts_per_tok": config.experts_per_token,
            "moe_intermediate_size": config.expert_size,
            "shared_expert_intermediate_size": config.intermediate_size,
        }
    else:
        mlp = {"model_type": "qwen3_5_text", "intermediate_size": config.intermediate_size}
    return mlp | {
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.layers,
        "layer_types": list(config.layer_types),
        "num_attention_heads": config.attention_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "linear_num_key_heads": config.key_heads,
        "linear_num_value_heads": config.value_heads,
        "linear_key_head_dim": config.key_dim,
        "linear_value_head_dim": config.value_dim,
        "linear_conv_kernel_dim": config.conv_width,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_eps,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": config.rope_theta,
            "partial_rotary_factor": config.rotary_dim / config.head_dim,
        },
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.context_tokens,
        "attn_output_gate": True,
        "mtp_num_hidden_layers": config.mtp_layers,
        "tie_word_embeddings": config.tied,
    }


def _named(
    config: ModelConfig, weights: ModelWeights
) -> Iterator[tuple[str, Tensor | Dense | Nvfp4 | Fp8Row]]:
    """Slots and weight records list the same parts; only the head stands in another place."""
    embed, norm, *layers = model_slots(config)
    heads = mtp_slots(config) if config.mtp_layers else []
    slots = (embed, norm, head_slot(config), *layers, *heads)
    for slot, part in zip(slots, parts_of(weights), strict=True):
        if isinstance(slot, LinearSlot):
            yield slot.module, part
        else:
            yield slot.name, part.reshape(slot.shape)


def main(argv: list[str] | None = None) -> int:
    """Write the folder and say how large it is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", required=True, help="such as qwen3.8-27b:4 for its first layers")
    parser.add_argument("--vocab", type=int, help="rows of embedding and head")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to write, new or empty")
    parser.add_argument("--seed", type=int, default=0, help="equal seeds give equal weights")
    chosen = parser.parse_args(argv)
    try:
        if chosen.seed < 0:
            raise UsageError(f"{chosen.seed} is no seed.", next_step="Use 0 or more.")
        shape = named_shape(chosen.shape, vocab=chosen.vocab, mtp=True)
        write_slice(shape.config, chosen.out, seed=chosen.seed)
    except RondoError as error:
        print(error, file=sys.stderr)
        return 1
    size = sum(path.stat().st_size for path in Path(chosen.out).iterdir())
    print(f"{chosen.out}: {shape.name}, {byte_size(size)} ({shape.note or 'whole'})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
