# SPDX-License-Identifier: MIT OR Apache-2.0
"""NVFP4 weights in the tiles of the native products (layouts: cpu.cpp and amx.cpp beside this file)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from kernels.cpu.product import (
    TILE_ROWS,
    PackedLinear,
    PairedTiles,
    Part,
    fill_tiles,
    pad_rows,
    place_parts,
    place_row_scale,
)
from kernels.e2m1.reference import unpack

GROUP = 16
# What 16 outputs x 32 inputs take in a tile of amx.cpp: two codes a byte, behind them a scale for every group.
AMX_INPUTS = 32
AMX_CODE_BYTES = TILE_ROWS * AMX_INPUTS // 2
AMX_UNIT_BYTES = AMX_CODE_BYTES + TILE_ROWS * AMX_INPUTS // GROUP
_SMALLEST = 8


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
        zero = (scales[begin:end].view(torch.uint8) & 0x7F) == 0
        rows = codes[begin:end].view(end - begin, groups, 8)
        return _tile_codes(pad_rows(rows.masked_fill(zero.unsqueeze(-1), 0)))

    def scales_of(part: int, begin: int, end: int) -> Tensor:
        raw = parts[part][1][begin:end].view(torch.uint8)
        rows = pad_rows(table[raw.long()])
        return rows.view(-1, TILE_ROWS, groups).transpose(1, 2).reshape(-1, groups * TILE_ROWS)

    fill_tiles(weight.put, sizes, codes_of, interleave=interleave)
    fill_tiles(scale.put, sizes, scales_of, interleave=interleave)
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
        codes = pad_rows(unpack(stored[begin:end]))
        codes = functional.pad(codes, (0, AMX_INPUTS * units - codes.shape[1]))
        # [tile, four outputs, output of them, 32 inputs, group, input] -> words of four outputs
        nibbles = codes.view(-1, 4, 4, units, 2, GROUP).permute(0, 3, 1, 4, 5, 2)
        pairs = nibbles[..., 0::2] | nibbles[..., 1::2] << 4
        raw = pad_rows(scales[begin:end].view(torch.uint8) & 0x7F)
        raw = functional.pad(raw, (0, 2 * units - groups))
        raw = raw.view(-1, TILE_ROWS, units, 2).transpose(1, 2).flatten(2)
        return torch.cat([pairs.flatten(2), raw], dim=2).flatten(1)

    fill_tiles(weight.put, sizes, tiles_of, interleave=interleave)
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
        if bool(((raw > 0x80) | (raw == 0x7F)).any()):
            raise ValueError("NVFP4 scales must be numbers that are not negative")
        if isinstance(scale_2, Tensor) and scale_2.numel() != 1:
            raise ValueError(f"scale_2 must be one number, got shape {list(scale_2.shape)}")
    return k // GROUP


def _normalised_scales() -> Tensor:
    """uint8 [256]: e4m3 code -> (exponent + 10) << 3 | mantissa; zero maps to the smallest."""
    values = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().abs()
    mantissa, exponent = torch.frexp(values.nan_to_num(1.0))
    code = ((exponent + 9) << 3) + (mantissa * 16).int() - 8
    return torch.where(values == 0, _SMALLEST, code).to(torch.uint8)


def _tile_codes(rows: Tensor) -> Tensor:
    """uint8 [16 t, groups, 8] of stored bytes -> [t, groups * 128] in the order of a tile."""
    low, high = rows & 15, rows >> 4
    lanes = torch.stack(
        [
            low[..., 0::4] | low[..., 1::4] << 4,
            low[..., 2::4] | low[..., 3::4] << 4,
            high[..., 0::4] | high[..., 1::4] << 4,
            high[..., 2::4] | high[..., 3::4] << 4,
        ],
        dim=-1,
    )
    tiles = lanes.view(-1, TILE_ROWS, rows.shape[1], 2, 4)
    return tiles.permute(0, 2, 3, 1, 4).reshape(tiles.shape[0], -1)
