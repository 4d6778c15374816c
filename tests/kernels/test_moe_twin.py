# SPDX-License-Identifier: MIT OR Apache-2.0
"""The twin of the mixture of experts against the published block, written out expert by expert."""

from __future__ import annotations

import torch
from torch.nn import functional

from kernels.moe.reference import combine, experts, route


def _random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_choice_is_that_of_topk_without_ties() -> None:
    logits = _random(20, 60, seed=1) * 2
    chosen, weights = route(logits, 7)
    value, index = torch.softmax(logits, -1).topk(7)
    assert torch.equal(chosen.long(), index)
    assert torch.equal(weights, (value / value.sum(-1, keepdim=True)).bfloat16())
    assert chosen.dtype == torch.int32


def test_of_equal_logits_the_lower_expert_is_chosen() -> None:
    chosen, weights = route(torch.tensor([[1.0, 2.0, 1.0, 2.0, 0.0], [0.0] * 5]), 3)
    assert chosen.tolist() == [[1, 3, 0], [0, 1, 2]]
    assert weights[1].tolist() == [0.333984375] * 3
    assert weights[0, 0] == weights[0, 1] > weights[0, 2]


def test_of_equal_shares_the_larger_logit_is_chosen() -> None:
    logits = torch.tensor([[1e-9, 3e-9, 0.0, 2e-9]], dtype=torch.bfloat16)
    assert logits.float().softmax(-1).unique().numel() == 1
    chosen, weights = route(logits, 2)
    assert chosen.tolist() == [[1, 3]]
    assert weights.tolist() == [[0.5, 0.5]]


def test_the_weights_of_all_experts_are_the_softmax() -> None:
    logits = _random(4, 6, seed=2)
    chosen, weights = route(logits, 6)
    shares = torch.softmax(logits, -1).gather(-1, chosen.long())
    torch.testing.assert_close(weights.float(), shares, rtol=2**-8, atol=0)
    exact = route(logits, 6, torch.float32)[1]
    torch.testing.assert_close(exact, shares, rtol=2**-22, atol=0)
    assert torch.equal(exact.bfloat16(), weights)


def test_a_row_without_a_softmax_gets_the_first_experts_and_nan() -> None:
    logits = _random(4, 9, seed=3)
    logits[1, 8], logits[2, 0], logits[3] = torch.nan, torch.inf, -torch.inf
    chosen, weights = route(logits, 2)
    assert chosen[1:].tolist() == [[0, 1]] * 3
    assert bool(weights[1:].isnan().all())
    assert bool(weights[0].isfinite().all())


def test_the_block_is_the_published_one() -> None:
    count, top_k, hidden, inner, rows = 6, 3, 24, 16, 9
    x = _random(rows, hidden, seed=4).bfloat16()
    gate_up = _random(count, 2 * inner, hidden, seed=5) * 0.2
    down = _random(count, hidden, inner, seed=6) * 0.2
    shared, gate = (_random(rows, n, seed=7 + n).bfloat16() for n in (hidden, 1))
    chosen, weights = route(_random(rows, count, seed=10), top_k)

    out = torch.zeros(rows, hidden, dtype=torch.bfloat16)
    mask = functional.one_hot(chosen.long(), count).permute(2, 1, 0)
    for expert in range(count):
        slot, token = torch.where(mask[expert])
        both = functional.linear(x[token].float(), gate_up[expert]).bfloat16()
        g, u = both.chunk(2, dim=-1)
        y = functional.linear((functional.silu(g) * u).float(), down[expert]).bfloat16()
        out.index_add_(0, token, y * weights[token, slot, None])
    out = out + torch.sigmoid(gate) * shared

    y = experts(x, chosen, gate_up, down)
    assert torch.equal(combine(y, chosen, weights, shared, gate), out)


def test_the_sum_goes_by_expert_not_by_slot() -> None:
    """256 + 1 + 1 is 256 in bf16 one after the other, and 258 the other way round."""
    y = torch.tensor([[[256.0], [1.0], [1.0]]]).bfloat16()
    weights = torch.ones(1, 3).bfloat16()
    assert float(combine(y, torch.tensor([[0, 1, 2]]), weights)) == 256
    assert float(combine(y, torch.tensor([[2, 0, 1]]), weights)) == 258


def test_a_shared_expert_without_a_gate_counts_in_full() -> None:
    y, shared = torch.ones(2, 1, 4).bfloat16(), torch.full((2, 4), 2.0).bfloat16()
    chosen, weights = torch.zeros(2, 1, dtype=torch.int32), torch.ones(2, 1).bfloat16()
    assert combine(y, chosen, weights, shared).unique().tolist() == [3]
    gate = torch.zeros(2, 1).bfloat16()
    assert combine(y, chosen, weights, shared, gate).unique().tolist() == [2]
