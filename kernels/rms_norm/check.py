# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks of the native RMS norm."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.build import NativeLibrary
from kernels.checks import CheckResult, compare, expect, gamma, half_ulp_bf16, poison, same_bits
from kernels.rms_norm.native import norm_scale, rms_norm
from kernels.tape import Pool, Tape

EPS = 1e-6
KINDS = ("gaussian", "outliers", "large", "denormal", "zeros")


def random_rows(rows: int, width: int, seed: int, kind: str) -> Tensor:
    """bf16 rows of one class of values."""
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
    if kind == "outliers":
        x = torch.where(x > 2.5, x * 1000, x)
    scale = {"large": 1e15, "denormal": 1e-39, "zeros": 0.0}.get(kind, 1.0)
    return (x * scale).bfloat16()


def run_norm(
    library: NativeLibrary,
    x: Tensor,
    weight: Tensor,
    residual: Tensor | None = None,
    *,
    threads: int = 1,
    zero_centred: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """(normed, sum or None) through the native kernel, outputs poisoned before."""
    out = poison(torch.empty_like(x))
    total = None if residual is None else poison(torch.empty_like(x))
    with Pool(library, threads) as pool:
        tape = Tape(pool)
        rms_norm(
            tape,
            x=x,
            scale=norm_scale(weight, zero_centred=zero_centred),
            out=out,
            eps=EPS,
            rows=x.shape[0],
            residual=residual,
            total=total,
        )
        tape.run()
    return out, total


def exact_norm(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """float64 zero-centred norm of bf16 rows and the bound of the native order of sums."""
    wide = x.double()
    scale = 1 + weight.double()
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * scale
    # Four sums of width/64 fused terms, six levels of joining, five operations behind them; the
    # factor 1 + w itself is rounded.
    unit = gamma(x.shape[1] // 64 + 14)
    return y, unit * y.abs() + half_ulp_bf16(y.abs() * (1 + unit)) + 1e-45


def check(library: NativeLibrary, *, seed: int = 0) -> list[CheckResult]:
    """Every check of the norm on one instruction-set level."""
    results = []
    for width in (16, 80, 256, 5120):
        weight = (0.3 * torch.randn(width, generator=torch.Generator().manual_seed(9))).bfloat16()
        for kind in KINDS:
            what = f"{width} {kind}"
            x = random_rows(32, width, seed, kind)
            residual = random_rows(32, width, seed + 1, kind)
            out, _ = run_norm(library, x, weight)
            exact, bound = exact_norm(x, weight)
            alone = [run_norm(library, x[r : r + 1], weight)[0] for r in (0, 17, 31)]
            invariant = same_bits(torch.cat(alone), out[[0, 17, 31]])
            invariant &= same_bits(run_norm(library, x, weight, threads=2)[0], out)
            results.append(
                compare(
                    "rms_norm",
                    library.isa,
                    out,
                    exact,
                    bound,
                    row_invariant=invariant,
                    what=what,
                )
            )
            normed, total = run_norm(library, x, weight, residual)
            same = total is not None and same_bits(total, residual + x)
            same &= same_bits(normed, run_norm(library, residual + x, weight)[0])
            reason = f"{what}: the fused sum differs from an addition and a norm"
            results.append(expect("add_rms_norm", library.isa, same, reason))
    return results + _check_mutations(library, seed)


def _check_mutations(library: NativeLibrary, seed: int) -> list[CheckResult]:
    x = random_rows(4, 256, seed, "gaussian")
    weight = torch.randn(256, generator=torch.Generator().manual_seed(9)).bfloat16()
    out, _ = run_norm(library, x, weight)
    plain, _ = run_norm(library, x, weight, zero_centred=False)
    results = []
    for what, got, mutated in (
        ("weights shifted by one", out, weight.roll(1)),
        ("not zero-centred", plain, weight),
        ("rows swapped", out.flip(0), weight),
    ):
        exact, bound = exact_norm(x, mutated)
        caught = not compare("rms_norm", library.isa, got, exact, bound).ok
        results.append(expect("rms_norm", library.isa, caught, f"not caught: {what}"))
    return results
