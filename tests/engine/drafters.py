# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes small random block drafters in the published layout."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from checkpoints import SINGLE, write_json
from safetensors.torch import save_file
from torch import Tensor

from engine.load.drafter import BlockCheckpoint, block_slots, read_drafter
from engine.load.drafter_config import block_config_values
from engine.load.tensor_table import LinearSlot
from engine.model.block_config import BlockConfig
from engine.model.config import ModelConfig


def block_config(target: ModelConfig, **changes: Any) -> BlockConfig:
    """A small drafter for a target."""
    sizes: dict[str, Any] = {
        "hidden_size": target.hidden_size,
        "intermediate_size": 48,
        "layers": 2,
        "attention_heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "vocab_size": target.vocab_size,
        "rms_eps": 1e-6,
        "rope_theta": 1e4,
        "window": 2048,
        "block_size": 16,
        "conv_group": 16,
        "selector_rank": 8,
        "top_k": 6,
        "mask_id": 3,
        "taps": (0, target.layers - 1),
        "tap_offset": 1,
        "target_layers": target.layers,
        "context_tokens": target.context_tokens,
    }
    return BlockConfig(**{**sizes, **changes})


def random_drafter(
    config: BlockConfig,
    *,
    seed: int = 0,
    form: Callable[[str, Tensor], dict[str, Tensor]] | None = None,
) -> dict[str, Tensor]:
    """Random tensors of every slot; `form` stores a linear's matrix in its own way."""
    random = torch.Generator().manual_seed(seed)
    tensors = {}
    for slot in block_slots(config):
        if isinstance(slot, LinearSlot):
            matrix = torch.randn(slot.rows, slot.columns, generator=random) / slot.columns**0.5
            parts = (form(slot.module, matrix) if form else None) or {"weight": matrix.bfloat16()}
            tensors |= {f"{slot.module}.{part}": value for part, value in parts.items()}
            continue
        values = 0.3 * torch.randn(slot.shape, generator=random)
        if slot.name.endswith("norm.weight") or slot.name.endswith("base_kernel"):
            values += 1.0
        tensors[slot.name] = values.bfloat16()
    return tensors


def write_drafter(folder: Path, config: BlockConfig, tensors: dict[str, Tensor]) -> Path:
    """Write a drafter's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", block_config_values(config))
    save_file(tensors, folder / SINGLE)
    return folder


def make_drafter(
    folder: Path, target: ModelConfig, *, seed: int = 0, **changes: Any
) -> BlockCheckpoint:
    """Write a random drafter and read it back."""
    config = block_config(target, **changes)
    write_drafter(folder, config, random_drafter(config, seed=seed))
    read = read_drafter(folder, target)
    assert read.config == config
    return read


def own_copy(drafter: BlockCheckpoint) -> BlockCheckpoint:
    """A copy for a backend that frees what it packs."""
    return replace(drafter, weights=copy.deepcopy(drafter.weights))
