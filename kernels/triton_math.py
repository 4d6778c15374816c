# SPDX-License-Identifier: MIT OR Apache-2.0
"""Device functions that several Triton kernels share; all in float32."""

from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def to_bf16(x):
    """Float32 rounded to bf16, to nearest and ties to even. Triton's interpreter would cut the bits off."""
    if INTERPRETED:
        bits = x.to(tl.uint32, bitcast=True)
        bits = bits + 0x7FFF + ((bits >> 16) & 1)
        bits = tl.where(x != x, 0x7FC00000, bits)
        return (bits >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return x.to(tl.bfloat16)


@triton.jit
def dot_bf16(a, b):
    """The product of two bf16 tiles with float32 sums. The interpreter would multiply the bits."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32))
    else:
        return tl.dot(a, b)


@triton.jit
def sigmoid(x):
    """1 / (1 + e^-x)."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def silu(x):
    """x times sigmoid(x)."""
    return x / (1.0 + tl.exp(-x))


@triton.jit
def softplus(x):
    """ln(1 + e^x), x itself above 20.

    The hardware's logarithm has an absolute error, so ln(1 + y) comes from the series of 2 artanh(y / (2 + y))
    up to y = 1: eight terms leave 2^-27.
    """
    y = tl.exp(tl.minimum(x, 20.0))
    small = tl.minimum(y, 1.0)
    ratio = small / (2.0 + small)
    square = ratio * ratio
    series = 1.0 / 15.0
    series = series * square + 1.0 / 13.0
    series = series * square + 1.0 / 11.0
    series = series * square + 1.0 / 9.0
    series = series * square + 1.0 / 7.0
    series = series * square + 1.0 / 5.0
    series = series * square + 1.0 / 3.0
    series = series * square + 1.0
    value = tl.where(y <= 1.0, 2.0 * ratio * series, tl.log(1.0 + y))
    return tl.where(x > 20.0, x, value)


@triton.jit
def e2m1_value(code):
    """Value of an FP4 code 0..15 (int32), exactly: the bits of the float are made, nothing is subnormal."""
    magnitude = code & 7
    bits = tl.where(magnitude > 1, (magnitude + 252) << 22, magnitude * 0x3F000000)
    return (bits | ((code >> 3) << 31)).to(tl.float32, bitcast=True)


@triton.jit
def e4m3_value(byte):
    """Value of an e4m3 byte (int32) that is not negative and no NaN, exactly.

    A subnormal m / 8 times 2^-6 is 2^-6 (1 + m / 8) less 2^-6.
    """
    normal = ((byte << 20) + 0x3C000000).to(tl.float32, bitcast=True)
    raised = ((byte << 20) + 0x3C800000).to(tl.float32, bitcast=True)
    return tl.where(byte > 7, normal, raised - 0.015625)
