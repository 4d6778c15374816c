# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks of the native FP8 product, with block scales and with row scales."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.build import NativeLibrary
from kernels.checks import CheckResult
from kernels.cpu.product import PackedLinear
from kernels.cpu.product_check import ProductCase, check_case, check_silu_mul
from kernels.fp8_linear.pack import BLOCK, pack_fp8_blocks, pack_fp8_rows
from kernels.fp8_linear.reference import dequantise_blocks

KERNEL = "fp8_linear"
SHAPES = ((48, 64), (133, 173), (16, 3), (150, 400), (33, 2321))


def random_codes(rows: int, columns: int, seed: int) -> Tensor:
    """Random finite e4m3 codes [N, K], subnormals and both zeros included."""
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randint(0, 256, (rows, columns), dtype=torch.uint8, generator=generator)
    raw[(raw & 0x7F) == 0x7F] = 1
    return raw.view(torch.float8_e4m3fn)


def random_scales(rows: int, columns: int, seed: int) -> Tensor:
    """Random bf16 block scales for a weight of this shape."""
    generator = torch.Generator().manual_seed(seed)
    shape = (-(-rows // BLOCK), -(-columns // BLOCK))
    return (torch.rand(shape, generator=generator) + 0.01).bfloat16()


def _blocks_case(rows: int, columns: int, seed: int, amx: bool) -> ProductCase:
    codes, scales = random_codes(rows, columns, seed), random_scales(rows, columns, seed)
    other, others = random_codes(rows + 3, columns, seed + 1), random_scales(rows + 3, columns, 9)
    exact = codes.double() * dequantise_blocks(torch.ones_like(codes), scales).double()
    exact_other = other.double() * dequantise_blocks(torch.ones_like(other), others).double()
    mutants = {"neighbouring row": exact.roll(1, 0), "sign lost": exact.abs()}
    if columns > 1:
        mutants["inputs swapped in pairs"] = _swap_pairs(exact)
    if columns > BLOCK:
        shifted = dequantise_blocks(torch.ones_like(codes), scales.roll(1, 1)).double()
        mutants["scales shifted by a block"] = codes.double() * shifted
    return ProductCase(
        pack_fp8_blocks([(codes, scales), (other, others)], amx=amx),
        [exact, exact_other],
        _terms(columns),
        mutants,
    )


def _rows_case(rows: int, columns: int, seed: int, amx: bool) -> ProductCase:
    codes = random_codes(rows, columns, seed)
    scale = torch.rand(rows, generator=torch.Generator().manual_seed(seed)) + 0.01
    exact = codes.double() * scale.double().unsqueeze(1)
    mutants = {
        "row scales shifted": codes.double() * scale.roll(1).double().unsqueeze(1),
        "neighbouring row": exact.roll(1, 0),
    }
    # The matrix unit: a chain of 16 pairs, their two sums, the tiles of 32 inputs, the output's scale.
    terms = 1 + 16 + 1 + -(-columns // 32) + 1 if amx else _terms(columns)
    return ProductCase(pack_fp8_rows([(codes, scale)], amx=amx), [exact], terms, mutants)


def _terms(columns: int) -> int:
    """A product, its chain of 32, four chains, the block scale, the blocks, the output's scale."""
    return 1 + 32 + 3 + 1 + -(-columns // BLOCK) + 1


def _swap_pairs(weight: Tensor) -> Tensor:
    even = weight.shape[1] // 2 * 2
    swapped = weight.clone()
    swapped[:, 0:even:2], swapped[:, 1:even:2] = weight[:, 1:even:2], weight[:, 0:even:2]
    return swapped


def check(library: NativeLibrary, *, seed: int = 0) -> list[CheckResult]:
    """Ragged shapes, extremes, faults, equal bits in every batch, and the fused gate and up."""
    results = []
    for index, (rows, columns) in enumerate(SHAPES):
        label = f"{rows}x{columns}"
        for kind, make in (("blocks", _blocks_case), ("rows", _rows_case)):
            case = make(rows, columns, seed + 10 * index, library.has_matrix_unit)
            results += check_case(KERNEL, library, case, seed=seed, label=f"{label} {kind}")

    def gate_and_up(interleave: bool) -> PackedLinear:
        parts = [
            (random_codes(39, 160, seed + i), random_scales(39, 160, seed + i) * 0.01)
            for i in range(2)
        ]
        return pack_fp8_blocks(parts, interleave=interleave, amx=library.has_matrix_unit)

    results += check_silu_mul(KERNEL, library, gate_and_up, seed=seed)
    return results
