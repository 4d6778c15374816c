# SPDX-License-Identifier: MIT OR Apache-2.0
"""The native NVFP4 product: pack the weight once, then record products with it."""

from __future__ import annotations

from kernels.cpu.product import PackedLinear, linear
from kernels.nvfp4_linear.pack import pack_nvfp4

__all__ = ["PackedLinear", "linear", "pack_nvfp4"]
