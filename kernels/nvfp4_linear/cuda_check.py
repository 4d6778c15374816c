# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks of the NVFP4 products on a GPU: float64 bounds, equal bits for every row count, faults, graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.checks import CheckResult, compare, expect, half_ulp_bf16, poison, same_bits
from kernels.cpu.product_check import INPUT_KINDS, bound_of, inputs
from kernels.nvfp4_linear.check import random_weight
from kernels.nvfp4_linear.cuda import (
    expand,
    linear_skinny,
    logits_skinny,
    place_nvfp4,
)
from kernels.nvfp4_linear.reference import dequantise_nvfp4
from kernels.nvfp4_linear.tiles import SkinnyTile, default_tile, fitted

if TYPE_CHECKING:
    from kernels.cuda_build import CudaLibrary

KERNEL = "nvfp4_linear"
SHAPES = ((8, 128), (44, 640), (200, 1152), (1024, 5120), (5120, 17408))
BATCHES = (1, 2, 7, 8, 9, 14, 16, 17, 24, 31, 32)
ORDERS = ((16, 0), (8, 1), (4, 0))
_LARGE = 1 << 22  # elements: one setting is enough for a weight of this size
_UNIT = 256  # the kernel sums products times 2^-8, so it loses subnormals this much earlier


def check(
    library: CudaLibrary,
    *,
    seed: int = 0,
    shapes: tuple[tuple[int, int], ...] = SHAPES,
    orders: tuple[tuple[int, int], ...] = ORDERS,
) -> Iterator[CheckResult]:
    """Every shape: bounds over all classes of inputs, invariance over rows and settings, faults."""
    yield _decoding(library)
    for index, (outputs, columns) in enumerate(shapes):
        case = _Case(library, outputs, columns, seed + 10 * index)
        yield from case.bounds()
        yield case.invariant(orders)
        yield case.unrounded()
        yield from case.faults()
        yield case.expanded()
        if library.device.type == "cuda":
            yield case.replayed()


class _Case:
    """Two fused weights on the device, and what the products of some rows should be."""

    def __init__(self, library: CudaLibrary, outputs: int, columns: int, seed: int) -> None:
        self.library, self.seed = library, seed
        first = max(outputs - 5, 3)
        parts = []
        for rows, scale_2 in ((first, 0.000371), (outputs - first, 2.5)):
            codes, scales, _ = random_weight(rows, columns // 2, seed + rows)
            # The second half of the inputs meets the weights of the first: see `cancelling`.
            twice = scales.view(torch.uint8).repeat(1, 2).view(scales.dtype)
            parts.append((codes.repeat(1, 2), twice, scale_2))
        self.weight = place_nvfp4(parts, library.device)
        self.label = f"{outputs}x{columns}"

    def exact(self, codes: Tensor, scales: Tensor) -> Tensor:
        """float64 [N, K] of codes and scales on the device, scale_2 as it is stored."""
        unscaled = dequantise_nvfp4(codes, scales, 1.0).double()
        return unscaled * self.weight.scale_2.double()[:, None]

    def rows(self, kind: str, count: int) -> Tensor:
        x = inputs(kind, count, self.weight.inputs, self.seed)
        return x.to(self.library.device)

    def cancelling(self, count: int) -> Tensor:
        """Rows whose halves undo each other: only the rounding is left, and every order leaves another.

        An ordinary sum would hide another order behind the rounding to BF16.
        """
        x = self.rows("gaussian", count)
        half = x.shape[1] // 2
        x[:, half:] = -x[:, :half]
        return x

    def tile(self, nt: int, pf: int, order: tuple[int, int], rows: int) -> SkinnyTile:
        return fitted(SkinnyTile(nt, order[0], pf, order[1]), self.weight.outputs, rows)

    def run(self, x: Tensor, tile: SkinnyTile) -> Tensor:
        """The product, into a poisoned buffer that is wider and longer; AssertionError when that shows."""
        rows, outputs = x.shape[0], self.weight.outputs
        wide = poison(x.new_empty(rows + 1, outputs + 8))
        linear_skinny(self.library, self.weight, x, wide[:rows, :outputs], tile=tile)
        outside = torch.cat([wide[rows:].flatten(), wide[:rows, outputs:].flatten()])
        if not bool(outside.isnan().all()):
            raise AssertionError("the product wrote outside its result")
        return wide[:rows, :outputs].contiguous()

    def bound(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        # Inside a matrix instruction sums are cut, not rounded: two units a term.
        terms = 2 * (self.weight.inputs + 16 + 2)
        exact, bound = bound_of(x, weight, terms, torch.bfloat16)
        return exact, bound + self.weight.inputs * 2.0**-126 * _UNIT * weight.abs().amax()

    def unrounded(self) -> CheckResult:
        """Float32 results, rounded here, have the bits of the product."""
        for rows in (1, 5, 12, 20):
            x = self.cancelling(rows)
            tile = fitted(
                default_tile(self.weight.outputs, self.weight.inputs), self.weight.outputs, rows
            )
            wide = poison(
                torch.empty(rows + 1, self.weight.outputs + 8, device=self.library.device)
            )
            logits_skinny(self.library, self.weight, x, wide[:rows, :-8], tile=tile)
            held = same_bits(wide[:rows, :-8].bfloat16(), self.run(x, tile))
            held = held and bool(wide[rows:].isnan().all() and wide[:, -8:].isnan().all())
            if not held:
                break
        reason = f"{self.label}: {rows} rows in float32 are others than in bf16"
        return _placed(self.library, expect(KERNEL, "", held, reason))

    def bounds(self) -> Iterator[CheckResult]:
        weight = self.exact(self.weight.codes, self.weight.scales)
        tile = fitted(default_tile(self.weight.outputs, self.weight.inputs), self.weight.outputs, 5)
        for kind in INPUT_KINDS:
            x = self.rows(kind, 5)
            exact, bound = self.bound(x, weight)
            yield self.result(
                lambda x=x, exact=exact, bound=bound, kind=kind: compare(
                    KERNEL,
                    "",
                    self.run(x, tile),
                    exact,
                    bound,
                    what=f"{self.label}, {kind}",
                )
            )

    def invariant(self, orders: tuple[tuple[int, int], ...]) -> CheckResult:
        """Rows of every batch against rows alone, for every setting of an order."""
        large = self.weight.codes.numel() * 2 > _LARGE
        x = self.cancelling(max(BATCHES))
        for order in orders[:1] if large else orders:
            alone = torch.cat([self.run(row[None], self.tile(1, 0, order, 1)) for row in x])
            for nt, pf in (
                [(2, 1), (4, 0)] if large else [(n, p) for n in (1, 2, 4) for p in (0, 1)]
            ):
                for rows in BATCHES:
                    tile = self.tile(nt, pf, order, rows)
                    if not same_bits(self.run(x[:rows], tile), alone[:rows]):
                        reason = f"{self.label}, {tile}: {rows} rows differ from the rows alone"
                        return replace(self._expect(False, reason), row_invariant=False)
        return replace(self._expect(True, ""), row_invariant=True)

    def faults(self) -> Iterator[CheckResult]:
        """Weights with a fault must lie outside the bound of what the kernel computed."""
        codes, scales = self.weight.codes, self.weight.scales
        shifted = scales.view(torch.uint8).roll(1, 1).view(torch.float8_e4m3fn)
        mutants = {
            "swapped nibbles": ((codes >> 4) | (codes << 4), scales),
            "neighbouring row": (codes.roll(1, 0), scales.view(torch.uint8).roll(1, 0).view(scales.dtype)),
            "scales shifted by a group": (codes, shifted),
            "code sign lost": (codes & 0x77, scales),
        }  # fmt: skip
        x = self.rows("gaussian", 5)
        got = self.run(x, self.tile(1, 1, ORDERS[2], 5))
        for fault, stored in mutants.items():
            exact, bound = self.bound(x, self.exact(*stored))
            seen = not compare(KERNEL, "", got, exact, bound).ok
            yield self._expect(seen, f"{self.label}: the fault '{fault}' goes unnoticed")

    def expanded(self) -> CheckResult:
        """Expanded weights are exact, and the library's product with them keeps the bound."""
        out = poison(torch.empty_like(self.weight.codes, dtype=torch.bfloat16).repeat(1, 2))
        expand(self.library, self.weight, out)
        unscaled = dequantise_nvfp4(self.weight.codes, self.weight.scales, 1.0)
        if not same_bits(out, unscaled.bfloat16()):
            return self._expect(False, f"{self.label}: expanded weights are not exact")
        if self.library.device.type != "cuda":
            return self._expect(True, "")
        x = self.rows("gaussian", 65)
        exact, bound = self.bound(x, self.exact(self.weight.codes, self.weight.scales))
        bound = bound + half_ulp_bf16(exact)
        sums = torch.mm(x, out.T, out_dtype=torch.float32)
        got = (sums * self.weight.scale_2).to(torch.bfloat16)
        return self.result(lambda: compare(KERNEL, "", got, exact, bound, what=self.label))

    def replayed(self) -> CheckResult:
        """A captured graph gives the bits of the eager launch, on other inputs too."""
        tile = self.tile(2, 1, ORDERS[0], 16)
        x = self.rows("gaussian", 16)
        out = poison(torch.empty(16, self.weight.outputs, dtype=x.dtype, device=x.device))
        linear_skinny(self.library, self.weight, x, out, tile=tile)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            linear_skinny(self.library, self.weight, x, out, tile=tile)
        x.copy_(self.rows("outliers", 16))
        poison(out)
        graph.replay()
        same = same_bits(out, self.run(x.clone(), tile))
        return self._expect(same, f"{self.label}: a replayed graph differs from the eager launch")

    def result(self, make: Callable[[], CheckResult]) -> CheckResult:
        return _placed(self.library, make())

    def _expect(self, holds: bool, reason: str) -> CheckResult:
        return _placed(self.library, expect(KERNEL, "", holds, reason))


def _decoding(library: CudaLibrary) -> CheckResult:
    """All 16 codes under all 127 scales, expanded: no rounding, no subnormal lost."""
    codes = torch.arange(256, dtype=torch.uint8).view(-1, 64).repeat(127, 1)
    scales = torch.arange(127, dtype=torch.uint8).repeat_interleave(32).view(-1, 8)
    scales = scales.view(torch.float8_e4m3fn)
    weight = place_nvfp4([(codes, scales, 1.0)], library.device)
    out = poison(torch.empty(codes.shape[0], 128, dtype=torch.bfloat16, device=library.device))
    expand(library, weight, out)
    same = same_bits(out.cpu(), dequantise_nvfp4(codes, scales, 1.0).bfloat16())
    return _placed(library, expect(KERNEL, "", same, "a code under some scale is not exact"))


def _placed(library: CudaLibrary, result: CheckResult) -> CheckResult:
    return replace(result, implementation=library.target.name, device="cuda")
