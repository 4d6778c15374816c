# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks of the native argmax, top-k and logarithm of the sum of exponentials."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.build import NativeLibrary
from kernels.checks import CheckResult, compare, expect, gamma, poison, same_bits
from kernels.head import reference
from kernels.head.native import argmax, log_sum_exp, top_k
from kernels.tape import Pool, Tape


def run_argmax(library: NativeLibrary, logits: Tensor, *, threads: int = 1) -> Tensor:
    """int32 [rows], through a buffer with foreign columns behind the logits."""
    rows, vocabulary = logits.shape
    wide = torch.full((rows, vocabulary + 16), float("inf"))
    wide[:, :vocabulary] = logits
    ids = poison(torch.empty(rows, dtype=torch.int32))
    values = poison(torch.empty(rows))
    with Pool(library, threads) as pool:
        tape = Tape(pool)
        argmax(tape, logits=wide[:, :vocabulary], ids=ids, values=values, rows=rows)
        tape.run()
    found = ids.clamp(min=0).long()[:, None]
    kept = torch.where(ids < 0, float("nan"), logits.gather(1, found)[:, 0])
    if not torch.equal(values.nan_to_num(7.0), kept.nan_to_num(7.0)):
        raise AssertionError("the returned value is not the logit of the returned index")
    return ids


def run_top_k(
    library: NativeLibrary, logits: Tensor, k: int, *, threads: int = 1
) -> tuple[Tensor, Tensor]:
    """(values [rows, k], int32 ids [rows, k])."""
    rows = logits.shape[0]
    ids = poison(torch.empty(rows, k, dtype=torch.int32))
    values = poison(torch.empty(rows, k))
    with Pool(library, threads) as pool:
        tape = Tape(pool)
        top_k(tape, logits=logits, ids=ids, values=values, rows=rows)
        tape.run()
    return values, ids


def run_log_sum_exp(library: NativeLibrary, logits: Tensor, *, threads: int = 1) -> Tensor:
    """float32 [rows], through a buffer with foreign columns behind the logits."""
    rows, vocabulary = logits.shape
    wide = torch.full((rows, vocabulary + 16), float("inf"))
    wide[:, :vocabulary] = logits
    sums = poison(torch.empty(rows))
    with Pool(library, threads) as pool:
        tape = Tape(pool)
        log_sum_exp(tape, logits=wide[:, :vocabulary], sums=sums, rows=rows)
        tape.run()
    return sums


def random_logits(rows: int, vocabulary: int, seed: int, kind: str) -> Tensor:
    """float32 logits: gaussian, ties (few distinct values), equal, infinite or rising."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, vocabulary, generator=generator)
    if kind == "ties":
        x = torch.randint(-2, 3, (rows, vocabulary), generator=generator).float()
    elif kind == "equal":
        x = torch.full_like(x, -3.5)
    elif kind == "infinite":
        x = torch.where(x > 1, float("inf"), torch.where(x < -1, float("-inf"), x))
    elif kind == "rising":
        x = x.sort(-1).values
    return x


def check(library: NativeLibrary, *, seed: int = 0) -> list[CheckResult]:
    """Equal to the reference on ties, infinities and odd widths; NaN marked wherever it stands."""
    results = []
    for vocabulary in (1, 7, 16, 33, 4096, 5003):
        for kind in ("gaussian", "ties", "equal", "infinite", "rising"):
            logits = random_logits(5, vocabulary, seed, kind)
            what = f"{vocabulary} {kind}"
            ids = run_argmax(library, logits)
            same = torch.equal(ids.long(), reference.argmax_lowest(logits))
            same &= same_bits(run_argmax(library, logits, threads=2), ids)
            same &= same_bits(run_argmax(library, logits[3:4]), ids[3:4])
            results.append(expect("argmax", library.isa, same, f"{what}: another index"))
            for k in sorted({1, min(8, vocabulary), min(256, vocabulary)}):
                values, ids = run_top_k(library, logits, k)
                want_values, want_ids = reference.top_k(logits, k)
                same = torch.equal(ids.long(), want_ids) and same_bits(values, want_values)
                reason = f"{what}: other top {k}"
                results.append(expect("top_k", library.isa, same, reason))
        results.append(_check_nan(library, vocabulary, seed))
        results += _check_sums(library, vocabulary, seed)
    return results


def _check_sums(library: NativeLibrary, vocabulary: int, seed: int) -> list[CheckResult]:
    """Within the bound of a lane-wise fp32 sum; a row alone and other threads have the same bits."""
    results = []
    for kind in ("gaussian", "ties", "equal", "rising", "wide"):
        if kind == "wide":
            logits = 60 * random_logits(5, vocabulary, seed, "gaussian")
        else:
            logits = random_logits(5, vocabulary, seed, kind)
        sums = run_log_sum_exp(library, logits)
        exact = logits.double().logsumexp(-1)
        # A relative error of the sum is an absolute one of its logarithm; x - max and the last
        # two steps round once each, relative to their own sizes.
        spread = (logits.double() - logits.double().amax(-1, keepdim=True)).abs().clamp(max=105)
        units = gamma(vocabulary // 16 + 24) + 2.0**-24 * spread.amax(-1)
        bound = units + 2.0**-23 * (exact.abs() + logits.double().amax(-1).abs() + 20)
        what = f"{vocabulary} {kind}"
        results.append(compare("log_sum_exp", library.isa, sums, exact, bound, what=what))
        same = same_bits(run_log_sum_exp(library, logits, threads=2), sums)
        same &= same_bits(run_log_sum_exp(library, logits[3:4]), sums[3:4])
        results.append(expect("log_sum_exp", library.isa, same, f"{what}: other bits"))
    return results


def _check_nan(library: NativeLibrary, vocabulary: int, seed: int) -> CheckResult:
    marked = True
    for at in {0, vocabulary // 2, vocabulary - 1}:
        logits = random_logits(3, vocabulary, seed, "gaussian")
        logits[1, at] = float("nan")
        k = min(4, vocabulary)
        sums = run_log_sum_exp(library, logits)
        marked &= bool(sums[1].isnan()) and bool(sums[[0, 2]].isfinite().all())
        ids = run_argmax(library, logits)
        values, indices = run_top_k(library, logits, k)
        marked &= ids[1].item() == -1 and bool((ids[[0, 2]] >= 0).all())
        marked &= bool((indices[1] == -1).all()) and bool(values[1].isnan().all())
        marked &= bool((indices[[0, 2]] >= 0).all())
    reason = f"{vocabulary}: a NaN was not marked, or marked in another row"
    return expect("argmax", library.isa, marked, reason)
