# SPDX-License-Identifier: MIT OR Apache-2.0
"""The matrix products in the interpreter: bounds, rows alone and in a batch, faults, the sweep of settings."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels import cuda_tiles
from kernels.bf16_linear.triton import linear
from kernels.fp8_linear import triton as fp8_kernel
from kernels.fp8_linear import triton_check as check
from kernels.fp8_linear.tiles import DEFAULT, Fp8Tile
from kernels.fp8_linear.triton import linear_blocks, linear_rows
from kernels.nvfp4_linear.check import random_weight
from kernels.nvfp4_linear.cuda import place_nvfp4
from kernels.nvfp4_linear.triton import linear_chunk
from kernels.triton_checks import Bench, batched_like_alone


def test_products(library: object) -> None:
    """Several blocks of scales along both sides, and every size of tile: up to 64 rows, up to 128, and two."""
    results = list(
        check.check(
            library,
            shapes=((144, 272),),
            chunk_shapes=((80, 256),),
            chunk_rows=(33, 70, 130),
        )
    )
    assert [result.reason for result in results if not result.ok] == []
    assert {result.kernel for result in results if result.row_invariant} == {
        "fp8_linear",
        "bf16_linear",
    }


def test_rows_of_the_nvfp4_product_alone(library: object) -> None:
    """Where no compiled product is, this one takes the rows of a round as well."""
    weight = place_nvfp4([random_weight(48, 256, 1)], "cpu")
    x = Bench("nvfp4_linear", library, 0).random(32, 256)
    x[:, 128:] = -x[:, :128]  # the halves undo each other: only the roundings are left

    def run(rows: list[int]) -> Tensor:
        out = torch.full((len(rows), 48), float("nan")).bfloat16()
        linear_chunk(weight, x[rows], out, rows=len(rows))
        return out

    assert batched_like_alone(Bench("nvfp4_linear", library, 0), "NVFP4", run).row_invariant


def test_e4m3_bytes_have_the_values_of_the_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs before sm_89 take every code as a byte: all 256, subnormals, both zeros and NaN among them."""
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    codes = torch.zeros(256, 16).to(torch.float8_e4m3fn)
    codes[:, 0] = every
    x, scale = torch.zeros(1, 16).bfloat16(), torch.ones(256)
    x[0, 0] = 1
    found = []
    for converts in (True, False):
        monkeypatch.setattr(fp8_kernel, "_takes_bytes", lambda device, by=not converts: by)
        found.append(torch.empty(1, 256))
        linear_rows(x, codes, scale, found[-1], rows=1)
    wanted = every.float()[None]
    assert torch.equal(found[1].nan_to_num(999), wanted.nan_to_num(999))
    number = ~wanted.isnan()  # the interpreter takes those for 480
    assert torch.equal(found[0][number], found[1][number])


def operands(rows: int = 2) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x = torch.ones(rows, 144).bfloat16()
    codes = torch.ones(16, 144).to(torch.float8_e4m3fn)
    return x, codes, torch.ones(1, 2).bfloat16(), torch.empty(rows, 16).bfloat16()


def test_a_wrong_operand_is_named() -> None:
    x, codes, scale, out = operands()
    with pytest.raises(ValueError, match=r"scale_inv must be .* \[1, 2\]"):
        linear_blocks(x, codes, scale[:, :1], out, rows=2)
    with pytest.raises(ValueError, match="1 to 65536 rows, got 0"):
        linear_blocks(x, codes, scale, out, rows=0)
    with pytest.raises(ValueError, match="must divide 128, got 96"):
        linear_blocks(x, codes, scale, out, rows=2, tile=Fp8Tile(bn=96))
    with pytest.raises(ValueError, match=r"scale must be .* \[16\]"):
        linear_rows(x, codes, scale.flatten(), out, rows=2)
    with pytest.raises(ValueError, match="1 to 32 rows, got 33"):
        linear(x, torch.ones(16, 144).bfloat16(), out, rows=33)
    weight = place_nvfp4([random_weight(16, 128, 1)], "cpu")
    with pytest.raises(ValueError, match="x must be"):
        linear_chunk(weight, x, out, rows=2)


def test_a_sweep_keeps_only_settings_with_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    _, codes, scale, _ = operands()
    fast, faster = Fp8Tile(bn=32), Fp8Tile(bn=128)
    tried, launched = [DEFAULT, fast, faster], []

    def spoiled(x: Tensor, *weight: Tensor, rows: int, tile: Fp8Tile) -> None:
        launched.append(tile)
        linear_blocks(x, *weight, rows=rows, tile=tile)
        if tile == faster and rows == 23:
            weight[-1][0] += 1

    def seconds(work: Callable[[], None]) -> float:
        work()
        return {DEFAULT: 1.0, fast: 0.9, faster: 0.1}[launched[-1]]

    monkeypatch.setattr(cuda_tiles, "linear_blocks", spoiled)
    monkeypatch.setattr("kernels.fp8_linear.tiles.candidates", lambda: iter(tried))
    swept = cuda_tiles.sweep_fp8([(codes, scale)], shares={1: 1.0}, seconds=seconds)
    assert (swept.tile, swept.tried, swept.refused) == (fast, 2, (faster,))
    assert (swept.us, swept.default_us) == (pytest.approx(0.9e6), pytest.approx(1e6))
