# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks of the argmax in Triton: ties, NaN, infinities, every row as if alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from kernels.checks import CheckResult
from kernels.head.reference import argmax_lowest
from kernels.head.triton import PART, argmax, argmax_work
from kernels.triton_checks import Bench, batched_like_alone

if TYPE_CHECKING:
    from kernels.cuda_build import CudaLibrary

VOCABULARIES = (16, PART, 2 * PART + 32, 248320)


def check(
    library: CudaLibrary, *, seed: int = 0, vocabularies: tuple[int, ...] = VOCABULARIES
) -> Iterator[CheckResult]:
    """Every vocabulary, against the twin."""
    for vocabulary in vocabularies:
        bench = Bench("argmax", library, seed)
        for dtype in (torch.float32, torch.bfloat16):
            logits = bench.random(6, vocabulary, dtype=dtype)
            high = logits.float().max() + 1
            logits[0, [vocabulary - 1, vocabulary // 2, 1]] = high.to(dtype)  # a tie
            logits[1, 0] = logits[1, vocabulary - 1] = high.to(dtype)
            logits[2] = float("-inf")
            logits[3, vocabulary - 2] = float("inf")
            ids, values = bench.empty(6, dtype=torch.int32), bench.empty(6, dtype=torch.float32)
            work = argmax_work(6, vocabulary, bench.device)
            argmax(logits, ids, values, work, rows=6)
            label = f"{vocabulary} tokens, {dtype}"
            wanted = argmax_lowest(logits)
            yield bench.holds(f"{label}: another token", bool((ids == wanted).all()))
            yield bench.holds(
                f"{label}: another value", torch.equal(values, logits.float().amax(-1))
            )
            yield _alone(bench, label, vocabulary, dtype)
            logits[4, vocabulary // 3] = float("nan")
            argmax(logits, ids, values, work, rows=6)
            rest = [0, 1, 2, 3, 5]
            yield bench.holds(
                f"{label}: NaN",
                int(ids[4]) == -1 and bool(values[4].isnan()) and bool((ids == wanted)[rest].all()),
            )


def _alone(bench: Bench, label: str, vocabulary: int, dtype: torch.dtype) -> CheckResult:
    logits = bench.random(32, vocabulary, dtype=dtype, salt=1)

    def run(rows: list[int]) -> torch.Tensor:
        ids, values = (bench.empty(len(rows), dtype=kind) for kind in (torch.int32, torch.float32))
        work = argmax_work(len(rows), vocabulary, bench.device)
        argmax(logits[rows], ids, values, work, rows=len(rows))
        return torch.stack((ids, values.view(torch.int32)), 1)

    return batched_like_alone(bench, label, run)
