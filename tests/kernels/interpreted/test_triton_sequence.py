# SPDX-License-Identifier: MIT OR Apache-2.0
"""Attention and the gated delta rule in the interpreter."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl

from kernels.attention import triton as attention
from kernels.attention import triton_check as attention_check
from kernels.gated_delta import triton_check as delta_check
from kernels.gated_delta.triton import walk
from kernels.gated_delta.triton_pass import Accepted, DeltaFactors, DeltaPass
from kernels.triton_build import launch_options


@pytest.fixture
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 64 positions, so that a short cache has several."""
    monkeypatch.setattr(attention, "_FIRST", tl.constexpr(64))
    monkeypatch.setattr(attention, "FIRST_CHUNK", 64)


def test_attention(library: object, short_chunks: None) -> None:
    """One row, a full program of 32 queries and one row more, two full ones; the rows cross a chunk's end."""
    heads = attention_check.Heads(4, 2, 16, 8, 128)
    batches = (1, 16, 17, 32)
    results = list(attention_check.check(library, cases=(heads,), starts=(61,), batches=batches))
    assert [result.reason for result in results if not result.ok] == []
    assert any(result.row_invariant for result in results)


@triton.jit
def _begins(out, CHUNKS: tl.constexpr):
    for chunk in range(CHUNKS):
        tl.store(out + chunk, attention._chunk_begin(chunk))


GATE = SimpleNamespace(variants=(SimpleNamespace(kernel=_begins, stages=1, fusion=True),))


def test_the_kernel_cuts_where_the_table_says() -> None:
    bounds = attention.chunk_bounds(1 << 20)
    begins = torch.zeros(len(bounds), dtype=torch.int32)
    _begins[(1,)](begins, len(bounds), **launch_options(1))
    assert begins.tolist() == [begin for begin, _ in bounds]


def test_the_chunks_end_at_the_same_places_for_every_length() -> None:
    bounds = attention.chunk_bounds(262144)
    assert len(bounds) == 96
    assert bounds[-1][1] == 262144
    assert all(left[1] == right[0] for left, right in zip(bounds, bounds[1:], strict=False))
    assert bounds[:36] == attention.chunk_bounds(20000)
    assert attention.chunk_bounds(16385)[32] == (16384, 17408)


@pytest.mark.parametrize(
    ("value_heads", "spread", "batches"), [(2, 0.05, (1, 2, 17, 32)), (4, 1.0, (1, 2))]
)
def test_gated_delta(
    library: object, value_heads: int, spread: float, batches: tuple[int, ...]
) -> None:
    """Keys that are nearly one direction, up to a whole chunk of rows; keys that two value heads share."""
    heads = delta_check.Heads(2, value_heads, 16, 16)
    results = list(
        delta_check.check(library, cases=(heads,), batches=batches, prompt=40, alike=(spread,))
    )
    assert [result.reason for result in results if not result.ok] == []
    assert any(result.row_invariant for result in results)


def test_a_wrong_operand_is_named() -> None:
    factors = [
        DeltaFactors.empty(
            rows=4, key_heads=1, value_heads=2, key_dim=16, value_dim=16, device="cpu"
        )
        for _ in range(2)
    ]
    none = Accepted(torch.zeros(1, dtype=torch.int32), torch.zeros(32, dtype=torch.int32))
    state, q, beta = torch.zeros(2, 16, 16), torch.zeros(4, 1, 16), torch.zeros(4, 2)
    v, out = torch.zeros(4, 32).bfloat16(), torch.zeros(4, 32).bfloat16()

    one = DeltaPass(state, q, factors[0], v, beta, out, 4, none, factors[1])
    tables = torch.zeros(32, 32, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
    for changed, how, message in (
        ({"rows": 5}, {}, r"rows must lie in 1\.\.4"),
        ({"accepted_factors": factors[0]}, {}, "other pass's factors"),
        ({"v": v.float()}, {}, "v must be torch.bfloat16"),
        ({"state": torch.zeros(2, 24, 16), "q": torch.zeros(4, 1, 24)}, {}, "power of two"),
        ({}, {"depths": tables[1]}, "come together"),
        ({}, {"paths": tables[0], "depths": tables[1], "advance": True}, "never advanced"),
    ):
        with pytest.raises(ValueError, match=message):
            walk(replace(one, **changed), **({"advance": False} | how))
