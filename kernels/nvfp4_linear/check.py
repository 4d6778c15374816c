# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks of the native NVFP4 product."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.build import NativeLibrary
from kernels.checks import CheckResult
from kernels.cpu.product import PackedLinear
from kernels.cpu.product_check import ProductCase, check_case, check_silu_mul
from kernels.nvfp4_linear.pack import pack_nvfp4
from kernels.nvfp4_linear.reference import (
    GROUP,
    dequantise_nvfp4,
    round_inputs,
    round_inputs_int8,
)

KERNEL = "nvfp4_linear"
SHAPES = ((48, 64), (33, 176), (16, 16), (100, 1040), (37, 2320))


def random_weight(rows: int, columns: int, seed: int) -> tuple[Tensor, Tensor, float]:
    """Random codes [N, K/2], scales with zeros and subnormals [N, K/16], and scale_2."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8, generator=generator)
    raw = torch.randint(0, 0x7F, (rows, columns // GROUP), dtype=torch.uint8, generator=generator)
    chance = torch.rand(raw.shape, generator=generator)
    raw[chance < 0.05] = 0
    raw[chance > 0.9] = raw[chance > 0.9] % 8
    return codes, raw.view(torch.float8_e4m3fn), 0.000371


def exact_weight(codes: Tensor, scales: Tensor, scale_2: float) -> Tensor:
    """float64 [N, K] of the stored numbers, scale_2 as the float32 it is stored in."""
    unscaled = dequantise_nvfp4(codes, scales, 1.0).double()
    return unscaled * float(torch.tensor(scale_2, dtype=torch.float32))


def activations_read(library: NativeLibrary, x: Tensor) -> Tensor:
    """float64: the activations as the product of this library reads them."""
    return round_inputs(x) if library.function("rondo_nvfp4_rounds_inputs")() else x.double()


def int8_read(library: NativeLibrary, x: Tensor) -> Tensor:
    """float64: the activations as the product with 8-bit inputs reads them, on any library."""
    return round_inputs_int8(x)


def nvfp4_case(
    rows: int, columns: int, seed: int, *, amx: bool = False, int8: bool = False
) -> ProductCase:
    """Two fused weights of `rows` and `rows` + 5 outputs, with the faults that must show."""
    first = random_weight(rows, columns, seed)
    codes, scales, _ = random_weight(rows + 5, columns, seed + 1)
    second = (codes, scales, 2.5)
    swapped = (first[0] >> 4) | (first[0] << 4)
    mutants = {
        "swapped nibbles": exact_weight(swapped, *first[1:]),
        "neighbouring row": exact_weight(*first).roll(1, 0),
        "wrong scale_2": exact_weight(*first[:2], second[2]),
        "code sign lost": exact_weight(first[0] & 0x77, *first[1:]),
    }
    if columns > GROUP:
        raw = first[1].view(torch.uint8).roll(1, 1).view(torch.float8_e4m3fn)
        mutants["scales shifted by a group"] = exact_weight(first[0], raw, first[2])
        mutants["codes shifted by a group"] = exact_weight(first[0].roll(8, 1), *first[1:])
    # A product, the chain of its group, the scale, the groups and the scale of the output. The matrix
    # unit has fewer: a chain of 16 pairs, their two sums, the tiles of 32 inputs.
    terms = 1 + GROUP + 1 + columns // GROUP + 1
    packed = pack_nvfp4([first, second], amx=amx)
    return ProductCase(
        packed.reading_int8() if int8 else packed,
        [exact_weight(*first), exact_weight(*second)],
        terms,
        mutants,
        int8_read if int8 else activations_read,
    )


def check(library: NativeLibrary, *, seed: int = 0) -> list[CheckResult]:
    """Odd shapes, extremes, faults, equal bits in every batch, and the fused gate and up."""
    results = []
    for index, (rows, columns) in enumerate(SHAPES):
        label = f"{rows}x{columns}"
        case = nvfp4_case(rows, columns, seed + 10 * index, amx=library.has_matrix_unit)
        results += check_case(KERNEL, library, case, seed=seed, label=label)
        case = nvfp4_case(rows, columns, seed + 10 * index, int8=True)
        results += check_case(KERNEL, library, case, seed=seed, label=f"{label}, 8-bit inputs")

    parts = [(*random_weight(39, 96, seed + i)[:2], 0.0004 * (i + 1)) for i in range(2)]

    def gate_and_up(interleave: bool) -> PackedLinear:
        return pack_nvfp4(parts, interleave=interleave, amx=library.has_matrix_unit)

    def gate_and_up_int8(interleave: bool) -> PackedLinear:
        return pack_nvfp4(parts, interleave=interleave).reading_int8()

    for pack in (gate_and_up, gate_and_up_int8):
        results += check_silu_mul(KERNEL, library, pack, seed=seed)
    return results
