# SPDX-License-Identifier: MIT OR Apache-2.0
"""Native attention and convolution of a draft block against their twins."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.block_attention.check import check as check_attention
from kernels.block_attention.check import run_attention
from kernels.block_attention.native import block_attention
from kernels.block_attention.reference import block_attention as readable_attention
from kernels.block_conv.check import check as check_conv
from kernels.block_conv.check import run_conv
from kernels.block_conv.native import block_conv
from kernels.block_conv.reference import block_conv as readable_conv
from kernels.build import NativeLibrary
from kernels.kv_cache.native import KvCache
from kernels.tape import Pool, Tape

MANY = settings(
    max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


def test_checks_pass(library: NativeLibrary) -> None:
    results = check_attention(library) + check_conv(library)
    assert not [result.reason for result in results if not result.ok]


@MANY
@given(
    rows=st.integers(1, 32),
    context=st.integers(0, 90),
    first=st.integers(0, 40),
    window=st.integers(1, 120),
    heads=st.sampled_from([(1, 1), (4, 2), (6, 3)]),
    dim=st.sampled_from([16, 48, 64, 80]),
    threads=st.integers(1, 3),
)
def test_a_block_agrees_with_the_twin(
    fastest: NativeLibrary,
    rows: int,
    context: int,
    first: int,
    window: int,
    heads: tuple[int, int],
    dim: int,
    threads: int,
) -> None:
    random = torch.Generator().manual_seed(rows * 1000 + context)
    length, first = context + rows, min(first, context)
    q = torch.randn(rows, heads[0], dim, generator=random).bfloat16()
    k, v = (torch.randn(length, heads[1], dim, generator=random).bfloat16() for _ in range(2))
    out = run_attention(fastest, q, k, v, first=first, window=window, threads=threads)
    wanted = readable_attention(q, k[first:], v[first:], window=window, scale=dim**-0.5)
    torch.testing.assert_close(out, wanted, rtol=2**-6, atol=2**-6)


def test_a_block_sees_rows_behind_it(fastest: NativeLibrary) -> None:
    """The last row's key reaches the first row's result, unlike in causal attention."""
    random = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(8, 2, 16, generator=random).bfloat16() for _ in range(3))
    before = run_attention(fastest, q, k, v, first=0, window=2048)
    v[7] += 4.0
    after = run_attention(fastest, q, k, v, first=0, window=2048)
    assert (before[0] != after[0]).any()


@pytest.mark.parametrize(("start", "first"), [(60, 0), (-1, 0), (5, 6), (5, -1)])
def test_rows_that_the_cache_does_not_hold_become_nan(
    fastest: NativeLibrary, start: int, first: int
) -> None:
    cache = KvCache.zeros(64, 1, 16)
    out = torch.zeros(8, 16, dtype=torch.bfloat16)
    with Pool(fastest, 1) as pool:
        tape = Tape(pool)
        block_attention(
            tape,
            q=torch.ones(8, 1, 16, dtype=torch.bfloat16),
            cache=cache,
            start=torch.tensor([start], dtype=torch.int32),
            first=torch.tensor([first], dtype=torch.int32),
            out=out,
            scale=0.25,
            window=2048,
            rows=8,
        )
        tape.run()
    assert out.isnan().all()


@MANY
@given(
    rows=st.integers(1, 32),
    groups=st.sampled_from([1, 2, 4, 12]),
    size=st.sampled_from([4, 16, 32]),
    threads=st.integers(1, 3),
)
def test_a_convolution_agrees_with_the_twin(
    fastest: NativeLibrary, rows: int, groups: int, size: int, threads: int
) -> None:
    width = groups * size
    if width % 16:
        return
    random = torch.Generator().manual_seed(rows * 100 + width)
    x = torch.randn(rows, width, generator=random).bfloat16()
    base = torch.randn(2, width, generator=random)
    dynamic = torch.randn(rows, 2, groups, generator=random).bfloat16()
    out = run_conv(fastest, x, base, dynamic, threads=threads)
    torch.testing.assert_close(out, readable_conv(x, base, dynamic), rtol=2**-7, atol=2**-7)


def test_operands_that_do_not_fit_are_refused(fastest: NativeLibrary) -> None:
    bf16 = torch.bfloat16
    one = torch.zeros(1, dtype=torch.int32)
    with Pool(fastest, 1) as pool:
        tape = Tape(pool)

        def attention(**changes: object) -> None:
            operands = {
                "q": torch.zeros(4, 4, 16, dtype=bf16),
                "cache": KvCache.zeros(32, 2, 16),
                "start": one,
                "first": one,
                "out": torch.zeros(4, 64, dtype=bf16),
                "scale": 1.0,
                "window": 8,
                "rows": 4,
            }
            block_attention(tape, **{**operands, **changes})

        for changes, says in (
            ({"rows": 0}, "rows must lie"),
            ({"rows": 5}, "q must hold"),
            ({"window": 0}, "window must be positive"),
            ({"cache": KvCache.zeros(32, 3, 16)}, "do not divide"),
            ({"out": torch.zeros(4, 32, dtype=bf16)}, "out must have shape"),
            ({"start": one.long()}, "start must be"),
        ):
            with pytest.raises(ValueError, match=says):
                attention(**changes)

        def conv(**changes: torch.Tensor) -> None:
            operands = {
                "x": torch.zeros(4, 32, dtype=bf16),
                "base": torch.zeros(2, 32),
                "dynamic": torch.zeros(4, 4, dtype=bf16),
                "out": torch.zeros(4, 32, dtype=bf16),
            }
            block_conv(tape, rows=4, **{**operands, **changes})

        same = torch.zeros(4, 32, dtype=bf16)
        for changes, says in (
            ({"dynamic": torch.zeros(4, 6, dtype=bf16)}, "do not fit"),
            ({"base": torch.zeros(3, 32)}, "base must have shape"),
            ({"x": same, "out": same}, "another buffer"),
            ({"x": torch.zeros(3, 32, dtype=bf16)}, "x must have shape"),
        ):
            with pytest.raises(ValueError, match=says):
                conv(**changes)
