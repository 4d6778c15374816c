# SPDX-License-Identifier: MIT OR Apache-2.0
"""The native bf16 product: pack the weight once, then record products with it."""

from __future__ import annotations

from kernels.bf16_linear.pack import pack_bf16
from kernels.cpu.product import PackedLinear, linear

__all__ = ["PackedLinear", "linear", "pack_bf16"]
