# SPDX-License-Identifier: MIT OR Apache-2.0
"""Copies of what a GPU backend has committed."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.model.config import ModelConfig
from engine.model.cuda_arena import Arena


def committed_state(
    arena: Arena, config: ModelConfig, length: int, mtp_entries: tuple[Tensor, Tensor] | None
) -> dict[str, Tensor]:
    """Everything committed, by name, on the CPU, with nothing pending.

    "length"; "state N" and "tail N" of delta layers; "keys N" and "values N" [length, heads, dim] of attention
    layers; "mtp keys" and "mtp values" of every position but the last, where the model has that head.
    """
    state: dict[str, Tensor] = {"length": torch.tensor(length)}
    for place, layer in enumerate(config.gdn_layers):
        state[f"state {layer}"] = arena.delta.states[place].cpu().clone()
        state[f"tail {layer}"] = arena.delta.tails[place].cpu().clone()
    for place, layer in enumerate(config.attention_layers):
        cache = arena.kv.layer(place)
        for name, part in (("keys", cache.keys), ("values", cache.values)):
            state[f"{name} {layer}"] = part[:, :length].transpose(0, 1).cpu().clone()
    if mtp_entries is not None:
        state["mtp keys"], state["mtp values"] = mtp_entries
    return state
