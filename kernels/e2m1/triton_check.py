# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks of the E2M1 conversion in Triton: every tie and its neighbours, special values, tails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from kernels.checks import CheckResult
from kernels.e2m1 import reference
from kernels.e2m1.check import nearest_code, test_values
from kernels.e2m1.triton import encode
from kernels.triton_checks import Bench

if TYPE_CHECKING:
    from kernels.cuda_build import CudaLibrary

COUNTS = (2, 14, 1022, 1024, 1026)


def check(library: CudaLibrary, *, seed: int = 0) -> Iterator[CheckResult]:
    """Codes against the nearest value by distance in float64, which knows no thresholds."""
    bench = Bench("e2m1", library, seed)
    values = test_values(seed)
    wanted = nearest_code(values)
    for count in (*COUNTS, values.numel()):
        out = bench.empty(count // 2 + 16, dtype=torch.uint8)
        encode(values[:count].to(bench.device), out[: count // 2])
        codes = reference.unpack(out[: count // 2].cpu())
        same = bool(torch.equal(codes, wanted[:count]))
        yield bench.holds(f"{count} values: a code is not the nearest", same)
        untouched = bool((out[count // 2 :] == 255).all())
        yield bench.holds(f"{count} values: wrote behind the codes", untouched)
    special = torch.tensor([float("nan"), -float("nan"), float("inf"), -float("inf"), -0.0, 0.0])
    out = bench.empty(3, dtype=torch.uint8)
    encode(special.to(bench.device), out)
    codes = reference.unpack(out.cpu())
    yield bench.holds("infinities and zeros", codes[2:].tolist() == [7, 15, 8, 0])
    yield bench.holds("NaN saturates", (codes[:2] & 7).tolist() == [7, 7])
    # Rounded half away from zero, these would be 1, 3, 5 and 7.
    ties = torch.tensor([0.25, 1.25, 2.5, 5.0])
    encode(ties.to(bench.device), out[:2])
    yield bench.holds("ties go up", reference.unpack(out[:2].cpu()).tolist() == [0, 2, 4, 6])
