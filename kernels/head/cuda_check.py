# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks of the FP8 head on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.checks import CheckResult, compare, expect, poison, same_bits
from kernels.cpu.product_check import bound_of, inputs
from kernels.head.cuda import head_logits

if TYPE_CHECKING:
    from kernels.cuda_build import CudaLibrary

KERNEL = "head"
SHAPES = ((44, 640), (4096, 5120), (20000, 256))
BATCHES = (1, 2, 7, 8, 9, 16, 17, 31, 32)


def check(
    library: CudaLibrary, *, seed: int = 0, shapes: tuple[tuple[int, int], ...] = SHAPES
) -> Iterator[CheckResult]:
    """Bounds against float64, every row count with the bits of the row alone, and faults."""
    for tokens, columns in shapes:
        generator = torch.Generator().manual_seed(seed + tokens)
        raw = torch.randint(0, 256, (tokens, columns), dtype=torch.uint8, generator=generator)
        raw[(raw & 0x7F) == 0x7F] = 0
        scale = torch.rand(tokens, generator=generator) / 100
        codes = raw.to(library.device).view(torch.float8_e4m3fn)
        scale = scale.to(library.device)
        x = inputs("gaussian", max(BATCHES), columns, seed).to(library.device)
        label = f"{tokens}x{columns}"

        def run(rows: Tensor, codes: Tensor = codes, scale: Tensor = scale) -> Tensor:
            wide = poison(torch.empty(len(rows) + 1, len(codes) + 4, device=rows.device))
            head_logits(library, rows, codes, scale, wide[: len(rows), : len(codes)])
            outside = torch.cat([wide[len(rows) :].flatten(), wide[:, len(codes) :].flatten()])
            if not bool(outside.isnan().all()):
                raise AssertionError("the head wrote outside its result")
            return wide[: len(rows), : len(codes)].contiguous()

        alone = torch.cat([run(row[None]) for row in x])
        same = all(same_bits(run(x[:rows]), alone[:rows]) for rows in BATCHES)
        weight = codes.double() * scale.double()[:, None]
        # Inside a matrix instruction sums are cut, not rounded: two units a term.
        terms = 2 * (columns + 8 + 1)
        exact, bound = bound_of(x, weight, terms, torch.float32)
        yield _placed(
            library, compare(KERNEL, "", alone, exact, bound, row_invariant=same, what=label)
        )
        for fault, other in (
            ("neighbouring row", weight.roll(1, 0)),
            ("code sign lost", weight.abs()),
        ):
            exact, bound = bound_of(x, other, terms, torch.float32)
            seen = not compare(KERNEL, "", alone, exact, bound).ok
            reason = f"{label}: the fault '{fault}' goes unnoticed"
            yield _placed(library, expect(KERNEL, "", seen, reason))


def _placed(library: CudaLibrary, result: CheckResult) -> CheckResult:
    return replace(result, implementation=library.target.name, device="cuda")
