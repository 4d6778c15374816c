# SPDX-License-Identifier: MIT OR Apache-2.0
"""The matrix products of a GPU pass: compiled CUDA kernels up to 32 rows, the library otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor

from engine.model import cuda_plain as plain
from engine.model.backend import VERIFY_ROWS
from engine.model.cuda_switches import CudaSwitches
from engine.model.cuda_weights import DeviceBlocks, DeviceRows, Product, Projection
from kernels.cuda_build import CudaLibrary
from kernels.fp8_linear.reference import dequantise_blocks
from kernels.head.cuda import STEP as GEMV_STEP
from kernels.head.cuda import head_logits
from kernels.head.reference import head_logits as head_sums
from kernels.nvfp4_linear.cuda import DeviceNvfp4, expand, linear_skinny, logits_skinny
from kernels.nvfp4_linear.reference import dequantise_nvfp4

Mark = Callable[[str, int, int], None]


class Products:
    """The base of `CudaOps`: what its products need, the counters and the marks."""

    def __init__(self, library: CudaLibrary | None) -> None:
        self.library = library
        self.switches = CudaSwitches()
        self.paths: Counter[str] = Counter()
        self.mark: Mark = lambda name, bytes_read, flops: None
        self._most_expanded = 0  # elements of the largest weight that may be expanded
        self._expanded: dict[int, Tensor] = {}  # bf16, by how many they hold, from the first use on
        self._narrow_sums: Tensor | None = None

    def reserve(
        self, products: list[Product], head: Projection, *, device: torch.device, positions: int
    ) -> None:
        """Allocate what the operations need besides the arena, once; `positions`: of the caches."""
        self.make_room(products, device=device)

    def make_room(self, products: list[Product], *, device: torch.device) -> None:
        """Allocate what these products need besides those before; graphs captured until now are not valid."""
        if self.library is None:
            return
        four_bit = [p.outputs * p.inputs for p in products if isinstance(p.weight, DeviceNvfp4)]
        rows = [p.outputs for p in products if isinstance(p.weight, DeviceRows)]
        self._most_expanded = max(self._most_expanded, *four_bit, 0)
        self._expanded = {}
        held = 0 if self._narrow_sums is None else self._narrow_sums.shape[1]
        self._narrow_sums = torch.empty(VERIFY_ROWS, max(held, *rows, 0), device=device)

    def head_by_kernel(self, product: Product, x: Tensor, logits: Tensor, rows: int) -> bool:
        """Logits by a kernel, where there is one for this head; False: nothing was done."""
        weight = product.weight
        if self.library is None:
            return False
        if isinstance(weight, DeviceRows) and fits_gemv(product):
            head_logits(self.library, x[:rows], weight.codes, weight.scale, logits)
            return True
        if isinstance(weight, DeviceNvfp4):
            tile = self.switches.tiles.tile(product.outputs, product.inputs, rows)
            logits_skinny(self.library, weight, x[:rows], logits, tile=tile)
            return True
        return False

    def product(self, product: Product, x: Tensor, out: Tensor, rows: int) -> None:
        """out [R, N] = x times the weight, rounded to bf16."""
        weight, library = product.weight, self.library
        narrow = rows <= VERIFY_ROWS
        if library is not None and narrow and isinstance(weight, DeviceRows) and fits_gemv(product):
            assert self._narrow_sums is not None
            sums = self._narrow_sums[:rows, : product.outputs]
            head_logits(library, x[:rows], weight.codes, weight.scale, sums)
            out[:rows].copy_(sums)
        elif (
            library is not None
            and narrow
            and isinstance(weight, DeviceNvfp4)
            and self.switches.narrow_nvfp4
        ):
            tables, shape = self.switches.tiles, (product.outputs, product.inputs)
            tile = tables.tile(*shape, rows)
            linear_skinny(library, weight, x[:rows], out[:rows], tile=tile)
            self._count("narrow NVFP4 kernels")
            if shape in (tables.wide if rows > 16 else tables.base):
                width = "wide" if rows > 16 else "narrow"
                self._count(f"{width} NVFP4 products by a table")
        else:
            count = plain.computed_rows(rows)
            out[:count].copy_(self.sums(product, x[:count]))
            if isinstance(weight, DeviceNvfp4):
                self._count(f"{'narrow' if narrow else 'wide'} NVFP4 expanded")

    def sums(self, product: Product, x: Tensor) -> Tensor:
        """x times the weight as float32 sums [R, N], by the library."""
        weight = product.weight
        if isinstance(weight, DeviceRows):
            return plain.sums(x, weight.codes.to(torch.bfloat16)) * weight.scale
        if isinstance(weight, DeviceBlocks):
            return head_sums(x, dequantise_blocks(weight.codes, weight.scale))
        if isinstance(weight, Tensor):
            return plain.sums(x, weight)
        if self.library is None:
            exact = dequantise_nvfp4(weight.codes, weight.scales, 1.0).to(torch.bfloat16)
        else:
            # Once for good: captured graphs hold its address, and a pass runs before it is captured. A head,
            # many times as large as the others, has one of its own.
            elements = product.outputs * product.inputs
            held = max(elements, self._most_expanded)
            if held not in self._expanded:
                self._expanded[held] = torch.empty(held, dtype=torch.bfloat16, device=x.device)
            exact = self._expanded[held][:elements].view(product.outputs, -1)
            expand(self.library, weight, exact)
        return plain.sums(x, exact) * weight.scale_2

    def _count(self, path: str, times: int = 1) -> None:
        if times:
            self.paths[path] += times


def fits_gemv(product: Product) -> bool:
    """Whether the compiled kernel for e4m3 codes with a scale a row takes this shape."""
    return product.inputs % GEMV_STEP == 0 and product.outputs >= 8
