# SPDX-License-Identifier: MIT OR Apache-2.0
"""The quantisers: exact round trips, bounded errors, and a search that never does worse."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.e2m1.reference import VALUES
from kernels.fp8_linear.quantise import quantise_blocks, quantise_rows
from kernels.fp8_linear.reference import dequantise_blocks, dequantise_rows
from kernels.nvfp4_linear.quantise import quantise
from kernels.nvfp4_linear.reference import dequantise_nvfp4


def _weight(rows: int, columns: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator) * 0.02
    weight[0, :: max(1, columns // 4)] *= 30
    return weight


def test_what_nvfp4_can_hold_comes_back_exactly() -> None:
    values = torch.tensor([*VALUES, *(-value for value in VALUES)])
    weight = torch.stack([values * factor for factor in (448.0, 6.0, 0.125)]) * 2.0**-9
    weight = torch.cat([weight, torch.zeros(1, 16)])
    for method in ("rtn", "clip"):
        assert torch.equal(dequantise_nvfp4(*quantise(weight, method)), weight)


@settings(max_examples=30)
@given(rows=st.integers(1, 9), groups=st.integers(1, 9), seed=st.integers(0, 999))
def test_nearest_never_clips_and_stays_within_half_a_step(
    rows: int, groups: int, seed: int
) -> None:
    weight = _weight(rows, groups * 16, seed)
    codes, scales, scale_2 = quantise(weight)
    step = (scales.float() * scale_2).repeat_interleave(16, 1)
    error = (dequantise_nvfp4(codes, scales, scale_2) - weight).abs()
    largest = weight.abs().view(rows, groups, 16).amax(-1)
    assert bool((scales.float() * scale_2 * 6 >= largest * (1 - 1e-6)).all())
    # Half the widest gap of the grid (4 to 6) is one step.
    assert bool((error <= step * (1 + 1e-5)).all())
    small = weight.abs() <= step * 2
    assert bool((error[small] <= step[small] * 0.25 * (1 + 1e-5)).all())


def test_the_clip_search_is_never_worse_and_often_better() -> None:
    weight = _weight(64, 512, 5)
    importance = torch.rand(512, generator=torch.Generator().manual_seed(1)) + 0.01

    def error(method: str) -> torch.Tensor:
        difference = dequantise_nvfp4(*quantise(weight, method, importance)) - weight
        return (difference.square() * importance).view(64, -1, 16).sum(-1)

    plain, searched = error("rtn"), error("clip")
    assert bool((searched <= plain * (1 + 1e-6)).all())
    assert float(searched.sum()) < 0.99 * float(plain.sum())


def test_bf16_weights_and_tiny_ones() -> None:
    weight = _weight(5, 48, 1).bfloat16()
    codes, scales, scale_2 = quantise(weight)
    assert codes.shape == (5, 24)
    assert scales.shape == (5, 3)
    assert codes.dtype == torch.uint8
    assert scales.dtype == torch.float8_e4m3fn
    zero = torch.zeros(2, 16)
    assert torch.equal(dequantise_nvfp4(*quantise(zero)), zero)
    tiny = torch.full((1, 16), 1e-44)
    assert bool(dequantise_nvfp4(*quantise(tiny, "clip")).isfinite().all())
    assert 0 < scale_2 < float("inf")


def test_nvfp4_refuses_what_it_cannot_hold() -> None:
    with pytest.raises(ValueError, match="method"):
        quantise(torch.ones(1, 16), "best")
    with pytest.raises(ValueError, match="K % 16"):
        quantise(torch.ones(1, 17))
    with pytest.raises(ValueError, match="not finite"):
        quantise(torch.full((1, 16), float("nan")))
    with pytest.raises(ValueError, match="act_ms"):
        quantise(torch.ones(1, 16), "clip", torch.ones(15))


@pytest.mark.parametrize(("rows", "columns"), [(128, 128), (130, 200), (1, 1), (300, 129)])
def test_fp8_errors_are_bounded(rows: int, columns: int) -> None:
    weight = _weight(rows, columns, 3)
    codes, scales = quantise_blocks(weight)
    assert scales.dtype == torch.bfloat16
    wide = dequantise_blocks(torch.full_like(codes, 1.0), scales)
    # e4m3 keeps 4 significant bits; a scale rounded down to bf16 may clip the largest by 2^-8.
    allowed = weight.abs() * (2.0**-4 + 2.0**-8) + wide * 2.0**-10
    assert bool(((dequantise_blocks(codes, scales) - weight).abs() <= allowed).all())
    codes, scale = quantise_rows(weight)
    allowed = weight.abs() * 0.11 + scale.unsqueeze(1) * 2.0**-10
    assert bool(((dequantise_rows(codes, scale) - weight).abs() <= allowed).all())


def test_row_scales_are_searched() -> None:
    weight = _weight(50, 256, 3)
    codes, scale = quantise_rows(weight)
    plain_scale = weight.abs().amax(1) / 448
    plain = (weight / plain_scale[:, None]).to(torch.float8_e4m3fn).float() * plain_scale[:, None]
    got = (dequantise_rows(codes, scale) - weight).square().sum(1)
    before = (plain - weight).square().sum(1)
    assert bool((got <= before * (1 + 1e-6)).all())
    assert float(got.sum()) < float(before.sum())
    ratio = scale / plain_scale
    nearest = (ratio[:, None] - torch.tensor([1.0, 0.95, 0.9])).abs().amin(1)
    assert float(nearest.max()) < 1e-6


def test_fp8_zero_rows_and_refusals() -> None:
    zero = torch.zeros(3, 5)
    assert torch.equal(dequantise_rows(*quantise_rows(zero)), zero)
    assert torch.equal(dequantise_blocks(*quantise_blocks(zero)), zero)
    for make in (quantise_rows, quantise_blocks):
        with pytest.raises(ValueError, match="not finite"):
            make(torch.full((2, 2), float("inf")))
        with pytest.raises(ValueError, match="matrix"):
            make(torch.ones(4))
