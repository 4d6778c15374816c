# SPDX-License-Identifier: MIT OR Apache-2.0
"""Where a GPU pass first holds a number that is none."""

from __future__ import annotations

from engine.model.cuda_forward import CudaForward


def first_suspect(forward: CudaForward, rows: int) -> str:
    """Run the first `rows` tokens, at most 32, from an empty state and look behind every sublayer.

    The sequence is lost; a weight that is bad shows from any state.
    """
    arena, ids = forward.arena, forward.inputs.ids
    if not forward.weights.embed[ids[:rows].long()].isfinite().all():
        return "the token embedding"
    suspects: list[str] = []

    def look(layer: int, part: str) -> None:
        if not suspects and not arena.residual[:rows].isfinite().all():
            suspects.append(f"layer {layer}, {part}")

    forward.verify(rows=rows, parity=0, tree=False, context=len(arena.places), after_layer=look)
    if suspects:
        return suspects[0]
    if not arena.hidden[:rows].isfinite().all():
        return "the final norm"
    if (arena.best[:rows] < 0).any():
        return "the output head"
    return "the state of this sequence; its last tokens alone do not show it"
