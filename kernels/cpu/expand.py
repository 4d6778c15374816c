# SPDX-License-Identifier: MIT OR Apache-2.0
"""Packed weights back as matrices, for a library product or a check: the inverse of each format's packing."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu.product import TILE_ROWS, PackedLinear
from kernels.e2m1.reference import decode, unpack
from kernels.nvfp4_linear.pack import AMX_CODE_BYTES, AMX_INPUTS, AMX_UNIT_BYTES

_FP8_BLOCK = 128


def expand(packed: PackedLinear, first: int = 0, end: int | None = None) -> Tensor:
    """Weights of the tiles [first, end): float32 [(end - first) * 16, k], every scale applied.

    Rows lie in the order of the tiles: an interleaved weight alternates 16 of gate with 16 of up. Pads of tiles
    are zeros. A code times its scale is exact in float32; a factor on whole rows rounds once more.

    Raises:
        ValueError: tiles outside of 0..tiles, or a format without an inverse.
    """
    end = packed.tiles if end is None else end
    if not 0 <= first <= end <= packed.tiles:
        raise ValueError(f"tiles {first}..{end} do not lie in 0..{packed.tiles}")
    inverse = {
        "rondo_nvfp4_linear": _nvfp4,
        "rondo_fp8_linear": _fp8,
        "rondo_bf16_linear": _bf16,
    }.get(packed.function)
    if inverse is None:
        raise ValueError(f"{packed.function} has no inverse here")
    tiles = torch.arange(first, end)
    rows = inverse(packed, tiles)[:, : packed.k]
    if packed.row_scale is not None:
        rows = rows * packed.row_scale.view(-1, TILE_ROWS)[tiles].view(-1, 1)
    return rows


def _tiles(flat: Tensor, tiles: Tensor, units: int, unit_bytes: int) -> Tensor:
    """The bytes of some tiles, uint8 [n, units, unit bytes], from pairs whose units alternate."""
    pairs = flat.view(-1, units, 2, unit_bytes)
    return pairs[tiles // 2, :, tiles % 2]


def _nvfp4(packed: PackedLinear, tiles: Tensor) -> Tensor:
    if packed.amx:
        return _nvfp4_amx(packed.weight, tiles, packed.k_padded)
    groups = packed.k // 16
    raw = _tiles(packed.weight, tiles, groups, TILE_ROWS * 8)
    # [tile, group, half, output, byte] -> [tile, output, group, half, byte]
    lanes = raw.view(-1, groups, 2, TILE_ROWS, 4).permute(0, 3, 1, 2, 4)
    # A byte holds two values; bytes 0 and 1 of a half are its even inputs, 2 and 3 the odd ones.
    pairs = decode(unpack(torch.arange(256, dtype=torch.uint8).view(-1, 1)))
    values = pairs.index_select(0, lanes.reshape(-1).int()).view(-1, groups, 2, 2, 4)
    values = values.transpose(-1, -2).reshape(-1, groups, 16)
    assert packed.scale is not None
    codes = _tiles(packed.scale, tiles, groups, TILE_ROWS).transpose(1, 2).reshape(-1, groups, 1)
    mantissa, exponent = (codes & 7).float() + 8.0, (codes >> 3).int() - 13
    return (values * torch.ldexp(mantissa, exponent)).reshape(-1, packed.k)


def _nvfp4_amx(weight: Tensor, tiles: Tensor, width: int) -> Tensor:
    units = width // AMX_INPUTS
    raw = _tiles(weight, tiles, 1, units * AMX_UNIT_BYTES).view(-1, units, AMX_UNIT_BYTES)
    # [tile, 32 inputs, four outputs, group, input, output of them] -> [tile, output, group, input]
    codes = unpack(raw[..., :AMX_CODE_BYTES].view(-1, units, 4, 2, 16, 2))
    values = decode(codes.permute(0, 2, 5, 1, 3, 4)).reshape(-1, width // 16, 16)
    scales = raw[..., AMX_CODE_BYTES:].view(-1, units, TILE_ROWS, 2).transpose(1, 2)
    groups = scales.reshape(-1, width // 16, 1).view(torch.float8_e4m3fn)
    return (values * groups.float()).reshape(-1, width)


def _fp8(packed: PackedLinear, tiles: Tensor) -> Tensor:
    width = packed.k_padded
    if packed.amx:
        raw = _tiles(packed.weight, tiles, 1, TILE_ROWS * width)
        # [tile, 32 inputs, two outputs, quarter, output of them, input in the quarter]
        lanes = raw.view(-1, width // 32, 8, 4, 2, 8).permute(0, 2, 4, 1, 3, 5)
    else:
        raw = _tiles(packed.weight, tiles, width // 4, TILE_ROWS * 4)
        # [tile, four inputs, quarter, pair, output in it, input in the pair]
        lanes = raw.view(-1, width // 4, 4, 2, 4, 2).permute(0, 2, 4, 1, 3, 5)
    values = lanes.reshape(-1, width).view(torch.float8_e4m3fn).float()
    if packed.scale is None:
        return values
    # The blocks cover k inputs; the pads behind them are zeros whatever they are multiplied with.
    scale = packed.scale[tiles].repeat_interleave(_FP8_BLOCK, 1)[:, : packed.k]
    return values[:, : packed.k] * scale.repeat_interleave(TILE_ROWS, 0)


def _bf16(packed: PackedLinear, tiles: Tensor) -> Tensor:
    width = packed.k_padded
    unit = 32 if packed.amx else 2  # inputs
    units = 1 if packed.amx else width // unit
    raw = _tiles(packed.weight, tiles, units, TILE_ROWS * 2 * width // units)
    lanes = raw.contiguous().view(torch.bfloat16).view(-1, width // unit, TILE_ROWS, unit)
    return lanes.transpose(1, 2).reshape(-1, width).float()
