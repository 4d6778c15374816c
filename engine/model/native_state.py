# SPDX-License-Identifier: MIT OR Apache-2.0
"""Copies of what a native backend has committed."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.model.arena import Arena
from kernels.gated_delta.buffers import state_from_tiles


def committed_state(
    arena: Arena, length: int, mtp_entries: tuple[Tensor, Tensor] | None
) -> dict[str, Tensor]:
    """Everything committed, by name, with nothing pending.

    "length"; "state N" float32 [Hv, dk, dv] and "tail N" of delta layers; "keys N" and "values N" of attention
    layers; "mtp keys" and "mtp values" of every position but the last, where the model has that head.
    """
    state: dict[str, Tensor] = {"length": torch.tensor(length)}
    for layer, buffers in arena.delta.items():
        state[f"state {layer}"] = state_from_tiles(buffers.state.recurrent)
        state[f"tail {layer}"] = buffers.state.tail.clone()
    for layer, cache in arena.kv.items():
        state[f"keys {layer}"], state[f"values {layer}"] = cache.read(length)
    if mtp_entries is not None:
        state["mtp keys"], state["mtp values"] = mtp_entries
    return state
