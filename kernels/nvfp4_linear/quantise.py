# SPDX-License-Identifier: MIT OR Apache-2.0
"""Makes NVFP4 weights from dense ones: round to nearest, or a search over clipped group scales."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.e2m1.reference import decode, encode, pack

METHODS = ("rtn", "clip")
GROUP = 16
_LARGEST_CODE = 6.0
_LARGEST_SCALE = 448.0
_MULTIPLIERS = (1.0, 0.95, 0.9, 0.85, 0.8)
_CHUNK_ELEMENTS = 1 << 22


def quantise(
    weight: Tensor, method: str = "rtn", act_ms: Tensor | None = None
) -> tuple[Tensor, Tensor, float]:
    """Quantise a weight [N, K] to NVFP4.

    scale_2 = max|W| / (6 * 448); the scale of a group is (max|group| / 6) / scale_2 in e4m3, one
    step up where rounding down would clip; codes are nearest, ties to even. "clip" also tries
    scales of 0.95, 0.90, 0.85 and 0.80 times that and keeps, for every group, the one with the
    least sum of act_ms[k] * (w - w_hat)^2.

    Args:
        weight: floating [N, K], finite, K a multiple of 16.
        act_ms: mean square of each input [K] for "clip"; ones by default.

    Returns:
        codes uint8 [N, K/2] (even input in the low nibble), scales float8_e4m3fn [N, K/16],
        scale_2.

    Raises:
        ValueError: unknown method, a shape that does not fit, or a weight that is not finite.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    scale_2 = tensor_scale(weight)
    rows, columns = weight.shape
    if act_ms is not None and tuple(act_ms.shape) != (columns,):
        raise ValueError(f"act_ms must have shape [{columns}], got {list(act_ms.shape)}")
    importance = torch.ones(columns) if act_ms is None else act_ms.float()
    codes = torch.empty(rows, columns // 2, dtype=torch.uint8)
    scales = torch.empty(rows, columns // GROUP, dtype=torch.float8_e4m3fn)
    step = max(1, _CHUNK_ELEMENTS // columns)
    for begin in range(0, rows, step):
        part = slice(begin, begin + step)
        groups = weight[part].float().view(-1, columns // GROUP, GROUP)
        chosen, scale = _quantise_groups(groups, scale_2, method, importance)
        codes[part] = pack(chosen.view(-1, columns))
        scales[part] = scale
    return codes, scales, scale_2


def tensor_scale(weight: Tensor) -> float:
    """scale_2 of a weight [N, K], a positive float32: max|W| / (6 * 448).

    Raises:
        ValueError: a shape that does not fit, or a weight that is not finite.
    """
    if weight.dim() != 2 or weight.shape[1] % GROUP or not weight.numel():
        raise ValueError(f"weight must be [N, K] with K % {GROUP} == 0, got {list(weight.shape)}")
    largest = float(weight.abs().amax())
    if not largest < float("inf"):
        raise ValueError("weight holds values that are not finite")
    scale_2 = largest / (_LARGEST_CODE * _LARGEST_SCALE)
    return float(torch.tensor(scale_2 or 1.0, dtype=torch.float32)) or 2.0**-126


def candidate_scales(largest: Tensor, scale_2: float) -> Iterator[Tensor]:
    """The e4m3 scales that the search tries for groups whose largest magnitudes are `largest`, same shape.

    The first is the one of "rtn". A group beyond 6 * 448 * scale_2 gets 448 and is clipped.
    """
    wanted = largest / _LARGEST_CODE / scale_2
    yield _round_up_clipped(wanted, largest, scale_2)
    for multiplier in _MULTIPLIERS[1:]:
        yield (wanted * multiplier).clamp(max=_LARGEST_SCALE).to(torch.float8_e4m3fn)


def nearest(values: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """Codes (uint8) of float32 values whose unit is `step`, and what is left: value - decoded * step.

    A step of 0 gives zeros.
    """
    scaled = torch.where(step > 0, values / step, torch.zeros_like(values))
    codes = encode(scaled)
    return codes, values - decode(codes) * step


def _quantise_groups(
    groups: Tensor, scale_2: float, method: str, importance: Tensor
) -> tuple[Tensor, Tensor]:
    """Codes [n, G, 16] and e4m3 scales [n, G] of groups [n, G, 16]."""
    scales = candidate_scales(groups.abs().amax(-1), scale_2)
    scale = next(scales)
    codes, error = _try_scale(groups, scale, scale_2, importance)
    if method == "rtn":
        return codes, scale
    for other in scales:
        other_codes, other_error = _try_scale(groups, other, scale_2, importance)
        better = other_error < error
        codes = torch.where(better.unsqueeze(-1), other_codes, codes)
        error = torch.where(better, other_error, error)
        raw = torch.where(better, other.view(torch.uint8), scale.view(torch.uint8))
        scale = raw.view(torch.float8_e4m3fn)
    return codes, scale


def _round_up_clipped(wanted: Tensor, largest: Tensor, scale_2: float) -> Tensor:
    rounded = wanted.clamp(max=_LARGEST_SCALE).to(torch.float8_e4m3fn)
    clips = rounded.float() * (scale_2 * _LARGEST_CODE) < largest
    raw = rounded.view(torch.uint8)
    return torch.where(clips & (raw < 0x7E), raw + 1, raw).view(torch.float8_e4m3fn)


def _try_scale(
    groups: Tensor, scale: Tensor, scale_2: float, importance: Tensor
) -> tuple[Tensor, Tensor]:
    """Codes under this scale, and the weighted squared error of every group."""
    codes, difference = nearest(groups, (scale.float() * scale_2).unsqueeze(-1))
    weights = importance.view(1, -1, GROUP)
    return codes, (difference.square() * weights).sum(-1)
