# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks of the native block attention."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.block_attention.native import block_attention
from kernels.block_attention.reference import block_attention as readable
from kernels.build import NativeLibrary
from kernels.checks import CheckResult, compare, expect, gamma, half_ulp_bf16, poison, same_bits
from kernels.kv_cache.native import KvCache
from kernels.tape import Pool, Tape


def run_attention(
    library: NativeLibrary,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    first: int,
    window: int,
    threads: int = 1,
) -> Tensor:
    """Native result [R, Hq, D] over keys and values [L, Hkv, D]; positions before `first` are NaN."""
    rows, heads, dim = q.shape
    length = k.shape[0]
    cache = KvCache.zeros(length + 40, k.shape[1], dim)
    poison(cache.keys)
    poison(cache.values)
    cache.write(first, k[first:], v[first:])
    out = poison(torch.empty(rows, heads * dim, dtype=torch.bfloat16))
    with Pool(library, threads) as pool:
        tape = Tape(pool)
        block_attention(
            tape,
            q=q,
            cache=cache,
            start=torch.tensor([length - rows], dtype=torch.int32),
            first=torch.tensor([first], dtype=torch.int32),
            out=out,
            scale=dim**-0.5,
            window=window,
            rows=rows,
        )
        tape.run()
    return out.view(rows, heads, dim)


def exact_attention(
    q: Tensor, k: Tensor, v: Tensor, *, first: int, window: int
) -> tuple[Tensor, Tensor]:
    """float64 [R, Hq, D] and a bound of the native arithmetic."""
    rows, heads, dim = q.shape
    group = heads // k.shape[1]
    keys, values = (x[first:].double().repeat_interleave(group, 1) for x in (k, v))
    length = keys.shape[0]
    scores = torch.einsum("rhd,lhd->hrl", q.double(), keys) * dim**-0.5
    size = torch.einsum("rhd,lhd->hrl", q.double().abs(), keys.abs()) * dim**-0.5
    back = torch.arange(length - rows, length)[:, None] - torch.arange(length)
    weights = scores.masked_fill(back >= window, float("-inf")).softmax(-1)
    y = torch.einsum("hrl,lhd->rhd", weights, values)
    mean = torch.einsum("hrl,lhd->rhd", weights, values.abs())
    # An error e of the scores changes each weight by a factor within e^(2e).
    error = gamma(dim) * size.amax((0, 1, 2))
    unit = 2.5 * error + gamma(length + 40)
    return y, unit * mean + half_ulp_bf16(y.abs() + unit * mean) + 1e-45


def check(library: NativeLibrary, *, seed: int = 0) -> list[CheckResult]:
    """Every check of the attention on one instruction-set level."""
    random = torch.Generator().manual_seed(seed)
    results = []
    for heads, key_heads, dim, rows, length, first, window in (
        (2, 1, 16, 1, 1, 0, 2048),
        (4, 2, 64, 8, 8, 0, 2048),
        (4, 2, 64, 16, 75, 0, 2048),
        (4, 2, 64, 16, 203, 37, 2048),
        (8, 2, 80, 8, 130, 0, 50),
        (6, 2, 128, 32, 160, 64, 33),
    ):
        q = torch.randn(rows, heads, dim, generator=random).bfloat16()
        k, v = (torch.randn(length, key_heads, dim, generator=random).bfloat16() for _ in range(2))
        out = run_attention(library, q, k, v, first=first, window=window)
        exact, bound = exact_attention(q, k, v, first=first, window=window)
        same = same_bits(
            run_attention(library, q, k, v, first=first, window=window, threads=2), out
        )
        what = f"{rows} rows of {length} positions from {first}, window {window}"
        results.append(
            compare(
                "block_attention", library.isa, out, exact, bound, row_invariant=same, what=what
            )
        )
        twin = readable(q, k[first:], v[first:], window=window, scale=dim**-0.5)
        agrees = bool(((twin.double() - exact).abs() <= bound * 2).all())
        results.append(expect("block_attention", "reference", agrees, f"the twin differs: {what}"))
        for mutated, name in ((window - 1, "a narrower window"), (window + 1, "a wider window")):
            if window < length - first:
                exact, bound = exact_attention(q, k, v, first=first, window=mutated)
                caught = not compare("block_attention", library.isa, out, exact, bound).ok
                results.append(
                    expect("block_attention", library.isa, caught, f"not caught: {name}, {what}")
                )
    return results
