# SPDX-License-Identifier: MIT OR Apache-2.0
"""Packed weights expand to exactly the values that were packed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kernels.bf16_linear.pack import pack_bf16
from kernels.checks import same_bits
from kernels.cpu import product
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


@pytest.mark.parametrize("zero", [0x00, 0x80])
def test_a_zero_scale_makes_zeros(zero: int, amx: bool) -> None:
    (codes, scales, _), _ = nvfp4(32, 64, 5, 1.0)
    codes |= 0x11  # no code is zero
    scales.view(torch.uint8).clamp_(min=1)[17, 2] = zero
    values = expand(pack_nvfp4([(codes, scales, 1.0)], amx=amx))
    assert (values == 0).nonzero().tolist() == [[17, column] for column in range(32, 48)]


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


def parts_of(form: str) -> list:
    """Weights of 40, 7 and 48 outputs, one of them with a NaN code where the form has such."""
    if form == "nvfp4":
        return [nvfp4(size, 80, size, 0.5)[0] for size in (40, 7, 48)]
    weights = [torch.randn(size, 80, generator=seeded(size)) for size in (40, 7, 48)]
    if form == "bf16":
        return [weight.bfloat16() for weight in weights]
    weights[1][3, 5] = torch.nan
    codes = [weight.to(torch.float8_e4m3fn) for weight in weights]
    return [(each, torch.full((1, 1), 0.5)) for each in codes]


@pytest.mark.parametrize("form", ["nvfp4", "fp8", "bf16"])
def test_chunks_and_threads_change_no_bit(
    form: str, amx: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = {"nvfp4": pack_nvfp4, "fp8": pack_fp8_blocks, "bf16": pack_bf16}[form]
    parts = parts_of(form)
    wanted = pack(parts, amx=amx), pack([parts[0]] * 2, interleave=True, amx=amx)
    monkeypatch.setattr(product, "_CHUNK_BYTES", 1)  # a tile each
    torch.set_num_threads(3)
    found = pack(parts, amx=amx), pack([parts[0]] * 2, interleave=True, amx=amx)
    for one, other in zip(wanted, found, strict=True):
        for field in ("weight", "scale", "row_scale"):
            held, again = getattr(one, field), getattr(other, field)
            assert (held is None) == (again is None)
            assert held is None or same_bits(held, again)
    if form == "fp8":
        broken = expand(found[0]).isnan().all(1).nonzero().flatten().tolist()
        assert broken == [found[0].parts[1].offset + 3]


def shifted(matrix: torch.Tensor) -> torch.Tensor:
    """The same numbers behind an odd column of wider rows, whose words lie on no word."""
    wide = torch.zeros(len(matrix), matrix.shape[1] + 3).to(matrix.dtype)
    return wide[:, 1 : matrix.shape[1] + 1].copy_(matrix)


@pytest.mark.parametrize("lay", [shifted, lambda matrix: matrix.T.contiguous().T])
@pytest.mark.parametrize("form", ["nvfp4", "fp8", "bf16"])
def test_a_view_packs_like_a_copy(
    form: str, lay: Callable[[torch.Tensor], torch.Tensor], amx: bool
) -> None:
    pack = {"nvfp4": pack_nvfp4, "fp8": pack_fp8_rows, "bf16": pack_bf16}[form]
    weight = torch.randn(48, 96, generator=seeded(4))  # no pad, whose copy would hide the view
    if form == "nvfp4":
        (codes, scales, factor), _ = nvfp4(48, 96, 4, 0.5)
        plain, viewed = (codes, scales, factor), (lay(codes), lay(scales), factor)
    elif form == "fp8":
        codes = weight.to(torch.float8_e4m3fn)
        plain, viewed = (codes, 0.5), (lay(codes), 0.5)
    else:
        plain, viewed = weight.bfloat16(), lay(weight.bfloat16())
    wanted, found = pack([plain], amx=amx), pack([viewed], amx=amx)
    assert same_bits(found.weight, wanted.weight)
    assert torch.equal(expand(found), expand(wanted))
