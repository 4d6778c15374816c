# SPDX-License-Identifier: MIT OR Apache-2.0
"""Makes e4m3 weights from dense ones, with a scale per 128 x 128 block or per output."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

BLOCK = 128
_LARGEST = 448.0
_MULTIPLIERS = (1.0, 0.95, 0.9)
_CHUNK_ELEMENTS = 1 << 22


def quantise_blocks(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise [N, K] with one scale per block: scale_inv = max|block| / 448, rounded to bf16.

    Returns:
        codes float8_e4m3fn [N, K] (nearest, ties to even, saturating) and scale_inv bf16
        [ceil(N/128), ceil(K/128)]; a block of zeros has scale 1.

    Raises:
        ValueError: weight is no finite matrix.
    """
    _check(weight)
    rows, columns = weight.shape
    codes = torch.empty(rows, columns, dtype=torch.float8_e4m3fn)
    scales = torch.empty(-(-rows // BLOCK), -(-columns // BLOCK), dtype=torch.bfloat16)
    for index, begin in enumerate(range(0, rows, BLOCK)):
        part = weight[begin : begin + BLOCK].float()
        padded = functional.pad(part, (0, -columns % BLOCK))
        largest = padded.view(part.shape[0], -1, BLOCK).abs().amax((0, 2))
        scale = (largest / _LARGEST).to(torch.bfloat16)
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        scales[index] = scale
        wide = scale.float().repeat_interleave(BLOCK)[:columns]
        codes[begin : begin + BLOCK] = _nearest(part / wide)
    return codes, scales


def quantise_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise [N, K] with one scale per output.

    The scale is max|row| / 448 times 1.00, 0.95 or 0.90, whichever leaves the least squared error.

    Returns:
        codes float8_e4m3fn [N, K] and scale float32 [N]; a row of zeros has scale 1.

    Raises:
        ValueError: weight is no finite matrix.
    """
    _check(weight)
    rows, columns = weight.shape
    codes = torch.empty(rows, columns, dtype=torch.float8_e4m3fn)
    scales = torch.empty(rows, dtype=torch.float32)
    step = max(1, _CHUNK_ELEMENTS // columns)
    for begin in range(0, rows, step):
        part = weight[begin : begin + step].float()
        codes[begin : begin + step], scales[begin : begin + step] = _search_rows(part)
    return codes, scales


def _search_rows(part: Tensor) -> tuple[Tensor, Tensor]:
    base = part.abs().amax(1) / _LARGEST
    base = torch.where(base > 0, base, torch.ones_like(base))
    best = torch.full_like(base, float("inf"))
    scale = base
    raw = torch.zeros(part.shape, dtype=torch.uint8)
    for multiplier in _MULTIPLIERS:
        candidate = base * multiplier
        codes = _nearest(part / candidate.unsqueeze(1))
        error = (codes.float() * candidate.unsqueeze(1) - part).square().sum(1)
        better = error < best
        best = torch.where(better, error, best)
        scale = torch.where(better, candidate, scale)
        raw = torch.where(better.unsqueeze(1), codes.view(torch.uint8), raw)
    return raw.view(torch.float8_e4m3fn), scale


def _nearest(values: Tensor) -> Tensor:
    return values.clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn)


def _check(weight: Tensor) -> None:
    if weight.dim() != 2 or not weight.numel():
        raise ValueError(f"weight must be a matrix with elements, got {list(weight.shape)}")
    if not float(weight.abs().amax()) < float("inf"):
        raise ValueError("weight holds values that are not finite")
