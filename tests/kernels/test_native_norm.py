# SPDX-License-Identifier: MIT OR Apache-2.0
"""Native RMS norm and embedding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.build import NativeLibrary
from kernels.checks import same_bits
from kernels.embedding.check import check as check_embedding
from kernels.embedding.native import embed
from kernels.rms_norm.check import EPS, KINDS, check, random_rows, run_norm
from kernels.rms_norm.native import norm_scale, rms_norm
from kernels.rms_norm.reference import rms_norm as reference_norm
from kernels.tape import Pool, Tape


def test_checks_pass(library: NativeLibrary) -> None:
    results = check(library) + check_embedding(library)
    assert not [result.reason for result in results if not result.ok]


# The library does not change between examples.
@settings(
    max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    rows=st.integers(1, 32),
    width=st.integers(1, 40).map(lambda n: 16 * n),
    kind=st.sampled_from(KINDS),
    add=st.booleans(),
    threads=st.integers(1, 3),
)
def test_a_row_alone_has_the_bits_of_its_batch(
    fastest: NativeLibrary, rows: int, width: int, kind: str, add: bool, threads: int
) -> None:
    x = random_rows(rows, width, 1, kind)
    residual = random_rows(rows, width, 2, kind) if add else None
    weight = random_rows(1, width, 3, "gaussian")[0]
    out, total = run_norm(fastest, x, weight, residual, threads=threads)
    for row in {0, rows // 2, rows - 1}:
        part = slice(row, row + 1)
        alone, sum_alone = run_norm(
            fastest, x[part], weight, None if residual is None else residual[part]
        )
        assert same_bits(alone, out[part])
        assert (sum_alone is None) == (total is None)
        if sum_alone is not None and total is not None:
            assert same_bits(sum_alone, total[part])


@pytest.mark.parametrize("zero_centred", [True, False])
def test_it_agrees_with_the_reference(library: NativeLibrary, zero_centred: bool) -> None:
    x, weight = random_rows(9, 320, 1, "outliers"), random_rows(1, 320, 2, "gaussian")[0]
    out, _ = run_norm(library, x, weight, zero_centred=zero_centred)
    wanted = reference_norm(x, weight, EPS, zero_centred=zero_centred)
    # One bf16 ulp: both round once, from sums in another order.
    torch.testing.assert_close(out, wanted, rtol=2**-7, atol=0)


def test_the_sum_may_replace_the_residual(fastest: NativeLibrary) -> None:
    x, stream = random_rows(5, 64, 1, "gaussian"), random_rows(5, 64, 2, "gaussian")
    wanted = stream + x
    out = torch.empty_like(x)
    with Pool(fastest, 2) as pool:
        tape = Tape(pool)
        rms_norm(
            tape,
            x=x,
            scale=norm_scale(torch.zeros(64)),
            out=out,
            eps=EPS,
            rows=5,
            residual=stream,
            total=stream,
        )
        tape.run()
    assert same_bits(stream, wanted)


def test_operands_are_refused(fastest: NativeLibrary) -> None:
    x = torch.zeros(4, 64, dtype=torch.bfloat16)
    scale = norm_scale(torch.zeros(64))
    with Pool(fastest, 1) as pool:
        tape = Tape(pool)
        narrow = torch.zeros(4, 40, dtype=torch.bfloat16)
        with pytest.raises(ValueError, match="multiple of 16"):
            rms_norm(tape, x=narrow, scale=scale, out=narrow, eps=EPS, rows=4)
        with pytest.raises(ValueError, match="come together"):
            rms_norm(tape, x=x, scale=scale, out=x, eps=EPS, rows=4, residual=x)
        with pytest.raises(ValueError, match="scale must have shape"):
            rms_norm(tape, x=x, scale=scale[:32], out=x, eps=EPS, rows=4)
        with pytest.raises(ValueError, match="x must have shape"):
            rms_norm(tape, x=x, scale=scale, out=x, eps=EPS, rows=5)
        with pytest.raises(ValueError, match="unit column stride"):
            rms_norm(tape, x=x, scale=scale, out=x.t().contiguous().t(), eps=EPS, rows=4)
        with pytest.raises(ValueError, match="ids must be"):
            embed(tape, table=x, ids=torch.zeros(4), out=x, rows=4)
        with pytest.raises(ValueError, match="at least 4 values"):
            embed(tape, table=x, ids=torch.zeros(3, dtype=torch.int32), out=x, rows=4)
