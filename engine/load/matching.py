# SPDX-License-Identifier: MIT OR Apache-2.0
"""The slots of a model or a drafter with the tensors that fill them, what is missing and what is left over."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.load.formats import FLOATS, PARTS, UNUSED_PARTS, LinearPlan, classify, expect
from engine.load.safetensors_index import TensorEntry
from engine.load.tensor_table import LinearSlot, Slot, VectorSlot


@dataclass(frozen=True, slots=True)
class Matched:
    """`linears` by module name and `vectors` by tensor name; `missing` in words; `unclaimed` by name."""

    linears: dict[str, LinearPlan]
    vectors: dict[str, tuple[VectorSlot, TensorEntry]]
    missing: list[str]
    unclaimed: dict[str, TensorEntry]


def match_slots(slots: Iterable[Slot], found: dict[str, TensorEntry]) -> Matched:
    """Every slot with its tensors out of `found`, by name.

    Raises:
        CheckpointError: a tensor of a shape or a type that its slot does not take.
        UnsupportedModelError: a stored form that this engine does not read.
    """
    linears: dict[str, LinearPlan] = {}
    vectors: dict[str, tuple[VectorSlot, TensorEntry]] = {}
    missing: list[str] = []
    unclaimed = dict(found)
    for slot in slots:
        if isinstance(slot, LinearSlot):
            names = {part: f"{slot.module}.{part}" for part in (*PARTS, *UNUSED_PARTS)}
            parts = {part: found[names[part]] for part in PARTS if names[part] in found}
            for name in names.values():
                unclaimed.pop(name, None)
            if parts:
                linears[slot.module] = classify(slot, parts)
            else:
                missing.append(f"{slot.module}.weight [{slot.rows}, {slot.columns}]")
        elif slot.name in found:
            expect(found[slot.name], slot.shape, FLOATS)
            vectors[slot.name] = (slot, unclaimed.pop(slot.name))
        else:
            missing.append(f"{slot.name} {list(slot.shape)}")
    return Matched(linears, vectors, missing, unclaimed)


def tensors(count: int) -> str:
    """ "1 tensor", "2 tensors"."""
    return f"{count} tensor{'s' if count > 1 else ''}"
