# SPDX-License-Identifier: MIT OR Apache-2.0
"""Native argmax and top-k against the reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.build import NativeLibrary
from kernels.checks import same_bits
from kernels.head import reference
from kernels.head.check import check, random_logits, run_argmax, run_top_k
from kernels.head.native import argmax, top_k
from kernels.tape import Pool, Tape


def test_check_passes(library: NativeLibrary) -> None:
    assert not [result.reason for result in check(library) if not result.ok]


# The library does not change between examples.
@settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    rows=st.integers(1, 32),
    vocabulary=st.integers(1, 700),
    kind=st.sampled_from(["gaussian", "ties", "equal", "infinite", "rising"]),
    k=st.integers(1, 256),
    threads=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_choices_equal_the_reference(
    fastest: NativeLibrary,
    rows: int,
    vocabulary: int,
    kind: str,
    k: int,
    threads: int,
    seed: int,
) -> None:
    logits = random_logits(rows, vocabulary, seed, kind)
    k = min(k, vocabulary)
    ids = run_argmax(fastest, logits, threads=threads)
    assert torch.equal(ids.long(), reference.argmax_lowest(logits))
    values, indices = run_top_k(fastest, logits, k, threads=threads)
    wanted, wanted_ids = reference.top_k(logits, k)
    assert torch.equal(indices.long(), wanted_ids)
    assert same_bits(values, wanted)


def test_negative_zero_ties_with_zero(library: NativeLibrary) -> None:
    logits = torch.tensor([[-1.0, -0.0, 0.0, -0.0]])
    assert run_argmax(library, logits).tolist() == [1]
    assert run_top_k(library, logits, 3)[1].tolist() == [[1, 2, 3]]


def test_operands_are_refused(fastest: NativeLibrary) -> None:
    logits = torch.zeros(4, 50)
    ids = torch.zeros(4, dtype=torch.int32)
    many = torch.zeros(4, 51, dtype=torch.int32)
    with Pool(fastest, 1) as pool:
        tape = Tape(pool)
        with pytest.raises(ValueError, match="ids must hold"):
            argmax(tape, logits=logits, ids=ids[:3], rows=4)
        with pytest.raises(ValueError, match=r"ids must be torch\.int32"):
            argmax(tape, logits=logits, ids=ids.long(), rows=4)
        with pytest.raises(ValueError, match=r"logits must be torch\.float32"):
            argmax(tape, logits=logits.bfloat16(), ids=ids, rows=4)
        with pytest.raises(ValueError, match=r"k must lie in 1\.\.50"):
            top_k(tape, logits=logits, ids=many, values=torch.zeros(4, 51), rows=4)
