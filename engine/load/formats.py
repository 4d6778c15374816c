# SPDX-License-Identifier: MIT OR Apache-2.0
"""How each linear is stored, decided by the keys, dtypes and shapes of its own tensors.

One key name means several things across producers, so metadata is never asked: `weight_scale_2` multiplies,
`weight_global_scale` divides, and `weight_scale` is told apart by its dtype and shape.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import CheckpointError, UnsupportedModelError
from engine.load.safetensors_index import TensorEntry
from engine.load.stored import FP8_BLOCK, NVFP4_GROUP
from engine.load.tensor_table import LinearSlot

DENSE = "dense"
NVFP4_MULTIPLY = "NVFP4, scale_2 multiplies"
NVFP4_DIVIDE = "NVFP4, global scale divides"
FP8_BLOCKS = "FP8, 128x128 blocks"
FP8_ROWS = "FP8, per row"
FP8_TENSOR = "FP8, per tensor"

FLOATS = ("BF16", "F16", "F32")
PARTS = (
    "weight",
    "weight_packed",
    "weight_scale",
    "weight_scale_2",
    "weight_scale_inv",
    "weight_global_scale",
)
_ONE_NUMBER = ((), (1,), (1, 1))
# Activation and KV-cache scales of the quantised formats; weights stay 4 or 8 bits, activations BF16.
UNUSED_PARTS = ("input_scale", "input_global_scale", "k_scale", "v_scale")


@dataclass(frozen=True, slots=True)
class LinearPlan:
    """One linear's stored form (a constant of this module) and the tensors it is read from."""

    slot: LinearSlot
    form: str
    codes: TensorEntry
    scale: TensorEntry | None = None
    scale_2: TensorEntry | None = None

    @property
    def entries(self) -> tuple[TensorEntry, ...]:
        """The tensors to read."""
        return tuple(e for e in (self.codes, self.scale, self.scale_2) if e is not None)


def classify(slot: LinearSlot, parts: dict[str, TensorEntry]) -> LinearPlan:
    """The stored form of one linear.

    Args:
        slot: its module name and shape.
        parts: its tensors by the last part of their names (PARTS); at least one.

    Raises:
        CheckpointError: tensors that are missing or do not fit together.
        UnsupportedModelError: a form that is not known here.
    """
    if "weight_packed" in parts:
        wanted = ("weight_packed", "weight_scale", "weight_global_scale")
        return _nvfp4(slot, parts, wanted, NVFP4_DIVIDE)
    weight = _part(slot, parts, "weight")
    if weight.dtype == "U8":
        wanted = ("weight", "weight_scale", "weight_scale_2")
        return _nvfp4(slot, parts, wanted, NVFP4_MULTIPLY)
    if weight.dtype == "F8_E4M3":
        return _fp8(slot, parts)
    if weight.dtype in FLOATS:
        _only(slot, parts, ("weight",))
        expect(weight, (slot.rows, slot.columns), FLOATS)
        return LinearPlan(slot, DENSE, weight)
    raise UnsupportedModelError(
        f"{weight.file.name}: tensor {weight.name} is {weight.describe()}; this engine reads BF16, "
        "F16, F32, NVFP4 (U8) and FP8 (F8_E4M3) weights.",
        next_step="Choose a BF16, FP8 or NVFP4 checkpoint of this model.",
    )


def expect(entry: TensorEntry, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> None:
    """Raise CheckpointError unless the tensor has this shape and one of these dtypes."""
    if entry.shape != shape:
        raise CheckpointError(
            f"{entry.file.name}: tensor {entry.name} has shape {list(entry.shape)}, "
            f"expected {list(shape)} by config.json.",
            next_step="Use the config.json and the weights of one published model.",
        )
    _expect_dtype(entry, dtypes)


def _expect_dtype(entry: TensorEntry, dtypes: tuple[str, ...]) -> None:
    if entry.dtype not in dtypes:
        raise CheckpointError(
            f"{entry.file.name}: tensor {entry.name} is {entry.dtype}, "
            f"expected {' or '.join(dtypes)}.",
            next_step="Use the weights as they were published.",
        )


def _expect_scale(
    slot: LinearSlot, entry: TensorEntry, shape: tuple[int, ...], dtypes: tuple[str, ...]
) -> None:
    """Raise CheckpointError unless a scale of this linear is as its format has it; () means one number."""
    fits = entry.shape in _ONE_NUMBER if shape == () else entry.shape == shape
    if not fits:
        wanted = "one number" if shape == () else str(list(shape))
        raise CheckpointError(
            f"{entry.file.name}: tensor {entry.name} has shape {list(entry.shape)}, "
            f"expected {wanted} beside weights of {[slot.rows, slot.columns]}.",
            next_step="Use the weights as they were published.",
        )
    _expect_dtype(entry, dtypes)


def _nvfp4(
    slot: LinearSlot, parts: dict[str, TensorEntry], wanted: tuple[str, str, str], form: str
) -> LinearPlan:
    codes, scale, scale_2 = (_part(slot, parts, name) for name in wanted)
    _only(slot, parts, wanted)
    if slot.columns % NVFP4_GROUP:
        raise UnsupportedModelError(
            f"{codes.file.name}: {codes.name} has {slot.columns} columns, which NVFP4 cannot group "
            f"by {NVFP4_GROUP}.",
            next_step="Choose a BF16 or FP8 checkpoint of this model.",
        )
    expect(codes, (slot.rows, slot.columns // 2), ("U8",))
    _expect_scale(slot, scale, (slot.rows, slot.columns // NVFP4_GROUP), ("F8_E4M3",))
    _expect_scale(slot, scale_2, (), ("F32",))
    return LinearPlan(slot, form, codes, scale, scale_2)


def _fp8(slot: LinearSlot, parts: dict[str, TensorEntry]) -> LinearPlan:
    weight = parts["weight"]
    key = "weight_scale_inv" if "weight_scale_inv" in parts else "weight_scale"
    scale = _part(slot, parts, key)
    _only(slot, parts, ("weight", key))
    expect(weight, (slot.rows, slot.columns), ("F8_E4M3",))
    blocks = (-(-slot.rows // FP8_BLOCK), -(-slot.columns // FP8_BLOCK))
    if key == "weight_scale_inv" or scale.shape == blocks:
        form, shape = FP8_BLOCKS, blocks
    elif scale.shape in _ONE_NUMBER:
        form, shape = FP8_TENSOR, ()
    elif scale.shape in ((slot.rows,), (slot.rows, 1)):
        form, shape = FP8_ROWS, scale.shape
    else:
        raise CheckpointError(
            f"{scale.file.name}: tensor {scale.name} has shape {list(scale.shape)}; expected one "
            f"scale, one for each of {slot.rows} rows, or {list(blocks)} for blocks of 128x128.",
            next_step="Use the weights as they were published.",
        )
    _expect_scale(slot, scale, shape, FLOATS)
    return LinearPlan(slot, form, weight, scale)


def _part(slot: LinearSlot, parts: dict[str, TensorEntry], name: str) -> TensorEntry:
    entry = parts.get(name)
    if entry is None:
        raise CheckpointError(
            f"{slot.module} is incomplete: tensor {slot.module}.{name} is missing beside "
            f"{_list(parts)}.",
            next_step="Download the weight files of this model again.",
        )
    return entry


def _only(slot: LinearSlot, parts: dict[str, TensorEntry], wanted: tuple[str, ...]) -> None:
    extra = {name: entry for name, entry in parts.items() if name not in wanted}
    if extra:
        raise UnsupportedModelError(
            f"{slot.module} has tensors of two formats: {_list(parts)}; "
            f"with {wanted[0]} of this dtype only {', '.join(wanted)} belong together.",
            next_step="Choose a BF16, FP8 or NVFP4 checkpoint of this model.",
        )


def _list(parts: dict[str, TensorEntry]) -> str:
    return ", ".join(f"{name} ({entry.describe()})" for name, entry in sorted(parts.items()))
