# SPDX-License-Identifier: MIT OR Apache-2.0
"""Packed weights expand to exactly the values that were packed."""

from __future__ import annotations

import pytest
import torch

from kernels.bf16_linear.pack import pack_bf16
from kernels.cpu.expand import expand
from kernels.cpu.product import PackedLinear
from kernels.e2m1.reference import decode, unpack
from kernels.fp8_linear.pack import pack_fp8_blocks, pack_fp8_rows
from kernels.nvfp4_linear.pack import AMX_CODE_BYTES, AMX_UNIT_BYTES, pack_nvfp4


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def nvfp4(rows: int, k: int, seed: int, factor: float) -> tuple[tuple, torch.Tensor]:
    codes = torch.randint(0, 256, (rows, k // 2), generator=seeded(seed)).to(torch.uint8)
    raw = torch.randint(0, 0x7F, (rows, k // 16), generator=seeded(seed + 1)).to(torch.uint8)
    scales = raw.view(torch.float8_e4m3fn)
    values = decode(unpack(codes)).view(rows, -1, 16) * scales.float().unsqueeze(-1)
    return (codes, scales, factor), values.view(rows, k) * factor


def outputs(packed: PackedLinear, rows: torch.Tensor) -> torch.Tensor:
    """The rows of the parts, pads left out."""
    return torch.cat([rows[part.offset : part.offset + part.size] for part in packed.parts])


@pytest.fixture(params=[False, True], ids=["vector", "matrix"])
def amx(request: pytest.FixtureRequest) -> bool:
    """Tiles of the vector units or of the matrix unit."""
    return request.param


@pytest.mark.parametrize("sizes", [(16,), (40, 7), (3, 48, 16)])
def test_nvfp4_weights(sizes: tuple[int, ...], amx: bool) -> None:
    made = [nvfp4(size, 48, 7 * index, 0.5**index) for index, size in enumerate(sizes)]
    packed = pack_nvfp4([part for part, _ in made], amx=amx)
    wanted = torch.cat([values for _, values in made])
    assert torch.equal(outputs(packed, expand(packed)), wanted)
    assert torch.equal(expand(packed, 1, packed.tiles), expand(packed)[16:])


def test_a_matrix_tile_keeps_its_scales_behind_its_codes() -> None:
    """16 outputs x 32 inputs are 256 bytes of codes and 32 of scales, as amx.cpp reads them."""
    assert (AMX_CODE_BYTES, AMX_UNIT_BYTES) == (256, 288)
    (codes, scales, factor), _ = nvfp4(16, 64, 3, 1.0)
    packed = pack_nvfp4([(codes, scales, factor)], amx=True)
    units = packed.weight.view(-1, AMX_UNIT_BYTES)[:2]
    stored = scales.view(torch.uint8).view(16, 2, 2).transpose(0, 1).reshape(2, 32)
    assert torch.equal(units[:, AMX_CODE_BYTES:], stored)


def test_interleaved_weights_alternate_by_tiles(amx: bool) -> None:
    (gate, gate_values), (up, up_values) = nvfp4(20, 32, 1, 1.0), nvfp4(20, 32, 9, 2.0)
    rows = expand(pack_nvfp4([gate, up], interleave=True, amx=amx)).view(-1, 2, 16, 32)
    assert torch.equal(rows[:, 0].reshape(-1, 32)[:20], gate_values)
    assert torch.equal(rows[:, 1].reshape(-1, 32)[:20], up_values)
    assert not rows[-1, :, 4:].any()


@pytest.mark.parametrize("k", [130, 256])
def test_fp8_weights(k: int, amx: bool) -> None:
    codes = torch.randn(150, k, generator=seeded(2)).to(torch.float8_e4m3fn)
    scale = torch.rand(2, -(-k // 128), generator=seeded(3)) + 0.5
    packed = pack_fp8_blocks([(codes, scale)], amx=amx)
    wide = scale.repeat_interleave(128, 0)[:150].repeat_interleave(128, 1)[:, :k]
    assert torch.equal(outputs(packed, expand(packed)), codes.float() * wide)
    by_row = torch.rand(150, generator=seeded(4)) + 0.5
    packed = pack_fp8_rows([(codes, by_row)], amx=amx)
    assert torch.equal(outputs(packed, expand(packed)), codes.float() * by_row.unsqueeze(1))


def test_bf16_weights(amx: bool) -> None:
    parts = [torch.randn(n, 50, generator=seeded(n)).bfloat16() for n in (5, 33)]
    packed = pack_bf16(parts, amx=amx)
    assert torch.equal(outputs(packed, expand(packed)), torch.cat(parts).float())
    with pytest.raises(ValueError, match="do not lie"):
        expand(packed, 0, packed.tiles + 1)
