# SPDX-License-Identifier: MIT OR Apache-2.0
"""One or several stored linears that read the same input, packed for the native products."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from engine.load.stored import Dense, Fp8Block, Fp8Row, Nvfp4, StoredLinear
from engine.load.weights import ModelWeights, parts_of
from engine.model.steps import linear
from kernels.bf16_linear.pack import pack_bf16
from kernels.cpu.product import PackedLinear
from kernels.fp8_linear.pack import pack_fp8_blocks, pack_fp8_rows
from kernels.nvfp4_linear.pack import pack_nvfp4
from kernels.tape import Tape


@dataclass(frozen=True, slots=True)
class Packing:
    """How linears become products.

    fuse: those that read the same input are one product where their formats agree; fuse_gates: those of decay
    and beta; amx: in tiles of the matrix unit.
    """

    fuse: bool = True
    fuse_gates: bool = True
    amx: bool = False

    @property
    def of_gates(self) -> Packing:
        """The packing of decay and beta."""
        return replace(self, fuse=self.fuse_gates)


@dataclass(frozen=True, slots=True)
class Projection:
    """Products over one input whose outputs lie side by side.

    Neighbours in one stored format are one product; others follow each other. `offsets`: first column of each
    part; `width`: columns in all, tile pads included.
    """

    products: tuple[tuple[PackedLinear, int], ...]  # with its first column
    offsets: tuple[int, ...]
    width: int

    @staticmethod
    def pack(*linears: StoredLinear, packing: Packing) -> Projection:
        """Pack and free each linear: afterwards only the packed copy holds its values.

        Without `packing.fuse` every linear is a product of its own; the bits are the same.
        """
        products, offsets, column = [], [], 0
        groups = _runs_of_one_format(linears) if packing.fuse else [[each] for each in linears]
        for group in groups:
            packed = pack_group(group, amx=packing.amx)
            products.append((packed, column))
            offsets += [column + part.offset for part in packed.parts]
            column += packed.columns
            for stored in group:
                free(stored)
        return Projection(tuple(products), tuple(offsets), column)

    @staticmethod
    def pack_gate_up(gate: StoredLinear, up: StoredLinear, packing: Packing) -> Projection | None:
        """SiLU(gate) * up as one product, or None where not fused or the two are stored differently."""
        if not packing.fuse or type(gate) is not type(up):
            return None
        packed = pack_group([gate, up], interleave=True, amx=packing.amx)
        free(gate)
        free(up)
        return Projection(((packed, 0),), (0,), packed.columns)

    @property
    def weight_bytes(self) -> int:
        """Bytes one use reads."""
        return sum(packed.weight_bytes for packed, _ in self.products)

    def append(
        self, tape: Tape, x: Tensor, out: Tensor, rows: int, *, name: str, barrier: bool = True
    ) -> None:
        """Record the products of x[:rows] into the columns of out from 0 to `width`."""
        joined = sum(len(packed.parts) > 1 or packed.interleaved for packed, _ in self.products)
        if joined:
            tape.count(f"joined {name}")
        elif len(self.offsets) > 1:
            tape.count(f"separate {name}")
        for packed, column in self.products:
            columns = min(packed.columns, out.shape[1] - column)
            last = packed is self.products[-1][0]
            linear(
                tape,
                packed,
                x,
                out[:, column : column + columns],
                rows=rows,
                name=name,
                columns=columns,
                # Products of one projection write other columns each, so they need not wait.
                barrier=barrier and last,
            )


def takes_int8(weights: ModelWeights, packing: Packing) -> bool:
    """Whether a product that is no head has a form that reads its input rounded to 8 bits."""
    layers = (*weights.layers, *([weights.mtp] if weights.mtp else []))
    return not packing.amx and any(
        isinstance(part, Nvfp4) for layer in layers for part in parts_of(layer)
    )


def free(stored: StoredLinear) -> None:
    """Give back the memory of a stored linear whose packed copy took its place."""
    for field in fields(stored):
        value = getattr(stored, field.name)
        if isinstance(value, Tensor):
            release(value)


def release(tensor: Tensor) -> None:
    """Give back the memory of a tensor that others may still refer to; it is empty afterwards."""
    tensor.set_(torch.empty(0, dtype=tensor.dtype))


def _runs_of_one_format(linears: tuple[StoredLinear, ...]) -> list[list[StoredLinear]]:
    runs: list[list[StoredLinear]] = []
    for stored in linears:
        if runs and type(runs[-1][0]) is type(stored):
            runs[-1].append(stored)
        else:
            runs.append([stored])
    return runs


def pack_group(group: list[StoredLinear], *, amx: bool, interleave: bool = False) -> PackedLinear:
    """Linears of one format as one product; `interleave`: gate and up with SiLU between. Frees nothing."""
    first = group[0]
    if isinstance(first, Nvfp4):
        parts = [(each.codes, each.scales, each.scale_2) for each in group]
        return pack_nvfp4(parts, interleave=interleave, amx=amx)
    if isinstance(first, Fp8Block | Fp8Row):
        pack = pack_fp8_blocks if isinstance(first, Fp8Block) else pack_fp8_rows
        return pack([(each.codes, each.scale) for each in group], interleave=interleave, amx=amx)
    assert isinstance(first, Dense)
    return pack_bf16([each.weight for each in group], interleave=interleave, amx=amx)
