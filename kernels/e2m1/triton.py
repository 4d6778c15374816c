# SPDX-License-Identifier: MIT OR Apache-2.0
"""FP32 to packed E2M1 codes on a GPU: `encode(values, out)`; twin `reference.encode` and `pack`.

By comparisons of magnitude bits as integers, so that it is the same on targets with and without a conversion to
e2m1, and a NaN saturates like an infinity.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_build import Compiled, Variant, launch_options
from kernels.triton_operands import require, require_device

_BLOCK = 1024  # codes of a program
_WARPS = 4


@triton.jit
def e2m1_code(value):
    """Codes 0..15 (int32) of float32 values: nearest, ties to even, saturating at 6; bit 3 is the sign."""
    bits = value.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    code = (magnitude > 0x3E800000).to(tl.int32) + (magnitude >= 0x3F400000).to(tl.int32)
    code += (magnitude > 0x3FA00000).to(tl.int32) + (magnitude >= 0x3FE00000).to(tl.int32)
    code += (magnitude > 0x40200000).to(tl.int32) + (magnitude >= 0x40600000).to(tl.int32)
    code += (magnitude > 0x40A00000).to(tl.int32)
    return code | tl.where(bits < 0, 8, 0)


@triton.jit(do_not_specialize=["count"])
def _encode(values, out, count, BLOCK: tl.constexpr):
    j = tl.program_id(0).to(tl.int64) * (BLOCK // 2) + tl.arange(0, BLOCK // 2)
    inside = j < count // 2
    pair = values + 2 * j[:, None] + tl.arange(0, 2)[None, :]
    even, odd = tl.split(e2m1_code(tl.load(pair, mask=inside[:, None], other=0.0)))
    tl.store(out + j, (even | (odd << 4)).to(tl.uint8), mask=inside)


GATE = Compiled(
    "e2m1/triton.py",
    Variant(
        "e2m1_encode",
        _encode,
        {"values": "*fp32", "out": "*u8", "count": "i64"},
        {"BLOCK": _BLOCK},
        warps=_WARPS,
    ),
)
entries, cubins, shared_bytes = GATE.entries, GATE.cubins, GATE.shared_bytes


def encode(values: Tensor, out: Tensor) -> None:
    """out = packed codes of `values`: nearest, ties to even, at most 6; the even element in the low nibble.

    Args:
        values: float32 [n], n even; out: uint8 [n / 2]; contiguous, aligned to 16 bytes.

    Raises:
        ValueError: an operand differs from the above; nothing was launched.
    """
    (count,) = require("values", values, torch.float32, (None,)).shape
    if count % 2 or not count:
        raise ValueError(f"values must hold an even number of elements, got {count}")
    require("out", out, torch.uint8, (count // 2,))
    require_device(values=values, out=out)
    _encode[(triton.cdiv(count, _BLOCK),)](values, out, count, _BLOCK, **launch_options(_WARPS))
