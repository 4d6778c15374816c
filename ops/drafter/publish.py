# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes a trained drafter as a folder in the published layout."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.load.drafter import block_slots
from engine.load.drafter_config import block_config_values
from engine.load.tensor_table import LinearSlot
from engine.model.block_config import BlockConfig
from kernels.fp8_linear.quantise import quantise_rows

CARD = Path(__file__).with_name("drafter_card.md")
_EIGHT_BITS = ("fc", ".self_attn.", ".mlp.")


def stored_tensors(config: BlockConfig, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the file: projections in FP8 with a scale for every row, everything else in BF16."""
    stored = {}
    for slot in block_slots(config):
        if not isinstance(slot, LinearSlot):
            stored[slot.name] = tensors[slot.name].detach().to(torch.bfloat16).contiguous()
            continue
        name = f"{slot.module}.weight"
        weight = tensors[name].detach().float()
        if any(part in slot.module for part in _EIGHT_BITS):
            codes, scale = quantise_rows(weight)
            stored[name] = codes
            stored[f"{slot.module}.weight_scale"] = scale[:, None].contiguous()
        else:
            stored[name] = weight.to(torch.bfloat16).contiguous()
    return stored


def write_drafter(
    folder: Path, config: BlockConfig, tensors: Mapping[str, Tensor], *, training: str, figures: str
) -> None:
    """Write config.json, the weights and the card.

    Args:
        training, figures: what the card says of the run behind the weights and of what they bring.
    """
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / "model.safetensors.new"
    save_file(stored_tensors(config, tensors), fresh, metadata={"format": "pt"})
    fresh.chmod(0o644)
    fresh.replace(folder / "model.safetensors")
    values = json.dumps(block_config_values(config), indent=2) + "\n"
    (folder / "config.json").write_text(values, encoding="utf-8")
    card = CARD.read_text(encoding="utf-8")
    facts = {
        "parameters": f"{sum(value.numel() for value in tensors.values()) / 1e6:.1f}",
        "layers": str(config.layers),
        "block": str(config.block_size),
        "taps": ", ".join(map(str, config.taps)),
        "training": training,
        "figures": figures,
    }
    for name, value in facts.items():
        card = card.replace("{" + name + "}", value)
    lines = (textwrap.fill(line, 112, break_on_hyphens=False) for line in card.splitlines())
    card = "\n".join(lines) + "\n"
    (folder / "README.md").write_text(card, encoding="utf-8")
