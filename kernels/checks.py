# SPDX-License-Identifier: MIT OR Apache-2.0
"""The result every kernel check reports, and the comparisons they share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

UNIT_FP32 = 2.0**-24


@dataclass(frozen=True)
class CheckResult:
    """One kernel compared with its reference.

    status is "pass" or "fail"; reason says what failed and where, empty on a pass. row_invariant
    is None for a check that does not compare row counts.
    """

    kernel: str
    implementation: str
    device: str
    status: str
    max_abs_err: float
    max_rel_err: float
    row_invariant: bool | None
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether the check passed."""
        return self.status == "pass"


def gamma(terms: int) -> float:
    """Bound of the relative error of a float32 sum of `terms` roundings: d*u / (1 - d*u)."""
    return terms * UNIT_FP32 / (1 - terms * UNIT_FP32)


def half_ulp_bf16(value: Tensor) -> Tensor:
    """Largest error of rounding `value` (float64) to bf16 once, subnormal results included."""
    _, exponent = torch.frexp(value.abs())
    return torch.ldexp(torch.ones_like(value), exponent.clamp(min=-125) - 9)


def poison(tensor: Tensor) -> Tensor:
    """Fill with NaN (floating) or the largest value (integer), so unwritten outputs show."""
    if tensor.is_floating_point():
        return tensor.fill_(float("nan"))
    return tensor.fill_(torch.iinfo(tensor.dtype).max)


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors of one dtype and shape hold the same bytes."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    as_bytes = [t.contiguous().view(-1).view(torch.uint8) for t in (left, right)]
    return bool(torch.equal(*as_bytes))


def compare(
    kernel: str,
    implementation: str,
    got: Tensor,
    exact: Tensor,
    bound: Tensor,
    *,
    row_invariant: bool | None = None,
    device: str = "cpu",
    what: str = "",
) -> CheckResult:
    """Compare `got` with `exact` (float64) under an elementwise absolute `bound`.

    A non-finite result where the exact one is finite fails, as does row_invariant False.
    """
    value = got.double()
    error = (value - exact).abs()
    finite = torch.isfinite(value)
    allowed = finite & (error <= bound)
    worst = float(error[finite].max()) if finite.any() else float("inf")
    relative = error / exact.abs().clamp(min=1e-30)
    worst_relative = float(relative[finite].max()) if finite.any() else float("inf")
    reason = ""
    if not bool(allowed.all()):
        index = tuple(int(i) for i in (~allowed).nonzero()[0])
        count = int((~allowed).sum())
        reason = (
            f"{what or kernel}: {count} of {allowed.numel()} outside the bound, first at {index}:"
            f" got {float(value[index]):.9g}, exact {float(exact[index]):.9g},"
            f" bound {float(bound[index]):.3g}"
        )
    elif row_invariant is False:
        reason = f"{what or kernel}: a row's bits depend on the batch or on the worker count"
    return CheckResult(
        kernel,
        implementation,
        device,
        "fail" if reason else "pass",
        worst,
        worst_relative,
        row_invariant,
        reason,
    )


def expect(kernel: str, implementation: str, holds: bool, reason: str) -> CheckResult:
    """A yes-or-no check: passes when `holds`, else fails with `reason`."""
    status = "pass" if holds else "fail"
    return CheckResult(
        kernel, implementation, "cpu", status, 0.0, 0.0, None, "" if holds else reason
    )
