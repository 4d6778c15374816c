# SPDX-License-Identifier: MIT OR Apache-2.0
"""Readable NVFP4 weights: e2m1 codes, one e4m3 scale per 16 inputs, one float32 scale."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from kernels.e2m1.reference import decode, unpack

GROUP = 16


def dequantise_nvfp4(codes: Tensor, scales: Tensor, scale_2: Tensor | float) -> Tensor:
    """float32 [N, K] = e2m1(code) * scale[n, k // 16] * scale_2.

    Args:
        codes: uint8 [N, K/2], the even input in the low nibble.
        scales: float8_e4m3fn [N, K/16].
        scale_2: one number.

    Raises:
        ValueError: the shapes do not belong together.
    """
    rows, half = codes.shape
    if tuple(scales.shape) != (rows, half * 2 // GROUP) or half * 2 % GROUP:
        raise ValueError(f"scales {list(scales.shape)} do not fit codes {list(codes.shape)}")
    values = decode(unpack(codes)).view(rows, -1, GROUP)
    # The product of code and scale is exact, so there is one rounding in all.
    return (values * scales.float().unsqueeze(-1)).view(rows, -1) * float(scale_2)


def round_inputs(x: Tensor) -> Tensor:
    """float64 [..., K]: activations as AVX2, NEON and AVX-512 without bf16 read them: int16, a step per 16.

    The step is 2^(e - 14), where 2^e is the power of two at or below the largest magnitude of the 16, and at
    least 2^-126. An input is the nearest multiple, ties to even: exact within 2^-7 of the largest, off by at
    most 2^-15 of it anywhere. A group with an infinity or a NaN becomes NaN.
    """
    groups = x.double().unflatten(-1, (-1, GROUP))
    largest = groups.abs().amax(-1, keepdim=True)
    exponent = torch.frexp(largest).exponent - 1
    step = torch.exp2((exponent - 14).clamp(min=-126).double())
    rounded = (groups / step).round() * step
    return torch.where(largest.isfinite(), rounded, torch.nan).flatten(-2)


def round_inputs_int8(x: Tensor) -> Tensor:
    """float64 [..., K]: activations rounded to 8 bits with a step per 16, the same on every processor.

    The step is 2^(e - 6), where 2^e is the power of two at or below the largest magnitude of the 16, and at
    least 2^-116. An input is the nearest multiple from -127 to 127 steps, ties to even: off by at most 2^-7 of
    the largest. A row with a magnitude of 2^127 and more, an infinity or a NaN becomes NaN.
    """
    groups = x.double().unflatten(-1, (-1, GROUP))
    largest = groups.abs().amax(-1, keepdim=True)
    exponent = torch.frexp(largest).exponent - 1
    step = torch.exp2((exponent - 6).clamp(min=-116).double())
    rounded = (groups / step).round().clamp(-127, 127) * step
    fits = (x.double().abs() < 2.0**127).all(-1, keepdim=True)
    return torch.where(fits, rounded.flatten(-2), torch.nan)


def linear(x: Tensor, codes: Tensor, scales: Tensor, scale_2: Tensor | float) -> Tensor:
    """x @ W^T with float32 sums and one rounding: x [..., K] -> [..., N] in x's dtype."""
    weight = dequantise_nvfp4(codes, scales, scale_2)
    return functional.linear(x.to(torch.float32), weight).to(x.dtype)
