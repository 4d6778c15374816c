# SPDX-License-Identifier: MIT OR Apache-2.0
"""NVFP4 weights in the tiles of the native products (layouts: layout.h and amx.cpp beside this file)."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from kernels.cpu.product import (
    TILE_ROWS,
    PackedLinear,
    PairedTiles,
    Part,
    fill_tiles,
    pad_to_tiles,
    place_parts,
    place_row_scale,
    words_of,
)

GROUP = 16
# What 16 outputs x 32 inputs take in a tile of amx.cpp: two codes a byte, behind them a scale for every group.
AMX_INPUTS = 32
AMX_CODE_BYTES = TILE_ROWS * AMX_INPUTS // 2
AMX_UNIT_BYTES = AMX_CODE_BYTES + TILE_ROWS * AMX_INPUTS // GROUP
_SMALLEST = 8
_LOW_NIBBLES = 0x0F0F0F0F0F0F0F0F


def pack_nvfp4(
    parts: list[tuple[Tensor, Tensor, Tensor | float]],
    *,
    interleave: bool = False,
    amx: bool = False,
) -> PackedLinear:
    """Repack NVFP4 weights that share their input into one product.

    Args:
        parts: (codes uint8 [N, K/2] with the even input in the low nibble, scales e4m3 [N, K/16],
            scale_2 scalar) of each weight; weight = e2m1(code) * scale * scale_2.
        interleave: two parts of equal size, gate then up, whose product is silu(gate) * up.
        amx: for the matrix unit instead of the vector units.

    Raises:
        ValueError: shapes or dtypes differ from the above, K is no multiple of 16, or a scale is
            negative or NaN.
    """
    sizes = [part[0].shape[0] for part in parts]
    placed, tiles = place_parts(sizes, interleave=interleave)
    groups = _check(parts)
    if amx:
        return _pack_matrix_tiles(parts, sizes, placed, tiles, groups, interleave)
    weight = PairedTiles(tiles, groups, TILE_ROWS * GROUP // 2)
    scale = PairedTiles(tiles, groups, TILE_ROWS)
    table = _normalised_scales()

    def codes_of(part: int, begin: int, end: int) -> Tensor:
        codes, scales, _ = parts[part]
        rows = words_of(codes[begin:end], torch.int64)  # one a group
        magnitudes = scales[begin:end].view(torch.uint8) & 0x7F
        if not int(magnitudes.min()):
            rows = rows.masked_fill(magnitudes == 0, 0)
        words = _halves(pad_to_tiles(rows, groups)).view(torch.int32)
        return words.view(-1, TILE_ROWS, groups, 2).permute(0, 2, 3, 1)

    def scales_of(part: int, begin: int, end: int) -> Tensor:
        raw = parts[part][1][begin:end].view(torch.uint8)
        rows = table.index_select(0, raw.flatten().int()).view(raw.shape)
        return pad_to_tiles(rows, groups).view(-1, TILE_ROWS, groups).transpose(1, 2)

    fill_tiles(weight.put, sizes, codes_of, row_bytes=groups * 8, interleave=interleave)
    fill_tiles(scale.put, sizes, scales_of, row_bytes=groups, interleave=interleave)
    factors = [part[2] for part in parts]
    row_scale = place_row_scale(factors, sizes, tiles, interleave=interleave)
    k = groups * GROUP
    return PackedLinear(
        "rondo_nvfp4_linear",
        weight.flat,
        scale.flat,
        row_scale,
        k,
        k,
        tiles,
        placed,
        interleave,
        scale_stride=groups * TILE_ROWS,
    )


def _pack_matrix_tiles(
    parts: list[tuple[Tensor, Tensor, Tensor | float]],
    sizes: list[int],
    placed: tuple[Part, ...],
    tiles: int,
    groups: int,
    interleave: bool,
) -> PackedLinear:
    """The tiles of amx.cpp: codes and scales of 16 outputs x 32 inputs side by side."""
    units = -(-groups * GROUP // AMX_INPUTS)
    weight = PairedTiles(tiles, 1, units * AMX_UNIT_BYTES)

    def tiles_of(part: int, begin: int, end: int) -> Tensor:
        stored, scales, _ = parts[part]
        codes = pad_to_tiles(words_of(stored[begin:end], torch.int64), 2 * units)
        # [tile, four outputs, two of them, output of these, groups]
        rows = codes.view(-1, 4, 2, 2, 2 * units)
        even, odd = rows[:, :, :, 0], rows[:, :, :, 1]
        low = (even & _LOW_NIBBLES) | (odd & _LOW_NIBBLES) << 4
        high = (even >> 4 & _LOW_NIBBLES) | (odd & ~_LOW_NIBBLES)
        # Every byte is one input of two outputs; four are two inputs of four outputs.
        stored_bytes = [two.view(torch.uint8) for each in (low, high) for two in each.unbind(2)]
        fours = torch.stack(stored_bytes, -1).view(-1, 4, units, AMX_CODE_BYTES // 4)
        raw = pad_to_tiles(scales[begin:end].view(torch.uint8) & 0x7F, 2 * units)
        made = raw.new_empty(len(fours), units, AMX_UNIT_BYTES)
        codes, factors = made.split([AMX_CODE_BYTES, AMX_UNIT_BYTES - AMX_CODE_BYTES], 2)
        codes.unflatten(2, (4, -1)).copy_(fours.transpose(1, 2))
        factors.unflatten(2, (-1, 2)).copy_(raw.view(-1, TILE_ROWS, units, 2).transpose(1, 2))
        return made.unsqueeze(1)

    fill_tiles(weight.put, sizes, tiles_of, row_bytes=groups * 8, interleave=interleave)
    factors = [part[2] for part in parts]
    return PackedLinear(
        "rondo_nvfp4_linear",
        weight.flat,
        None,
        place_row_scale(factors, sizes, tiles, interleave=interleave),
        groups * GROUP,
        units * AMX_INPUTS,
        tiles,
        placed,
        interleave,
        amx=True,
    )


def _check(parts: list[tuple[Tensor, Tensor, Tensor | float]]) -> int:
    k = parts[0][0].shape[1] * 2
    if k % GROUP or not k:
        raise ValueError(f"NVFP4 weights need inputs in multiples of {GROUP}, got {k}")
    for codes, scales, scale_2 in parts:
        if codes.dtype != torch.uint8 or tuple(codes.shape) != (codes.shape[0], k // 2):
            raise ValueError(
                f"codes must be uint8 [N, {k // 2}], got {codes.dtype} {list(codes.shape)}"
            )
        if tuple(scales.shape) != (codes.shape[0], k // GROUP):
            raise ValueError(
                f"scales must have shape {[codes.shape[0], k // GROUP]}, got {list(scales.shape)}"
            )
        if scales.dtype != torch.float8_e4m3fn:
            raise ValueError(f"scales must be torch.float8_e4m3fn, got {scales.dtype}")
        raw = scales.view(torch.uint8)
        if int(raw.max()) >= 0x7F and bool(((raw > 0x80) | (raw == 0x7F)).any()):
            raise ValueError("NVFP4 scales must be numbers that are not negative")
        if isinstance(scale_2, Tensor) and scale_2.numel() != 1:
            raise ValueError(f"scale_2 must be one number, got shape {list(scale_2.shape)}")
    return k // GROUP


@cache
def _normalised_scales() -> Tensor:
    """uint8 [256]: e4m3 code -> (exponent + 10) << 3 | mantissa; zero maps to the smallest."""
    values = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().abs()
    mantissa, exponent = torch.frexp(values.nan_to_num(1.0))
    code = ((exponent + 9) << 3) + (mantissa * 16).int() - 8
    return torch.where(values == 0, _SMALLEST, code).to(torch.uint8)


def _halves(groups: Tensor) -> Tensor:
    """int64, 16 stored codes each -> the same in the order of a tile: of every eight the even ones first."""
    return _swapped(_swapped(groups, 0x00F000F000F000F0, 4), 0x0000FF000000FF00, 8)


def _swapped(words: Tensor, mask: int, bits: int) -> Tensor:
    """int64 words with the bits under `mask` and those `bits` above them exchanged."""
    differ = words >> bits
    differ ^= words
    differ &= mask
    swapped = words ^ differ
    differ <<= bits
    swapped ^= differ
    return swapped
