# SPDX-License-Identifier: MIT OR Apache-2.0
"""e4m3 weights in the tiles of the native products (layouts: cpu.cpp and amx.cpp beside this file)."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu.buffers import aligned_zeros
from kernels.cpu.product import (
    TILE_ROWS,
    PackedLinear,
    PairedTiles,
    fill_tiles,
    pad_to_tiles,
    place_parts,
    place_row_scale,
    words_of,
)

BLOCK = 128
_K_STEP = 32
_NAN, _SIGN = 0x7F, 0x80  # of a code


def pack_fp8_blocks(
    parts: list[tuple[Tensor, Tensor]], *, interleave: bool = False, amx: bool = False
) -> PackedLinear:
    """Repack e4m3 weights with one scale per 128 x 128 block that share their input.

    Args:
        parts: (codes float8_e4m3fn [N, K], scale_inv bf16 or float32 [ceil(N/128), ceil(K/128)]);
            weight = code * scale. N and K are free; the last blocks may be ragged.
        interleave: two parts of equal size, gate then up, whose product is silu(gate) * up.
        amx: for the matrix unit instead of the vector units.

    Raises:
        ValueError: shapes or dtypes differ from the above.
    """
    sizes, k = _check_codes([codes for codes, _ in parts])
    placed, tiles = place_parts(sizes, interleave=interleave)
    blocks = -(-k // BLOCK)
    for (_, scales), size in zip(parts, sizes, strict=True):
        wanted = (-(-size // BLOCK), blocks)
        if tuple(scales.shape) != wanted or scales.dtype not in (torch.bfloat16, torch.float32):
            raise ValueError(
                f"block scales must be bf16 or float32 {list(wanted)},"
                f" got {scales.dtype} {list(scales.shape)}"
            )
    scale = aligned_zeros((tiles, blocks), torch.float32)

    def scales_of(part: int, begin: int, end: int) -> Tensor:
        rows = torch.arange(begin, end, TILE_ROWS) // BLOCK
        return parts[part][1].float()[rows]

    fill_tiles(scale.__setitem__, sizes, scales_of, row_bytes=blocks, interleave=interleave)
    codes = [each for each, _ in parts]
    weight, k_padded, broken = _pack_codes(codes, sizes, tiles, interleave, amx)
    row_scale = None
    if any(bool(rows.any()) for rows in broken):
        row_scale = _scale_rows([1.0] * len(parts), broken, sizes, tiles, interleave)
    return PackedLinear(
        "rondo_fp8_linear",
        weight,
        scale,
        row_scale,
        k,
        k_padded,
        tiles,
        placed,
        interleave,
        scale_stride=blocks * 4,
        amx=amx,
    )


def pack_fp8_rows(
    parts: list[tuple[Tensor, Tensor | float]], *, interleave: bool = False, amx: bool = False
) -> PackedLinear:
    """Repack e4m3 weights with one scale per output, or one per tensor, that share their input.

    Args:
        parts: (codes float8_e4m3fn [N, K], scale float32 or bf16 [N] or [N, 1], or one number).
        interleave: two parts of equal size, gate then up, whose product is silu(gate) * up.
        amx: for the matrix unit instead of the vector units.

    Raises:
        ValueError: shapes or dtypes differ from the above.
    """
    sizes, k = _check_codes([codes for codes, _ in parts])
    placed, tiles = place_parts(sizes, interleave=interleave)
    factors: list[Tensor | float] = []
    for (_, scales), size in zip(parts, sizes, strict=True):
        if isinstance(scales, Tensor) and scales.numel() not in (1, size):
            raise ValueError(f"row scales must hold {size} numbers, got {list(scales.shape)}")
        one = not isinstance(scales, Tensor) or scales.dim() == 0
        factors.append(scales if one else scales.reshape(-1).expand(size))
    codes = [each for each, _ in parts]
    weight, k_padded, broken = _pack_codes(codes, sizes, tiles, interleave, amx)
    row_scale = _scale_rows(factors, broken, sizes, tiles, interleave)
    return PackedLinear(
        "rondo_fp8_linear", weight, None, row_scale, k, k_padded, tiles, placed, interleave, amx=amx
    )


def _check_codes(parts: list[Tensor]) -> tuple[list[int], int]:
    for codes in parts:
        if codes.dtype != torch.float8_e4m3fn or codes.dim() != 2:
            raise ValueError(
                f"codes must be a float8_e4m3fn matrix, got {codes.dtype} {list(codes.shape)}"
            )
        if codes.shape[1] != parts[0].shape[1]:
            raise ValueError(
                f"parts must have {parts[0].shape[1]} inputs each, got {codes.shape[1]}"
            )
    return [codes.shape[0] for codes in parts], parts[0].shape[1]


def _scale_rows(
    factors: list[Tensor | float],
    broken: list[Tensor],
    sizes: list[int],
    tiles: int,
    interleave: bool,
) -> Tensor:
    """The scales of all outputs: NaN where an output has a NaN code, whatever the kernel makes of it."""
    scales: list[Tensor | float] = []
    for factor, rows, size in zip(factors, broken, sizes, strict=True):
        scale = torch.as_tensor(factor, dtype=torch.float32).expand(size)
        scales.append(scale.masked_fill(rows, torch.nan))
    return place_row_scale(scales, sizes, tiles, interleave=interleave)


def _pack_codes(
    parts: list[Tensor], sizes: list[int], tiles: int, interleave: bool, amx: bool
) -> tuple[Tensor, int, list[Tensor]]:
    """The tiles, the inputs stored, and which outputs of each part have a NaN code."""
    k = parts[0].shape[1]
    broken = [torch.zeros(size, dtype=torch.bool) for size in sizes]
    k_padded = -(-k // _K_STEP) * _K_STEP
    units = 1 if amx else k_padded // 4
    weight = PairedTiles(tiles, units, TILE_ROWS * k_padded // units)

    def tiles_of(part: int, begin: int, end: int) -> Tensor:
        raw = parts[part][begin:end].view(torch.uint8)
        positive = raw.view(torch.int8).amax(1) == _NAN
        broken[part][begin:end] = positive | (raw.amax(1) == _NAN | _SIGN)
        rows = pad_to_tiles(raw, k_padded)
        if amx:
            # [tile, two outputs, output of them, 32 inputs, eight of them]
            eights = words_of(rows, torch.int64).view(-1, 8, 2, k_padded // 32, 4)
            return eights.permute(0, 3, 1, 4, 2).unsqueeze(1)
        # [tile, quarter, two outputs, output of them, four inputs, first or second pair]
        pairs = words_of(rows, torch.int16).view(-1, 4, 2, 2, units, 2)
        # [tile, quarter, first or second pair, two outputs, four inputs], the pairs of both side by side
        both = torch.stack([torch.stack(pairs[..., i].unbind(3), -1) for i in (0, 1)], 2)
        return both.view(torch.int32).view(-1, TILE_ROWS, units).transpose(1, 2)

    fill_tiles(weight.put, sizes, tiles_of, row_bytes=k_padded, interleave=interleave)
    return weight.flat, k_padded, broken
