# SPDX-License-Identifier: MIT OR Apache-2.0
"""The order of sums that the products of the matrix unit declare, followed step by step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.bf16_linear.pack import pack_bf16
from kernels.build import NativeLibrary, load_library, machine_isas
from kernels.checks import same_bits
from kernels.cpu.expand import expand
from kernels.cpu.product import PackedLinear
from kernels.cpu.product_check import run_product
from kernels.fp8_linear.check import random_codes, random_scales
from kernels.fp8_linear.pack import pack_fp8_blocks, pack_fp8_rows
from kernels.nvfp4_linear.check import random_weight
from kernels.nvfp4_linear.pack import pack_nvfp4
from kernels.tape import Pool

pytestmark = pytest.mark.skipif(
    "amx" not in machine_isas(), reason="this processor has no matrix unit for bf16"
)


@pytest.fixture
def matrix_unit(own_home: Path) -> NativeLibrary:
    return load_library("amx")


def twin(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
    """float32 [rows, N] of bf16 x [rows, K] against exact weights [N, K], K a multiple of 32.

    For every 32 inputs the even and the odd ones ascending from zero, each step a fused multiply-add; then
    accumulator + (even + odd). With block scales [N, K/128] four such tiles from zero, then
    fma(those, scale, accumulator). Long doubles hold a product and a sum exactly enough to round once.
    """
    rows, k = x.shape
    a = x.float().numpy().astype(np.longdouble).reshape(rows, 1, k // 32, 16, 2)
    b = weight.float().numpy().astype(np.longdouble).reshape(1, -1, k // 32, 16, 2)
    total = np.zeros((rows, weight.shape[0]), np.float32)
    block = np.zeros_like(total)
    for tile in range(k // 32):
        chains = np.zeros((*total.shape, 2), np.float32)
        for pair in range(16):
            product = a[:, :, tile, pair] * b[:, :, tile, pair]
            chains = (chains.astype(np.longdouble) + product).astype(np.float32)
        tile_sum = chains[..., 0] + chains[..., 1]
        if scale is None:
            total = total + tile_sum
            continue
        block = tile_sum if tile % 4 == 0 else block + tile_sum
        if tile % 4 == 3 or tile == k // 32 - 1:
            factor = scale[:, tile // 4].numpy().astype(np.longdouble)
            total = (block.astype(np.longdouble) * factor + total).astype(np.float32)
    return torch.from_numpy(total)


def rows_of(count: int, k: int) -> torch.Tensor:
    return torch.randn(count, k, generator=torch.Generator().manual_seed(1)).bfloat16()


def product(library: NativeLibrary, packed: PackedLinear, x: torch.Tensor) -> torch.Tensor:
    with Pool(library, 1) as pool:
        return run_product(pool, packed, x, torch.float32)[:, : packed.parts[0].size].contiguous()


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_bf16_sums_in_the_declared_order(matrix_unit: NativeLibrary, rows: int) -> None:
    weight = torch.randn(37, 320, generator=torch.Generator().manual_seed(2)).bfloat16()
    x = rows_of(rows, 320)
    assert same_bits(product(matrix_unit, pack_bf16([weight], amx=True), x), twin(x, weight))


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_nvfp4_sums_in_the_declared_order(matrix_unit: NativeLibrary, rows: int) -> None:
    codes, scales, _ = random_weight(37, 320, 3)
    packed = pack_nvfp4([(codes, scales, 1.0)], amx=True)
    x = rows_of(rows, 320)
    assert same_bits(product(matrix_unit, packed, x), twin(x, expand(packed)[:37]))


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_fp8_sums_in_the_declared_order(matrix_unit: NativeLibrary, rows: int) -> None:
    codes, x = random_codes(37, 320, 4), rows_of(rows, 320)
    by_row = pack_fp8_rows([(codes, 1.0)], amx=True)
    assert same_bits(product(matrix_unit, by_row, x), twin(x, codes.float()))
    scales = random_scales(37, 320, 5)
    by_block = pack_fp8_blocks([(codes, scales)], amx=True)
    expected = twin(x, codes.float(), scales.float().expand(37, -1))
    assert same_bits(product(matrix_unit, by_block, x), expected)
