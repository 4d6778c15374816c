# SPDX-License-Identifier: MIT OR Apache-2.0
"""bf16 weights in the tiles of the native products (layouts: cpu.cpp and amx.cpp beside this file)."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu.product import (
    TILE_ROWS,
    PackedLinear,
    PairedTiles,
    fill_tiles,
    pad_to_tiles,
    place_parts,
    words_of,
)

_K_STEP = 32


def pack_bf16(parts: list[Tensor], *, interleave: bool = False, amx: bool = False) -> PackedLinear:
    """Repack bf16 weights [N, K] that share their input into one product.

    Args:
        parts: one weight each; any K is accepted and padded with zeros to a multiple of 32.
        interleave: two parts of equal size, gate then up, whose product is silu(gate) * up.
        amx: for the matrix unit instead of the vector units.

    Raises:
        ValueError: a part is no bf16 matrix, or the parts differ in K.
    """
    for part in parts:
        if part.dtype != torch.bfloat16 or part.dim() != 2 or part.shape[1] != parts[0].shape[1]:
            raise ValueError(
                f"parts must be bf16 matrices with {parts[0].shape[-1]} inputs,"
                f" got {part.dtype} {list(part.shape)}"
            )
    sizes = [part.shape[0] for part in parts]
    placed, tiles = place_parts(sizes, interleave=interleave)
    k = parts[0].shape[1]
    k_padded = -(-k // _K_STEP) * _K_STEP
    units = 1 if amx else k_padded // 2
    weight = PairedTiles(tiles, units, TILE_ROWS * 2 * k_padded // units)

    def tiles_of(part: int, begin: int, end: int) -> Tensor:
        rows = pad_to_tiles(parts[part][begin:end], k_padded)
        if amx:
            return rows.view(-1, TILE_ROWS, k_padded // 32, 32).transpose(1, 2).unsqueeze(1)
        return words_of(rows, torch.int32).view(-1, TILE_ROWS, units).transpose(1, 2)

    fill_tiles(weight.put, sizes, tiles_of, row_bytes=2 * k_padded, interleave=interleave)
    return PackedLinear(
        "rondo_bf16_linear",
        weight.flat,
        None,
        None,
        k,
        k_padded,
        tiles,
        placed,
        interleave,
        amx=amx,
    )
