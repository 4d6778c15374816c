# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks of the matrix products in Triton: FP8 of both scales, BF16 of fixed order, NVFP4 for prompt chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.bf16_linear.triton import linear
from kernels.checks import CheckResult, compare
from kernels.cpu.product_check import INPUT_KINDS, bound_of, inputs
from kernels.fp8_linear.reference import dequantise_blocks, dequantise_rows
from kernels.fp8_linear.triton import linear_blocks, linear_rows
from kernels.nvfp4_linear.check import random_weight
from kernels.nvfp4_linear.cuda import place_nvfp4
from kernels.nvfp4_linear.reference import dequantise_nvfp4
from kernels.nvfp4_linear.triton import linear_chunk
from kernels.triton_checks import BATCHES, Bench, batched_like_alone

if TYPE_CHECKING:
    from kernels.cuda_build import CudaLibrary

SHAPES = ((272, 400), (1024, 5120))
CHUNK_SHAPES = ((80, 256), (1024, 5120))
CHUNK_ROWS = (33, 70, 130)


def check(
    library: CudaLibrary,
    *,
    seed: int = 0,
    shapes: tuple[tuple[int, int], ...] = SHAPES,
    chunk_shapes: tuple[tuple[int, int], ...] = CHUNK_SHAPES,
    chunk_rows: tuple[int, ...] = CHUNK_ROWS,
    batches: tuple[int, ...] = BATCHES,
    kinds: tuple[str, ...] = INPUT_KINDS,
) -> Iterator[CheckResult]:
    """Every product and shape: bounds over classes of inputs, rows alone and in a batch, faults."""
    for outputs, columns in shapes:
        for product in (_Fp8Blocks, _Fp8Rows, _Bf16):
            case = product(Bench(product.kernel, library, seed), outputs, columns)
            yield from _bounds(case, 5, kinds)
            for rows in chunk_rows if product.takes_chunks else ():
                yield from _bounds(case, rows, kinds[:1])
            yield case.invariant(batches)
            yield from _faults(case, 5)
    for outputs, columns in chunk_shapes:
        case = _Nvfp4(Bench("nvfp4_linear", library, seed), outputs, columns)
        for rows in chunk_rows:
            yield from _bounds(case, rows, kinds[:1])
        yield from _faults(case, chunk_rows[0])


class _Product:
    """One weight; `weights` are its float64 values, then those with a fault, by name."""

    kernel = ""
    takes_chunks = True

    def __init__(self, bench: Bench, outputs: int, columns: int) -> None:
        self.bench, self.outputs, self.columns = bench, outputs, columns
        self.label = f"{outputs}x{columns}"
        self.weights: dict[str, Tensor] = {}

    def launch(self, x: Tensor, out: Tensor) -> None:
        raise NotImplementedError

    def run(self, x: Tensor) -> Tensor:
        """The product, in a poisoned buffer with room around."""
        wide = self.bench.empty(len(x) + 1, self.outputs + 16)
        self.launch(x, wide[: len(x), : self.outputs])
        outside = torch.cat((wide[len(x) :].flatten(), wide[:, self.outputs :].flatten()))
        if not bool(outside.isnan().all()):
            raise AssertionError("the product wrote outside its result")
        return wide[: len(x), : self.outputs].contiguous()

    def rows(self, kind: str, count: int) -> Tensor:
        return inputs(kind, count, self.columns, self.bench.seed).to(self.bench.device)

    def invariant(self, batches: tuple[int, ...]) -> CheckResult:
        """Rows whose halves undo each other: only the rounding is left, and every order leaves another."""
        x = self.rows("gaussian", max(batches))
        half = self.columns // 2
        x[:, half : 2 * half] = -x[:, :half]
        return batched_like_alone(self.bench, self.label, lambda rows: self.run(x[rows]), batches)


class _Fp8Blocks(_Product):
    kernel = "fp8_linear"

    def __init__(self, bench: Bench, outputs: int, columns: int) -> None:
        super().__init__(bench, outputs, columns)
        self.codes = (bench.random(outputs, columns).float() * 20).to(torch.float8_e4m3fn)
        blocks = (-(-outputs // 128), -(-columns // 128))
        self.scale = (bench.random(*blocks, salt=1).float().abs() + 0.1).bfloat16()
        self.weights = {"": dequantise_blocks(self.codes, self.scale).double()}
        for name, scale in (
            ("scales shifted by a block", self.scale.roll(1, 1)),
            ("scale of a block off by an eighth", self.scale * 1.125),
        ):
            self.weights[name] = dequantise_blocks(self.codes, scale).double()

    def launch(self, x: Tensor, out: Tensor) -> None:
        linear_blocks(x, self.codes, self.scale, out, rows=len(x))


class _Fp8Rows(_Product):
    kernel = "fp8_linear"

    def __init__(self, bench: Bench, outputs: int, columns: int) -> None:
        super().__init__(bench, outputs, columns)
        self.codes = (bench.random(outputs, columns).float() * 20).to(torch.float8_e4m3fn)
        self.scale = bench.random(outputs, dtype=torch.float32, salt=1).abs() + 0.1
        whole = dequantise_rows(self.codes, self.scale).double()
        self.weights = {"": whole, "neighbouring output": whole.roll(1, 0)}

    def launch(self, x: Tensor, out: Tensor) -> None:
        linear_rows(x, self.codes, self.scale, out, rows=len(x))


class _Bf16(_Product):
    kernel = "bf16_linear"
    takes_chunks = False

    def __init__(self, bench: Bench, outputs: int, columns: int) -> None:
        super().__init__(bench, outputs, columns)
        self.weight = bench.random(outputs, columns)
        self.weights = {"": self.weight.double(), "inputs shifted": self.weight.roll(1, 1).double()}

    def launch(self, x: Tensor, out: Tensor) -> None:
        linear(x, self.weight, out, rows=len(x))


class _Nvfp4(_Product):
    def __init__(self, bench: Bench, outputs: int, columns: int) -> None:
        super().__init__(bench, outputs, columns)
        first = outputs // 2 + 3
        parts = [
            (*random_weight(rows, columns, bench.seed + rows)[:2], scale_2)
            for rows, scale_2 in ((first, 0.000371), (outputs - first, 2.5))
        ]
        self.weight = place_nvfp4(parts, bench.device)
        codes, scales = self.weight.codes, self.weight.scales
        shifted = scales.view(torch.uint8).roll(1, 1).view(torch.float8_e4m3fn)
        for name, stored in {
            "": (codes, scales),
            "swapped nibbles": ((codes >> 4) | (codes << 4), scales),
            "scales shifted by a group": (codes, shifted),
            "code sign lost": (codes & 0x77, scales),
        }.items():
            unscaled = dequantise_nvfp4(*stored, 1.0).double()
            self.weights[name] = unscaled * self.weight.scale_2.double()[:, None]

    def launch(self, x: Tensor, out: Tensor) -> None:
        linear_chunk(self.weight, x, out, rows=len(x))


def _bounded(case: _Product, x: Tensor, weight: Tensor) -> Callable[[Tensor], CheckResult]:
    # Inside a matrix instruction sums are cut, not rounded: two units a term.
    exact, bound = bound_of(x, weight, 2 * (case.columns + 4), torch.bfloat16)

    def compared(got: Tensor) -> CheckResult:
        return case.bench.placed(compare(case.bench.kernel, "", got, exact, bound, what=case.label))

    return compared


def _bounds(case: _Product, rows: int, kinds: tuple[str, ...]) -> Iterator[CheckResult]:
    for kind in kinds:
        x = case.rows(kind, rows)
        yield _bounded(case, x, case.weights[""])(case.run(x))


def _faults(case: _Product, rows: int) -> Iterator[CheckResult]:
    x = case.rows("gaussian", rows)
    got = case.run(x)
    for name, weight in case.weights.items():
        if name:
            yield case.bench.unnoticed(name, _bounded(case, x, weight)(got))
