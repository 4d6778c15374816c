# SPDX-License-Identifier: MIT OR Apache-2.0
"""What every native product is held to: float64 bounds, equal bits for every batch, mutations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kernels.build import NativeLibrary
from kernels.checks import CheckResult, compare, expect, gamma, half_ulp_bf16, poison, same_bits
from kernels.cpu.buffers import aligned_empty
from kernels.cpu.product import PackedLinear, linear
from kernels.tape import Pool, Tape

INPUT_KINDS = ("gaussian", "outliers", "large", "denormal", "all_equal", "zero_rows")
BATCHES = (*range(1, 33), 33, 48, 70)
_SMALLEST_NORMAL = 2.0**-126


@dataclass(frozen=True)
class ProductCase:
    """A packed weight with what it stands for.

    Attributes:
        packed: the weight under test.
        weights: float64 [N, K] of each part, exact.
        terms: most float32 roundings any product passes on its way to the result.
        mutants: name -> the float64 weights of part 0 if the named fault were present.
        read: (library, bf16 x) -> float64, the activations as the product of that library reads them; None
            where every level reads them as they are.
    """

    packed: PackedLinear
    weights: list[Tensor]
    terms: int
    mutants: dict[str, Tensor]
    read: Callable[[NativeLibrary, Tensor], Tensor] | None = None

    def bound(
        self, library: NativeLibrary, x: Tensor, weight: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """(exact result, absolute bound) of x [rows, K] against weight [N, K] on this library."""
        return bound_of(x, weight, self.terms, dtype, self.read and self.read(library, x))


def inputs(kind: str, rows: int, k: int, seed: int) -> Tensor:
    """bf16 activations [rows, k] of one class."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, k, generator=generator)
    if kind == "outliers":
        x[:, :: max(1, k // 3)] *= 3000
    elif kind == "large":
        x *= 2.0**90
    elif kind == "denormal":
        x *= 2.0**-128
    elif kind == "all_equal":
        x[:] = 0.7109375
    elif kind == "zero_rows":
        x[::2] = 0
    return x.bfloat16()


def run_product(
    pool: Pool, packed: PackedLinear, x: Tensor, dtype: torch.dtype, *, eager: bool = False
) -> Tensor:
    """The product of all rows of `x`, from and into wider buffers whose rest must stay as it was.

    Raises:
        AssertionError: something outside the result was written.
    """
    rows = x.shape[0]
    wide_x = aligned_empty((rows, packed.k + 6), torch.bfloat16)
    poison(wide_x)
    wide_x[:, : packed.k] = x
    wide_out = poison(aligned_empty((rows + 1, packed.columns + 5), dtype))
    out = wide_out[:rows, : packed.columns]
    tape = Tape(pool, eager=eager)
    linear(tape, packed, wide_x[:, : packed.k], out, rows=rows)
    if not eager:
        tape.run()
    outside = torch.cat([wide_out[rows:].flatten(), wide_out[:, packed.columns :].flatten()])
    if not bool(outside.isnan().all()):
        raise AssertionError("the product wrote outside its result")
    return out.clone()


def bound_of(
    x: Tensor, weight: Tensor, terms: int, dtype: torch.dtype, read: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(exact result, absolute bound) in float64 of x [rows, K] against weight [N, K].

    gamma(terms) * sum|x w|, subnormal intermediates counted as lost (the bf16 dot product flushes
    them), and one rounding to the result. The result is that of `read`, the activations as the product rounds
    them, where given: their rounding is known to the bit and needs no bound.
    """
    value = x.double() if read is None else read
    exact = value @ weight.T
    mass = value.abs() @ weight.abs().T
    flushed = x.shape[1] * _SMALLEST_NORMAL * (2 + float(weight.abs().amax()))
    bound = gamma(terms) * mass + flushed
    if dtype == torch.bfloat16:
        bound = bound + half_ulp_bf16(exact.abs() + bound)
    return exact, bound + mass.new_tensor(2.0**-149)


def check_case(
    kernel: str, library: NativeLibrary, case: ProductCase, *, seed: int, label: str
) -> Iterator[CheckResult]:
    """Every result of one packed weight on one library: bounds, invariance, mutations."""
    name = library.isa
    packed = case.packed
    with Pool(library, 1) as one, Pool(library, 2) as two:
        for kind in INPUT_KINDS:
            x = inputs(kind, 5, packed.k, seed)
            for dtype in (torch.float32, torch.bfloat16):
                got = run_product(one, packed, x, dtype)
                for part, weight in zip(packed.parts, case.weights, strict=True):
                    exact, bound = case.bound(library, x, weight, dtype)
                    columns = got[:, part.offset : part.offset + part.size]
                    what = f"{label}, {kind}, {str(dtype).removeprefix('torch.')}"
                    yield compare(kernel, name, columns, exact, bound, what=what)
        yield expect(
            kernel,
            name,
            *_invariant(one, two, packed, seed, label),
        )
        x = inputs("gaussian", 5, packed.k, seed)
        got = run_product(one, packed, x, torch.float32)[:, : packed.parts[0].size]
        for fault, weight in case.mutants.items():
            exact, bound = case.bound(library, x, weight, torch.float32)
            seen = not compare(kernel, name, got, exact, bound).ok
            yield expect(kernel, name, seen, f"{label}: the fault '{fault}' goes unnoticed")


def _invariant(
    one: Pool, two: Pool, packed: PackedLinear, seed: int, label: str
) -> tuple[bool, str]:
    x = inputs("gaussian", max(BATCHES), packed.k, seed + 1)
    alone = torch.cat([run_product(one, packed, row[None], torch.float32) for row in x])
    for rows in BATCHES:
        for pool in (one, two):
            for eager in (False, True):
                got = run_product(pool, packed, x[:rows], torch.float32, eager=eager)
                if not same_bits(got, alone[:rows]):
                    return False, (
                        f"{label}: {rows} rows on {pool.threads} workers (eager {eager}) differ"
                        " from the rows alone"
                    )
    return True, ""


def check_silu_mul(
    kernel: str,
    library: NativeLibrary,
    pack: Callable[[bool], PackedLinear],
    *,
    seed: int,
) -> Iterator[CheckResult]:
    """A gate and up pair fused (pack(True)) against the same two products apart (pack(False))."""
    fused, apart = pack(True), pack(False)
    name = library.isa
    with Pool(library, 1) as one, Pool(library, 2) as two:
        x = inputs("gaussian", 21, fused.k, seed)
        both = run_product(one, apart, x, torch.bfloat16)
        gate, up = (both[:, p.offset : p.offset + p.size] for p in apart.parts)
        size = fused.parts[0].size
        got = run_product(one, fused, x, torch.bfloat16)[:, :size]
        exact_silu = functional.silu(gate.double())
        # One step of bf16 where the vector exponential and float64 round apart, carried through
        # the product, and the rounding of the product.
        step = 2 * half_ulp_bf16(exact_silu)
        exact = exact_silu * up.double()
        bound = step * up.double().abs() + half_ulp_bf16(exact.abs() + step * up.double().abs())
        again = run_product(two, fused, x, torch.bfloat16)[:, :size]
        rows = [run_product(one, fused, row[None], torch.bfloat16)[:, :size] for row in x]
        same = same_bits(got, again) and same_bits(got, torch.cat(rows))
        yield compare(kernel, name, got, exact, bound, row_invariant=same, what="silu(gate) * up")
