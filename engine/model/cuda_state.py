# SPDX-License-Identifier: MIT OR Apache-2.0
"""Copies of what a GPU backend has committed."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.model.config import ModelConfig
from engine.model.cuda_arena import Arena


def committed_state(arena: Arena, config: ModelConfig, length: int) -> dict[str, Tensor]:
    """Everything committed of the trunk, by name, on the CPU, with nothing pending.

    "length"; "state N" and "tail N" of delta layers; "keys N" and "values N" [length, heads, dim] of attention
    layers.
    """
    state: dict[str, Tensor] = {"length": torch.tensor(length)}
    for place, layer in enumerate(config.gdn_layers):
        state[f"state {layer}"] = arena.delta.states[place].cpu().clone()
        state[f"tail {layer}"] = arena.delta.tails[place].cpu().clone()
    for place, layer in enumerate(config.attention_layers):
        cache = arena.kv.layer(place)
        for name, part in (("keys", cache.keys), ("values", cache.values)):
            state[f"{name} {layer}"] = part[:, :length].transpose(0, 1).cpu().clone()
    return state
