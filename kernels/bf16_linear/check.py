# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks of the native bf16 product."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.bf16_linear.pack import pack_bf16
from kernels.build import NativeLibrary
from kernels.checks import CheckResult
from kernels.cpu.product import PackedLinear
from kernels.cpu.product_check import ProductCase, check_case, check_silu_mul

KERNEL = "bf16_linear"
SHAPES = ((48, 64), (3, 256), (33, 173), (16, 1), (100, 1040))


def random_weight(rows: int, columns: int, seed: int) -> Tensor:
    """Random bf16 [N, K] of ordinary size."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, columns, generator=generator) * 0.1).bfloat16()


def _case(rows: int, columns: int, seed: int, amx: bool) -> ProductCase:
    first, second = random_weight(rows, columns, seed), random_weight(rows + 2, columns, seed + 1)
    exact = first.double()
    mutants = {"sign lost": exact.abs()}
    if rows > 1:
        mutants["neighbouring row"] = exact.roll(1, 0)
    if columns > 1:
        mutants["inputs shifted"] = exact.roll(1, 1)
    # A product, its chain of 32 and the chains.
    terms = 1 + 32 + -(-columns // 32)
    packed = pack_bf16([first, second], amx=amx)
    return ProductCase(packed, [exact, second.double()], terms, mutants)


def check(library: NativeLibrary, *, seed: int = 0) -> list[CheckResult]:
    """Odd shapes, extremes, faults, equal bits in every batch, and the fused gate and up."""
    results = []
    for index, (rows, columns) in enumerate(SHAPES):
        case = _case(rows, columns, seed + 10 * index, library.has_matrix_unit)
        label = f"{rows}x{columns}"
        results += check_case(KERNEL, library, case, seed=seed, label=label)

    def gate_and_up(interleave: bool) -> PackedLinear:
        parts = [random_weight(39, 96, seed + i) for i in range(2)]
        return pack_bf16(parts, interleave=interleave, amx=library.has_matrix_unit)

    results += check_silu_mul(KERNEL, library, gate_and_up, seed=seed)
    return results
