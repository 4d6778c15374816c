# SPDX-License-Identifier: MIT OR Apache-2.0
"""Where a native pass first holds a number that is none."""

from __future__ import annotations

import torch

from engine.model.backend import VERIFY_ROWS
from engine.model.native_forward import NativeForward
from kernels.elementwise.native import statistics
from kernels.tape import Pool, Tape


def first_suspect(forward: NativeForward, pool: Pool, rows: int) -> str:
    """Run the first `rows` tokens in the arena from an empty state and look behind every step.

    The sequence is lost; a weight that is bad shows from any state.
    """
    arena = forward.arena
    if not forward.weights.embed[arena.ids[:rows].long()].isfinite().all():
        return "the token embedding"
    found = torch.zeros(rows, 3)
    suspects: list[str] = []

    def look(tape: Tape, layer: int, part: str) -> None:
        statistics(tape, x=arena.residual, out=found, rows=rows)
        if float(found[:, 2].sum()) > 0:
            suspects.append(f"layer {layer}, {part}")

    tape = Tape(pool, eager=True)
    forward.trunk(tape, rows=rows, parity=0, advance=True, after_layer=look)
    if suspects:
        return suspects[0]
    if not arena.hidden[:rows].isfinite().all():
        return "the final norm"
    for at in range(0, rows, VERIFY_ROWS):
        part = min(VERIFY_ROWS, rows - at)
        forward.head(tape, arena.hidden[at:], part)
        if (arena.best[:part] < 0).any():
            return "the output head"
    return "the state of this sequence; its last tokens alone do not show it"
