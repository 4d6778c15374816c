# SPDX-License-Identifier: MIT OR Apache-2.0
"""Makes NVFP4 weights whose rounding errors cancel on given inputs: GPTQ on the NVFP4 grid.

Source: Frantar, Ashkboos, Hoefler and Alistarh, "GPTQ: Accurate Post-Training Quantization for Generative
Pre-trained Transformers", 2023, with the scale of a group of 16 inputs chosen as its turn comes.

For inputs X [T, K] and H = X^T X, the squared error of a linear's output is

    |X (W - Q)^T|^2 = tr((W - Q) H (W - Q)^T).

Columns are rounded from the first to the last. Where the first j are fixed, the later weights that make this
least follow from U, the upper triangular factor with H^-1 = U^T U:

    e = (w[j] - q[j]) / U[j, j];    w[k] -= e * U[j, k] for every k > j,

and the sum of e^2 over all columns is the error itself.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.e2m1.reference import pack
from kernels.nvfp4_linear.quantise import GROUP, candidate_scales, nearest, tensor_scale

_DAMPING = 0.01  # of the mean of H's diagonal
_BLOCK = 128  # columns rounded before the ones behind them are corrected, in one product


def quantise_gptq(
    weight: Tensor, hessian: Tensor, on_block: Callable[[], None] | None = None
) -> tuple[Tensor, Tensor, float]:
    """Quantise a weight [N, K] to NVFP4 so that the error of its outputs is small.

    scale_2 is that of `quantise`, from the weights as they are. As a group of 16 columns comes up, it is
    rounded under each of the five scales that the clip search tries for its corrected weights; every row
    keeps the scale with the least sum of e^2. With H a multiple of the identity all is as `quantise(weight,
    "clip")` has it, bit for bit.

    Beside its arguments it takes about 3 K^2 + N K float32 numbers: 4 GB for [5120, 17408].

    Args:
        weight: floating [N, K], finite, K a multiple of 16.
        hessian: float32 [K, K], X^T X; only its ratios count. An input that is always zero is rounded as it is.
        on_block: called before every 128 columns; what it raises ends the work.

    Returns:
        codes uint8 [N, K/2] (even input in the low nibble), scales float8_e4m3fn [N, K/16], scale_2.

    Raises:
        ValueError: shapes that do not fit, or a number that is not finite.
    """
    scale_2 = tensor_scale(weight)
    rows, columns = weight.shape
    factor = inverse_factor(hessian)
    if factor.shape[0] != columns:
        raise ValueError(f"hessian must be [{columns}, {columns}], got {list(hessian.shape)}")
    # sum e^2 is sum importance * (w - q)^2; divided by its largest, so that equal ones are 1 exactly.
    importance = factor.diagonal().square().reciprocal()
    importance /= importance.amax()
    codes = torch.empty(rows, columns // 2, dtype=torch.uint8)
    scales = torch.empty(rows, columns // GROUP, dtype=torch.float8_e4m3fn)
    work = weight.float().T.clone(
        memory_format=torch.contiguous_format
    )  # [K, N]: a column lies together
    for begin in range(0, columns, _BLOCK):
        if on_block is not None:
            on_block()
        end = min(begin + _BLOCK, columns)
        errors = torch.empty(end - begin, rows)
        for first in range(begin, end, GROUP):
            group = slice(first, first + GROUP)
            within = slice(first - begin, first - begin + GROUP)
            chosen, scale, left = _round_group(
                work[group], factor[group, group], importance[group], scale_2
            )
            codes[:, first // 2 : (first + GROUP) // 2] = pack(chosen)
            scales[:, first // GROUP] = scale
            errors[within] = left.T / factor.diagonal()[group, None]
            work[first + GROUP : end] -= factor[group, first + GROUP : end].T @ errors[within]
        work[end:] -= factor[begin:end, end:].T @ errors
    return codes, scales, scale_2


def inverse_factor(hessian: Tensor) -> Tensor:
    """U, float32 [K, K], upper triangular, with (H / m + damping)^-1 = U^T U, m the mean of H's diagonal.

    The damping is 0.01 on the diagonal, ten times as much until the factorisation succeeds. Of an H of zeros
    U is the identity.

    Raises:
        ValueError: H is not square, has no factor as an X^T X has, or holds a number that is not finite.
    """
    if hessian.dim() != 2 or hessian.shape[0] != hessian.shape[1]:
        raise ValueError(f"hessian must be [K, K], got {list(hessian.shape)}")
    if not bool(torch.stack(hessian.aminmax()).isfinite().all()):
        raise ValueError("hessian holds values that are not finite")
    mean = float(hessian.diagonal().double().mean())
    if mean == 0:
        return torch.eye(len(hessian))
    # With its order reversed, H = L L^T has the factor wanted in L^-1: no inverse of H is made.
    damped = hessian.float().flip(0, 1) / mean
    damping = _DAMPING
    while True:
        damped.diagonal().add_(damping)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not failed:
            break
        damping *= 10
        if damping > 100 * len(damped):  # the largest eigenvalue of an X^T X is K at most
            raise ValueError("hessian is no X^T X")
    # The inverse takes the memory of what it was made from.
    damped.zero_().fill_diagonal_(1.0)
    inverse = torch.linalg.solve_triangular(lower, damped, upper=False, out=damped)
    del lower
    return inverse.flip(0, 1)


def output_error(weight: Tensor, values: Tensor, hessian: Tensor) -> float:
    """sqrt(tr(D H D^T) / tr(W H W^T)) with D = W - values: the RMS error of the outputs X W^T by their RMS.

    Args:
        weight, values: float32 [N, K], before and after.
        hessian: float32 [K, K], X^T X.

    Returns:
        0.0 where every output is zero.
    """
    before, error = (_energy(each, hessian) for each in (weight, weight - values))
    return (error / before) ** 0.5 if before > 0 else 0.0


def _energy(matrix: Tensor, hessian: Tensor) -> float:
    """tr(M H M^T), at least 0."""
    return max(0.0, float(((matrix @ hessian) * matrix).sum(dtype=torch.float64)))


def _round_group(
    columns: Tensor, factor: Tensor, importance: Tensor, scale_2: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [N, 16], e4m3 scales [N] and what is left, w - q [N, 16], of corrected columns [16, N]."""
    scales = torch.stack(list(candidate_scales(columns.abs().amax(0), scale_2)))
    step = scales.float() * scale_2  # [candidates, N]
    work = columns[:, None].repeat(1, len(scales), 1)
    codes = torch.empty(work.shape, dtype=torch.uint8)
    left = torch.empty_like(work)
    for index in range(GROUP):
        codes[index], left[index] = nearest(work[index], step)
        error = left[index] / factor[index, index]
        work[index + 1 :] -= factor[index, index + 1 :, None, None] * error
    left = left.permute(1, 2, 0).contiguous()  # [candidates, N, 16]
    best = (left.square() * importance).sum(-1).argmin(0)  # of equals the first
    rows = torch.arange(len(best))
    raw = scales.view(torch.uint8)[best, rows]
    return codes.permute(1, 2, 0)[best, rows], raw.view(torch.float8_e4m3fn), left[best, rows]
