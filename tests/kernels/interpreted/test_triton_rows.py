# SPDX-License-Identifier: MIT OR Apache-2.0
"""Norms, elementwise steps, embedding, convolution, tree paths and argmax in the interpreter."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from kernels.causal_conv import triton_check as conv_check
from kernels.causal_conv.triton import causal_conv, shift_tail
from kernels.e2m1 import triton_check as e2m1_check
from kernels.e2m1.triton import encode
from kernels.elementwise.triton import delta_gates, output_gate, silu_mul
from kernels.embedding.triton import embed
from kernels.head import triton_check as head_check
from kernels.head.triton import argmax, argmax_work
from kernels.kv_cache.triton import move_rows
from kernels.rms_norm import triton_check as norm_check
from kernels.rms_norm.triton import add_rms_norm, gated_rms_norm, rms_norm
from kernels.triton_checks import BATCHES, batched_like_alone

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def few_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is a program of its own here: one, two and as many as there may be stand for all sizes."""
    for check in (head_check, norm_check):
        assert {1, 2, 32} < set(BATCHES)
        few = partial(batched_like_alone, batches=(1, 2, 32))
        monkeypatch.setattr(check, "batched_like_alone", few)


def faults(results: object) -> list[str]:
    return [result.reason for result in results if not result.ok]


def test_norms_and_elementwise_steps(library: object) -> None:
    results = list(norm_check.check(library, widths=(48,), heads=((3, 16),)))
    assert faults(results) == []
    assert sum(bool(result.row_invariant) for result in results) == 6


def test_convolution_and_paths(library: object) -> None:
    results = list(conv_check.check(library, channels=(48,)))
    assert faults(results) == []
    assert any(result.row_invariant for result in results)


def test_argmax(library: object) -> None:
    results = list(head_check.check(library, vocabularies=(16, 8224)))
    assert faults(results) == []
    assert any(result.row_invariant for result in results)


def test_codes(library: object) -> None:
    assert faults(e2m1_check.check(library)) == []
    with pytest.raises(ValueError, match="even number of elements, got 3"):
        encode(torch.zeros(3), torch.zeros(1, dtype=torch.uint8))


def zeros(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.zeros(*shape, dtype=dtype)


INT, FLOAT = torch.int32, torch.float32


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rms_norm(zeros(2, 32), zeros(48), zeros(2, 48), eps=0, rows=2), r"x must be .* \[any, 48\]"),
        (lambda: rms_norm(zeros(2, 48), zeros(48), zeros(2, 48), eps=0, rows=3), "at least 3 rows"),
        (lambda: rms_norm(zeros(2, 56)[:, :48], zeros(48), zeros(2, 48), eps=0, rows=2), "16 elements apart"),
        (lambda: rms_norm(zeros(2, 48), zeros(48).double(), zeros(2, 48), eps=0, rows=2), "weight must be"),
        (lambda: rms_norm(zeros(1, 16416), zeros(16416), zeros(1, 16416), eps=0, rows=1), "1 to 16384 columns"),
        (lambda: add_rms_norm(zeros(2, 48), zeros(2, 48).float(), zeros(48), zeros(2, 48), eps=0, rows=2),
         "x must be torch.bfloat16"),
        (lambda: gated_rms_norm(zeros(2, 40), zeros(2, 40), zeros(16), zeros(2, 40), eps=0, rows=2),
         "no multiple of the norm's 16"),
        (lambda: silu_mul(zeros(2, 48), zeros(2, 48), rows=2), r"gate_up must be .* \[any, 96\]"),
        (lambda: output_gate(zeros(2, 48), zeros(2, 96), zeros(2, 48), rows=2, dim=10), "multiple of the head"),
        (lambda: delta_gates(zeros(2, 16), zeros(2, 16), zeros(16), zeros(16), zeros(1, 16, dtype=FLOAT),
                             zeros(2, 16, dtype=FLOAT), rows=2), "g must hold at least 2 rows"),
        (lambda: embed(zeros(4, 16), zeros(1, dtype=INT), zeros(2, 16), rows=2), "at least 2 ids"),
        (lambda: embed(zeros(4, 16), zeros(2, dtype=torch.int64), zeros(2, 16), rows=2), "ids must be"),
        (lambda: causal_conv(zeros(40, 16), zeros(16, 4), zeros(3, 16), zeros(40, 16), rows=40,
                             paths=zeros(32, 32, dtype=INT), depths=zeros(32, dtype=INT)),
         "1 to 32 rows"),
        (lambda: causal_conv(zeros(4, 16), zeros(16, 4), zeros(3, 16), zeros(4, 16), rows=4,
                             depths=zeros(32, dtype=INT)), "come together"),
        (lambda: shift_tail(zeros(2, 3, 16), zeros(1, 4, 16), zeros(1, dtype=INT)), r"x must be \[2"),
        (lambda: move_rows(zeros(2, 8, 16), zeros(2, 9, 16), zeros(32, dtype=INT),
                           zeros(1, dtype=INT), zeros(1, dtype=INT)), "values must be"),
        (lambda: argmax(zeros(2, 5008), zeros(2, dtype=INT), zeros(2, dtype=FLOAT),
                        argmax_work(2, 4000, "cpu"), rows=2), "work"),
    ],
)  # fmt: skip
def test_a_wrong_operand_is_named(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
