# SPDX-License-Identifier: MIT OR Apache-2.0
"""Native elementwise steps and statistics against the reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.build import NativeLibrary
from kernels.checks import same_bits
from kernels.elementwise import reference
from kernels.elementwise.check import check, run_binary, run_statistics
from kernels.elementwise.native import add, statistics
from kernels.tape import Pool, Tape


def test_check_passes(library: NativeLibrary) -> None:
    assert not [result.reason for result in check(library) if not result.ok]


# The library does not change between examples.
@settings(
    max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    rows=st.integers(1, 32),
    width=st.integers(1, 300),
    threads=st.integers(1, 3),
    name=st.sampled_from(["silu_mul", "output_gate", "add"]),
)
def test_a_row_alone_has_the_bits_of_its_batch(
    fastest: NativeLibrary, rows: int, width: int, threads: int, name: str
) -> None:
    generator = torch.Generator().manual_seed(width)
    x = (10 * torch.randn(rows, width, generator=generator)).bfloat16()
    y = torch.randn(rows, width, generator=generator).bfloat16()
    out = run_binary(fastest, name, x, y, threads=threads)
    for row in {0, rows - 1}:
        part = slice(row, row + 1)
        assert same_bits(run_binary(fastest, name, x[part], y[part]), out[part])


@pytest.mark.parametrize("name", ["silu_mul", "output_gate"])
def test_it_agrees_with_the_reference(library: NativeLibrary, name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    x = (4 * torch.randn(4, 500, generator=generator)).bfloat16()
    y = torch.randn(4, 500, generator=generator).bfloat16()
    wanted = getattr(reference, name)(x, y)
    # An inner rounding may fall the other way: one ulp there, one at the end.
    torch.testing.assert_close(run_binary(library, name, x, y), wanted, rtol=2**-6, atol=0)


def test_infinities_keep_their_meaning(library: NativeLibrary) -> None:
    x = torch.tensor([[float("inf"), float("nan"), 1.0]]).bfloat16()
    y = torch.tensor([[2.0, 2.0, float("-inf")]]).bfloat16()
    assert run_binary(library, "add", x, y).isfinite().sum() == 0
    counts = run_statistics(library, x)
    assert counts.tolist() == [[1.0, 1.0, 2.0]]


def test_operands_are_refused(fastest: NativeLibrary) -> None:
    x = torch.zeros(4, 50, dtype=torch.bfloat16)
    with Pool(fastest, 1) as pool:
        tape = Tape(pool)
        with pytest.raises(ValueError, match="second operand must have shape"):
            add(tape, x=x, y=x[:, :49], out=x, rows=4)
        with pytest.raises(ValueError, match=r"out must be torch\.bfloat16"):
            add(tape, x=x, y=x, out=x.float(), rows=4)
        with pytest.raises(ValueError, match="out must have shape"):
            statistics(tape, x=x, out=torch.zeros(4, 2), rows=4)
