# SPDX-License-Identifier: MIT OR Apache-2.0
"""GPTQ on the NVFP4 grid: its compensation is the least-squares one, and outputs come nearer for it."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from kernels.e2m1.reference import VALUES
from kernels.nvfp4_linear.gptq import inverse_factor, output_error, quantise_gptq
from kernels.nvfp4_linear.quantise import candidate_scales, nearest, quantise, tensor_scale
from kernels.nvfp4_linear.reference import dequantise_nvfp4


def _weight(rows: int, columns: int, seed: int = 0) -> Tensor:
    return 0.02 * torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def _correlated(columns: int, seed: int = 1) -> Tensor:
    """X^T X of inputs that a quarter as many causes explain but for a tenth."""
    random = torch.Generator().manual_seed(seed)
    causes = torch.randn(4 * columns, max(1, columns // 4), generator=random)
    x = causes @ torch.randn(causes.shape[1], columns, generator=random)
    x += 0.1 * x.std() * torch.randn(x.shape, generator=random)
    return x.T @ x


def _tiny(pair: Tensor) -> tuple[Tensor, Tensor]:
    """Weights [N, 16] in which two inputs count, 0.9 alike, and their H."""
    weight = torch.zeros(len(pair), 16)
    weight[:, :2] = pair
    hessian = torch.eye(16)
    hessian[0, 1] = hessian[1, 0] = 0.9
    return weight, hessian


@pytest.mark.parametrize("columns", [16, 128, 208])
@pytest.mark.parametrize("size", [1.0, 3.7e-30, 1e36])
def test_independent_inputs_give_the_clip_search_bit_for_bit(columns: int, size: float) -> None:
    weight = _weight(24, columns)
    weight[3] = 0
    codes, scales, scale_2 = quantise_gptq(weight, torch.eye(columns) * size)
    wanted, wanted_scales, wanted_2 = quantise(weight, "clip")
    assert torch.equal(codes, wanted)
    assert torch.equal(scales.view(torch.uint8), wanted_scales.view(torch.uint8))
    assert scale_2 == wanted_2


def test_every_code_rounds_what_least_squares_leaves_to_its_weight() -> None:
    """By the definition: each column anew, all later weights free, solved in float64."""
    weight, hessian = _weight(6, 160), _correlated(160)
    codes, scales, scale_2 = quantise_gptq(weight, hessian)
    values = dequantise_nvfp4(codes, scales, scale_2).double()
    wide = hessian.double()
    wide /= wide.diagonal().mean()
    wide.diagonal().add_(0.01)
    target = weight.double()
    for column in range(160):
        error = weight.double()[:, :column] - values[:, :column]
        later = torch.linalg.solve(wide[column:, column:], wide[column:, :column] @ error.T)
        target[:, column] += later[0]
    step = scales.float().repeat_interleave(16, 1) * scale_2
    rounded = target.float() - nearest(target.float(), step)[1]
    # Float32 may round differently where a target lies between two codes: that is no case here.
    assert torch.allclose(rounded, values.float(), rtol=1e-6, atol=0)
    # Many weights were moved, or this would show nothing.
    assert float((target - weight).abs().gt(0.1 * step).float().mean()) > 0.3


def test_a_group_takes_the_scale_with_the_least_error_after_compensation() -> None:
    weight, hessian = _weight(32, 16), _correlated(16)
    codes, scales, scale_2 = quantise_gptq(weight, hessian)
    damped = hessian / hessian.diagonal().mean()
    damped.diagonal().add_(0.01)
    factor = torch.linalg.cholesky(torch.linalg.inv(damped.double()), upper=True)
    losses = []
    for scale in candidate_scales(weight.abs().amax(1), scale_2):
        left, rest = [], weight.double()
        for column in range(16):
            error = nearest(rest[:, column].float(), scale.float() * scale_2)[1].double()
            left.append(error)
            rest = rest - error[:, None] * factor[column] / factor[column, column]
        losses.append((torch.stack(left, 1) / factor.diagonal()).square().sum(1))
    found = weight.double() - dequantise_nvfp4(codes, scales, scale_2).double()
    energy = ((found @ damped.double()) * found).sum(1)
    # The sum of e^2 is the error itself, so the least one is what the result has.
    assert torch.allclose(energy, torch.stack(losses).amin(0), rtol=1e-3)
    assert len(torch.stack(losses).argmin(0).unique()) > 2


def test_it_is_near_the_best_of_all_codes_on_two_inputs() -> None:
    weight, hessian = _tiny(_weight(40, 2))

    def energy(values: Tensor) -> Tensor:
        return ((weight - values) @ hessian * (weight - values)).sum(1)

    best = torch.full((len(weight),), torch.inf)
    grid = sorted({*VALUES, *(-value for value in VALUES)})
    scale_2 = tensor_scale(weight)
    for scale in candidate_scales(weight.abs().amax(1), scale_2):
        for pair in itertools.product(grid, repeat=2):
            values = torch.zeros_like(weight)
            values[:, :2] = torch.tensor(pair) * (scale.float() * scale_2)[:, None]
            best = torch.minimum(best, energy(values))
    made = energy(dequantise_nvfp4(*quantise_gptq(weight, hessian))).sum()
    clip = energy(dequantise_nvfp4(*quantise(weight, "clip"))).sum()
    assert float(best.sum()) <= float(made) < 2 * float(best.sum())
    assert float(made) < 0.9 * float(clip)


@pytest.mark.parametrize("columns", [64, 272])
def test_outputs_are_nearer_on_correlated_inputs(columns: int) -> None:
    weight, hessian = _weight(96, columns), _correlated(columns)
    rtn, clip, gptq = (
        output_error(weight, dequantise_nvfp4(*made), hessian)
        for made in (
            quantise(weight, "rtn"),
            quantise(weight, "clip", hessian.diagonal()),
            quantise_gptq(weight, hessian),
        )
    )
    assert gptq < 0.6 * clip < clip < rtn


def test_output_error_is_that_of_the_outputs() -> None:
    random = torch.Generator().manual_seed(2)
    x, weight = torch.randn(50, 32, generator=random), _weight(8, 32)
    values = dequantise_nvfp4(*quantise(weight))
    wanted = (x @ (weight - values).T).norm() / (x @ weight.T).norm()
    assert output_error(weight, values, x.T @ x) == pytest.approx(float(wanted), rel=1e-4)
    assert output_error(weight * 0, values, x.T @ x) == 0.0


def test_weights_pushed_beyond_the_largest_scale_are_clipped() -> None:
    weight = torch.zeros(1, 32)
    weight[0, 0] = weight[0, 16] = 6.0
    weight[0, 15] = 5.0  # a tie, to 4: one is left, and input 16 is the same as input 15
    hessian = torch.eye(32)
    hessian[15, 16] = hessian[16, 15] = 1.0
    made = quantise_gptq(weight, hessian)
    assert made[1].float().flatten().tolist() == [448.0, 448.0]
    values = dequantise_nvfp4(*made)
    assert torch.allclose(values[0, [15, 16]], torch.tensor([4.0, 6.0]))


def test_inputs_that_are_always_zero_are_rounded_as_they_are() -> None:
    weight, hessian = _weight(16, 48), _correlated(48)
    dead = torch.zeros(48, dtype=torch.bool)
    dead[5], dead[16:32] = True, True
    hessian[dead] = 0
    hessian[:, dead] = 0
    made, clip = dequantise_nvfp4(*quantise_gptq(weight, hessian)), quantise(weight, "clip")
    assert torch.equal(made[:, 16:32], dequantise_nvfp4(*clip)[:, 16:32])
    assert bool((made[:, 5] - weight[:, 5]).abs().amax() < 0.02)
    nothing = quantise_gptq(weight, torch.zeros(48, 48))
    assert torch.equal(dequantise_nvfp4(*nothing), dequantise_nvfp4(*clip))


def test_the_factor_is_that_of_the_damped_inverse() -> None:
    few = torch.randn(3, 40, generator=torch.Generator().manual_seed(3))
    hessian = few.T @ few  # of rank 3
    factor = inverse_factor(hessian)
    damped = hessian / hessian.diagonal().mean() + 0.01 * torch.eye(40)
    assert torch.equal(factor, factor.triu())
    assert torch.allclose(factor.T @ factor @ damped, torch.eye(40), atol=1e-3)


def test_the_damping_grows_until_there_is_a_factor() -> None:
    hessian = torch.eye(16)
    hessian[0, 1] = hessian[1, 0] = (
        1.05  # as sums that were rounded may have it: an eigenvalue of -0.05
    )
    factor = inverse_factor(hessian)
    damped = hessian + 0.11 * torch.eye(16)
    assert torch.allclose(factor.T @ factor @ damped, torch.eye(16), atol=1e-3)
    hessian[0, 1] = hessian[1, 0] = 1e6
    with pytest.raises(ValueError, match="no X"):
        inverse_factor(hessian)


def test_what_does_not_fit_is_refused_and_the_work_can_be_ended() -> None:
    weight = _weight(4, 32)
    for hessian, match in (
        (torch.eye(16), r"\[32, 32\]"),
        (torch.ones(32), r"\[K, K\]"),
        (torch.full((32, 32), torch.nan), "not finite"),
    ):
        with pytest.raises(ValueError, match=match):
            quantise_gptq(weight, hessian)

    def end() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        quantise_gptq(weight, torch.eye(32), end)
