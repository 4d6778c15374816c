# SPDX-License-Identifier: MIT OR Apache-2.0
"""Routed experts that lie stacked in one tensor, taken apart into one entry for each expert's matrix.

BF16 repositories hold `mlp.experts.gate_up_proj` [experts, 2 * size, hidden] (gate rows before up rows) and
`mlp.experts.down_proj` [experts, hidden, size]; FP8 and NVFP4 ones hold every expert's matrices by name, as
`mlp.experts.7.up_proj.weight`. A stack's experts are byte ranges of it, so from here on both are alike.
"""

from __future__ import annotations

import re
from dataclasses import replace

from engine.errors import CheckpointError, UnsupportedModelError
from engine.load.formats import FLOATS, expect
from engine.load.safetensors_index import TensorEntry
from engine.model.config import ModelConfig

_STACK = re.compile(r"(.*\.mlp\.experts\.)(gate_up_proj|down_proj)")
_SINGLE = re.compile(r".*\.mlp\.experts\.([0-9]{1,6})\.")


def unstack_experts(config: ModelConfig, found: dict[str, TensorEntry]) -> dict[str, TensorEntry]:
    """`found` by canonical name, with every stack replaced by its experts' matrices.

    Raises:
        CheckpointError: a stack of another shape than config.json says, an expert that stands both in a stack
            and by itself, or one whose number config.json does not reach.
        UnsupportedModelError: a stack that is quantised.
    """
    apart: dict[str, TensorEntry] = {}
    for name, entry in found.items():
        stack, single = _STACK.fullmatch(name), _SINGLE.match(name)
        if stack:
            _check_stack(config, entry, stack[2])
            _add(apart, _experts_of(config, entry, stack[1], stack[2]))
            continue
        if single and int(single[1]) >= config.experts:
            raise CheckpointError(
                f"config.json: num_experts is {config.experts}, but {entry.file.name} holds "
                f"{entry.name}.",
                next_step="Use the config.json and the weights of one published model.",
            )
        _add(apart, {name: entry})
    return apart


def _check_stack(config: ModelConfig, entry: TensorEntry, kind: str) -> None:
    hidden, size = config.hidden_size, config.expert_size
    rows = (2 * size, hidden) if kind == "gate_up_proj" else (hidden, size)
    if entry.dtype not in FLOATS:
        raise UnsupportedModelError(
            f"{entry.file.name}: tensor {entry.name} is {entry.describe()}; experts in one tensor are "
            f"read as {', '.join(FLOATS)}.",
            next_step="Choose a checkpoint whose quantised experts are stored one by one.",
        )
    expect(entry, (config.experts, *rows), FLOATS)


def _experts_of(
    config: ModelConfig, entry: TensorEntry, prefix: str, kind: str
) -> dict[str, TensorEntry]:
    """The entries of a stack: a matrix or two of every expert, each a range of bytes."""
    hidden, size = config.hidden_size, config.expert_size
    matrix_bytes = entry.nbytes // (config.experts * (2 if kind == "gate_up_proj" else 1))
    parts, shape = (("down_proj",), (hidden, size))
    if kind == "gate_up_proj":
        parts, shape = (("gate_proj", "up_proj"), (size, hidden))
    names = [f"{expert}.{part}" for expert in range(config.experts) for part in parts]
    return {
        f"{prefix}{name}.weight": replace(
            entry,
            name=f"{entry.name}[{name}]",
            shape=shape,
            offset=entry.offset + place * matrix_bytes,
            nbytes=matrix_bytes,
        )
        for place, name in enumerate(names)
    }


def _add(apart: dict[str, TensorEntry], more: dict[str, TensorEntry]) -> None:
    for name, entry in more.items():
        other = apart.get(name)
        if other is not None:
            raise CheckpointError(
                f"One expert's matrix stands under two names: {other.name} in {other.file.name} and "
                f"{entry.name} in {entry.file.name}.",
                next_step="Remove the file that does not belong to this model.",
            )
        apart[name] = entry
