# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks of the native elementwise steps and statistics."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.build import NativeLibrary
from kernels.checks import CheckResult, compare, expect, half_ulp_bf16, poison, same_bits
from kernels.elementwise import native, reference
from kernels.tape import Pool, Tape

_U = 2.0**-24


def run_binary(
    library: NativeLibrary, name: str, x: Tensor, y: Tensor, *, threads: int = 1
) -> Tensor:
    """One of silu_mul, output_gate and add over whole rows."""
    rows = x.shape[0]
    out = poison(torch.empty_like(x))
    calls: dict[str, Callable[[Tape], None]] = {
        "silu_mul": lambda tape: native.silu_mul(tape, gate=x, up=y, out=out, rows=rows),
        "output_gate": lambda tape: native.output_gate(tape, x=x, gate=y, out=out, rows=rows),
        "add": lambda tape: native.add(tape, x=x, y=y, out=out, rows=rows),
    }
    with Pool(library, threads) as pool:
        tape = Tape(pool)
        calls[name](tape)
        tape.run()
    return out


def run_statistics(library: NativeLibrary, x: Tensor, *, threads: int = 1) -> Tensor:
    """float32 [rows, 3]."""
    out = poison(torch.empty(x.shape[0], 3))
    with Pool(library, threads) as pool:
        tape = Tape(pool)
        native.statistics(tape, x=x, out=out, rows=x.shape[0])
        tape.run()
    return out


def exact_binary(name: str, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """float64 result and its bound: 4 ulp of the function, one rounding a step."""
    a, b = x.double(), y.double()
    if name == "add":
        return a + b, half_ulp_bf16(a + b)
    inner, outer = (a * torch.sigmoid(a), b) if name == "silu_mul" else (torch.sigmoid(b), a)
    slack = 1.01 * half_ulp_bf16(inner) + 8 * _U * inner.abs() + 2.0**-148
    exact = inner * outer
    reach = slack * outer.abs()
    return exact, reach + half_ulp_bf16(exact.abs() + reach)


def check(library: NativeLibrary, *, seed: int = 0) -> list[CheckResult]:
    """Bounds over the whole range of bf16, equal bits for a row alone, mutations, statistics."""
    generator = torch.Generator().manual_seed(seed)
    results = []
    everything = torch.arange(-(2**15), 2**15).short().view(torch.bfloat16)
    everything = everything[everything.isfinite() & (everything.abs() < 1e19)]
    partner = torch.randn(everything.numel(), generator=generator).bfloat16()
    for name in ("silu_mul", "output_gate", "add"):
        x, y = everything[None], partner[None]
        if name == "output_gate":
            x, y = y, x
        exact, bound = exact_binary(name, x, y)
        got = run_binary(library, name, x, y)
        results.append(compare(name, library.isa, got, exact, bound, what=f"{name} all values"))
        mutated = run_binary(library, name, x, y.roll(1))
        caught = not compare(name, library.isa, mutated, exact, bound).ok
        results.append(expect(name, library.isa, caught, f"{name}: shifted operand not caught"))
        for width in (1, 15, 16, 200, 5000):
            x = torch.randn(32, width, generator=generator).bfloat16()
            y = torch.randn(32, width, generator=generator).bfloat16()
            got = run_binary(library, name, x, y)
            exact, bound = exact_binary(name, x, y)
            same = same_bits(run_binary(library, name, x, y, threads=2), got)
            same &= same_bits(run_binary(library, name, x[9:10], y[9:10]), got[9:10])
            results.append(
                compare(
                    name,
                    library.isa,
                    got,
                    exact,
                    bound,
                    row_invariant=same,
                    what=f"{name} {width}",
                )
            )
    return results + _check_keep_row(library) + _check_statistics(library, generator)


def run_keep_row(library: NativeLibrary, x: Tensor, kept: Tensor, slot: int) -> Tensor:
    """`kept` afterwards; two workers."""
    kept = kept.clone()
    with Pool(library, 2) as pool:
        tape = Tape(pool)
        native.keep_row(tape, x=x, kept=kept, slot=torch.tensor([slot], dtype=torch.int32))
        tape.run()
    return kept


def _check_keep_row(library: NativeLibrary) -> list[CheckResult]:
    """Every bit of a row, NaN payloads included, in its slot and nowhere else."""
    results = []
    for width in (1, 17, 5120):
        x = torch.arange(2 * width).mul_(7919).short().view(torch.bfloat16).view(2, width)
        kept = poison(torch.empty(5, width, dtype=torch.bfloat16))
        for slot in (0, 3, 4, 5, -1):
            got, wanted = run_keep_row(library, x, kept, slot), reference.keep_row(x, kept, slot)
            what = f"row of width {width} kept in slot {slot} differs"
            results.append(expect("keep_row", library.isa, same_bits(got, wanted), what))
        caught = not same_bits(run_keep_row(library, x, kept, 1), reference.keep_row(x, kept, 2))
        what = f"row of width {width} in a wrong slot not caught"
        results.append(expect("keep_row", library.isa, caught, what))
    return results


def _check_statistics(library: NativeLibrary, generator: torch.Generator) -> list[CheckResult]:
    results = []
    for width in (1, 17, 5120):
        x = torch.randn(6, width, generator=generator).bfloat16()
        x[1, 0] = float("nan")
        x[2, width // 2] = float("-inf")
        x[3] = 0
        finite = x.isfinite()
        kept = torch.where(finite, x, torch.zeros_like(x)).double()
        count = finite.sum(-1)
        got = run_statistics(library, x)
        mean = kept.square().sum(-1) / count
        holds = torch.equal(got[:, 0].double(), kept.abs().amax(-1))
        holds &= torch.equal(got[:, 2].double(), (width - count).double())
        close = torch.isclose(got[:, 1].double(), mean, rtol=1e-5, atol=0, equal_nan=True)
        holds &= bool(close.all()) and same_bits(run_statistics(library, x, threads=2), got)
        results.append(
            expect("statistics", library.isa, holds, f"statistics of width {width} differ")
        )
    return results
