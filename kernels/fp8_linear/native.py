# SPDX-License-Identifier: MIT OR Apache-2.0
"""The native FP8 product: pack the weight once, then record products with it."""

from __future__ import annotations

from kernels.cpu.product import PackedLinear, linear
from kernels.fp8_linear.pack import pack_fp8_blocks, pack_fp8_rows

__all__ = ["PackedLinear", "linear", "pack_fp8_blocks", "pack_fp8_rows"]
