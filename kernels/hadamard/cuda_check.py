# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks of the rotation on a GPU: the twin's bits, the inverse, lengths and products, faults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from kernels.checks import CheckResult
from kernels.hadamard import reference
from kernels.hadamard.cuda import DIMS, rotate
from kernels.triton_checks import Bench, batched_like_alone

if TYPE_CHECKING:
    from kernels.cuda_build import CudaLibrary

VECTORS = 37  # no whole number of blocks


def check(
    library: CudaLibrary, *, seed: int = 0, dims: tuple[int, ...] = DIMS
) -> Iterator[CheckResult]:
    """Every size: ordinary vectors, one outlier, equal elements, zeros, tiny and huge ones."""
    bench = Bench("hadamard", library, seed)
    for dim in dims:
        yield from _rotated(bench, dim)


def _rotated(bench: Bench, dim: int) -> Iterator[CheckResult]:
    first, second = (reference.signs(dim, bench.seed + salt) for salt in (1, 2))
    x = bench.random(VECTORS, dim)
    x[1], x[1, 3] = 0, 240
    x[2], x[3] = 1.5, 0
    x[4], x[5] = x[4] * 2.0**-120, x[5] * 2.0**100

    def run(vectors: Tensor, *, back: bool = False) -> Tensor:
        out = bench.empty(*vectors.shape)
        pair = (second, first) if back else (first, second)
        rotate(bench.library, vectors, *(part.to(bench.device) for part in pair), out)
        return out

    got, label = run(x), f"vectors of {dim}"
    twin = reference.rotate(x.cpu(), first, second)
    yield bench.same(f"{label} and the twin", got, twin)
    yield batched_like_alone(bench, label, lambda rows: run(x[rows]))
    # Every element is rounded once: by a part of 2^-8 at most.
    long, wanted = got.double().norm(dim=1), x.double().norm(dim=1)
    same = bool(((long - wanted).abs() <= 2.0**-8 * wanted).all())
    yield bench.holds(f"{label}: another length", same)
    off = (run(got, back=True).double() - x.double()).norm(dim=1)
    yield bench.holds(f"{label}: the inverse", bool((off <= 2.0**-7 * wanted).all()))
    for fault, wrong in {
        "signs exchanged": reference.rotate(x.cpu(), second, first),
        "signs lost": reference.rotate(x.cpu(), first.abs(), second),
        "vectors shifted by one": twin.roll(1, 0),
    }.items():
        yield bench.unnoticed(fault, bench.same("", got, wrong))
