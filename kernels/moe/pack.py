# SPDX-License-Identifier: MIT OR Apache-2.0
"""The weights of all experts of a layer in one allocation, in the tiles of the native products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.cpu.buffers import aligned_empty
from kernels.cpu.product import PackedLinear
from kernels.cpu.threads import side_by_side

_WEIGHT_ALIGNMENT = 64


@dataclass(frozen=True)
class PackedExperts:
    """E weights of one shape and format, expert after expert.

    Attributes:
        shape: expert 0 as a packed weight of its own; the others differ in nothing but the numbers.
        weight: uint8 [E, bytes of an expert's tiles]; scale: [E, ...] scales inside the sum (None without);
            row_scale: float32 [E, tiles * 16] (None without).
    """

    shape: PackedLinear
    weight: Tensor
    scale: Tensor | None
    row_scale: Tensor | None

    @property
    def experts(self) -> int:
        """Number of experts E."""
        return self.weight.shape[0]

    @property
    def outputs(self) -> int:
        """Outputs of one expert: I for a fused gate and up, else N."""
        return self.shape.parts[0].size

    @property
    def expert_bytes(self) -> int:
        """Bytes that one expert's product reads of the weights, scales included."""
        return self.shape.weight_bytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of all experts."""
        return self.experts * self.expert_bytes

    def reading_int8(self) -> PackedExperts:
        """The same experts, their inputs rounded to 8 bits; see `PackedLinear.reading_int8`."""
        return replace(self, shape=self.shape.reading_int8())

    def expert(self, index: int) -> PackedLinear:
        """One expert as a packed weight for `kernels.cpu.product.linear`; a view, nothing is copied."""
        return _expert(self.shape, self.weight, self.scale, self.row_scale, index)


def pack_experts(count: int, pack: Callable[[int], PackedLinear]) -> PackedExperts:
    """The weights pack(0) .. pack(count - 1), each copied into its place as soon as it is packed.

    As many experts are packed side by side as PyTorch has threads.

    Args:
        count: experts of the layer, at least 1.
        pack: the packed weight of one expert, from any packer of the native products: for example
            `lambda e: pack_nvfp4([gate[e], up[e]], interleave=True, amx=library.has_matrix_unit)` for gate
            and up, and `lambda e: pack_nvfp4([down[e]], amx=library.has_matrix_unit)` for down.

    Raises:
        ValueError: no expert, more than one output part, or an expert of another shape or format.
    """
    if count < 1:
        raise ValueError(f"a layer needs at least one expert, got {count}")
    first = pack(0)
    if len(first.parts) != 1:
        raise ValueError(f"an expert has one part, or gate and up interleaved, got {first.parts}")
    if first.weight.numel() % _WEIGHT_ALIGNMENT:
        raise ValueError(f"tiles must fill whole cache lines, got {first.weight.numel()} bytes")
    weight = aligned_empty((count, first.weight.numel()), torch.uint8)
    scale = None
    if first.scale is not None:
        scale = aligned_empty((count, *first.scale.shape), first.scale.dtype)
    row_scales: list[Tensor | None] = [None] * count

    def place(index: int) -> None:
        packed = first if index == 0 else pack(index)
        if _kind(packed) != _kind(first):
            raise ValueError(
                f"expert {index} differs from expert 0: {_kind(packed)} is not {_kind(first)}"
            )
        weight[index] = packed.weight
        if scale is not None:
            scale[index] = packed.scale
        row_scales[index] = packed.row_scale

    side_by_side(place, range(count))
    row_scale = _joined(row_scales)
    shape = _expert(first, weight, scale, row_scale, 0)
    return PackedExperts(shape, weight, scale, row_scale)


def _joined(row_scales: list[Tensor | None]) -> Tensor | None:
    """float32 [E, tiles * 16], ones for an expert without: times one changes no bit. None where all are."""
    held = [scale for scale in row_scales if scale is not None]
    if not held:
        return None
    joined = aligned_empty((len(row_scales), held[0].numel()), torch.float32)
    for into, scale in zip(joined, row_scales, strict=True):
        into.copy_(torch.ones_like(held[0]) if scale is None else scale)
    return joined


def _expert(
    shape: PackedLinear, weight: Tensor, scale: Tensor | None, row_scale: Tensor | None, index: int
) -> PackedLinear:
    return replace(
        shape,
        weight=weight[index],
        scale=None if scale is None else scale[index],
        row_scale=None if row_scale is None else row_scale[index],
    )


def _kind(packed: PackedLinear) -> tuple:
    """What experts of one layer have in common."""
    scale = None if packed.scale is None else (packed.scale.dtype, tuple(packed.scale.shape))
    return (
        packed.entry,
        packed.weight.numel(),
        scale,
        packed.scale_stride,
        packed.k,
        packed.k_padded,
        packed.tiles,
        packed.parts,
        packed.interleaved,
    )
