# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks of the native block convolution."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.block_conv.native import block_conv
from kernels.build import NativeLibrary
from kernels.checks import CheckResult, compare, expect, gamma, half_ulp_bf16, poison, same_bits
from kernels.tape import Pool, Tape


def run_conv(
    library: NativeLibrary, x: Tensor, base: Tensor, dynamic: Tensor, *, threads: int = 1
) -> Tensor:
    """The native result for x [R, C], base float32 [2, C], dynamic [R, 2, groups]."""
    out = poison(torch.empty_like(x))
    with Pool(library, threads) as pool:
        tape = Tape(pool)
        block_conv(tape, x=x, base=base, dynamic=dynamic.flatten(1), out=out, rows=x.shape[0])
        tape.run()
    return out


def exact_conv(x: Tensor, base: Tensor, dynamic: Tensor) -> tuple[Tensor, Tensor]:
    """float64 [R, C] and the bound of the native arithmetic."""
    group = x.shape[1] // dynamic.shape[2]
    coefficient = base.double() + dynamic.double().repeat_interleave(group, -1)
    before = torch.cat((torch.zeros_like(x[:1]), x[:-1])).double()
    terms = coefficient[:, 0] * x.double(), coefficient[:, 1] * before
    y, size = terms[0] + terms[1], terms[0].abs() + terms[1].abs()
    return y, gamma(4) * size + half_ulp_bf16(y.abs() + gamma(4) * size) + 1e-45


def check(library: NativeLibrary, *, seed: int = 0) -> list[CheckResult]:
    """Every check of the convolution on one instruction-set level."""
    random = torch.Generator().manual_seed(seed)
    results = []
    for width, groups, rows in ((16, 2, 1), (64, 4, 8), (256, 16, 16), (5120, 320, 32)):
        x = torch.randn(rows, width, generator=random).bfloat16()
        base = torch.randn(2, width, generator=random)
        dynamic = torch.randn(rows, 2, groups, generator=random).bfloat16()
        out = run_conv(library, x, base, dynamic)
        exact, bound = exact_conv(x, base, dynamic)
        # Rows of a block depend on those before them alone.
        same = same_bits(run_conv(library, x[:1], base, dynamic[:1]), out[:1])
        same &= same_bits(run_conv(library, x, base, dynamic, threads=2), out)
        what = f"{width} channels in {groups} groups, {rows} rows"
        results.append(
            compare("block_conv", library.isa, out, exact, bound, row_invariant=same, what=what)
        )
        if rows > 1:
            for mutated, name in ((dynamic.flip(1), "taps swapped"), (dynamic.flip(2), "groups")):
                exact, bound = exact_conv(x, base, mutated)
                caught = not compare("block_conv", library.isa, out, exact, bound).ok
                reason = f"not caught: {name} of {what}"
                results.append(expect("block_conv", library.isa, caught, reason))
    return results
