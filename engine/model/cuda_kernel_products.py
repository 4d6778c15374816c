# SPDX-License-Identifier: MIT OR Apache-2.0
"""The matrix products of a GPU pass through the Triton kernels, where no compiled CUDA kernel takes them."""

from __future__ import annotations

from torch import Tensor

from engine.model.backend import VERIFY_ROWS
from engine.model.cuda_products import Products, fits_gemv
from engine.model.cuda_weights import DeviceBlocks, DeviceRows, Product
from kernels.bf16_linear import triton as dense
from kernels.fp8_linear import triton as fp8
from kernels.nvfp4_linear import triton as nvfp4
from kernels.nvfp4_linear.cuda import DeviceNvfp4


class KernelProducts(Products):
    """See `Products`. Up to 32 rows every product keeps one order of the sum, whatever stands beside a row."""

    def product(self, product: Product, x: Tensor, out: Tensor, rows: int) -> None:
        weight, narrow = product.weight, rows <= VERIFY_ROWS
        compiled = self.library is not None and narrow and fits_gemv(product)
        if isinstance(weight, DeviceBlocks) or (isinstance(weight, DeviceRows) and not compiled):
            self._fp8(product, x, out, rows)
        elif isinstance(weight, DeviceNvfp4) and self._takes_chunk(rows):
            nvfp4.linear_chunk(weight, x, out, rows=rows)
            self._count("narrow NVFP4 kernels" if narrow else "wide NVFP4 kernels")
        elif isinstance(weight, Tensor) and narrow:
            dense.linear(x, weight, out, rows=rows)
        else:
            super().product(product, x, out, rows)

    def head_by_kernel(self, product: Product, x: Tensor, logits: Tensor, rows: int) -> bool:
        if super().head_by_kernel(product, x, logits, rows):
            return True
        if isinstance(product.weight, Tensor):
            dense.linear(x, product.weight, logits, rows=rows)
            return True
        if isinstance(product.weight, DeviceRows | DeviceBlocks):
            self._fp8(product, x, logits, rows)
            return True
        return False

    def _takes_chunk(self, rows: int) -> bool:
        """Whether the Triton product takes so many rows: more than 32, or where no compiled kernel is."""
        switches = self.switches
        if rows <= VERIFY_ROWS:
            return self.library is None and switches.narrow_nvfp4
        return switches.wide_nvfp4 and rows < switches.wide_nvfp4_until

    def _fp8(self, product: Product, x: Tensor, out: Tensor, rows: int) -> None:
        weight, tiles = product.weight, self.switches.fp8_tiles
        assert isinstance(weight, DeviceRows | DeviceBlocks)
        shape = (product.outputs, product.inputs)
        linear = fp8.linear_rows if isinstance(weight, DeviceRows) else fp8.linear_blocks
        linear(x, weight.codes, weight.scale, out, rows=rows, tile=tiles.tile(*shape))
        self._count("FP8 products by a table", shape in tiles.tiles and rows <= VERIFY_ROWS)
