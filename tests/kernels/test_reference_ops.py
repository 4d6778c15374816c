# SPDX-License-Identifier: MIT OR Apache-2.0
"""The readable operations against independent formulas."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from kernels.attention.reference import attention
from kernels.bf16_linear.reference import linear
from kernels.causal_conv.reference import causal_conv
from kernels.elementwise.reference import beta as beta_of
from kernels.elementwise.reference import output_gate, silu_mul
from kernels.embedding.reference import embed
from kernels.gated_delta.reference import (
    decay_log,
    gated_delta_chain,
    gated_delta_chunked,
    gated_delta_step,
    l2_normalise,
)
from kernels.head.reference import argmax_lowest, head_logits, top_k
from kernels.rms_norm.reference import add_rms_norm, gated_rms_norm, rms_norm
from kernels.rope.reference import apply_rope, rope_tables

EPS = 1e-6


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def delta_inputs(tokens: int, group: int, correlated: bool) -> tuple[torch.Tensor, ...]:
    key_heads, dim, value_dim = 2, 16, 24
    heads = key_heads * group
    q, k = seeded(tokens, key_heads, dim, seed=1), seeded(tokens, key_heads, dim, seed=2)
    if correlated:
        k = seeded(1, key_heads, dim, seed=3) + 0.05 * k
    g = decay_log(seeded(tokens, heads, seed=4), seeded(heads, seed=5), seeded(heads, seed=6))
    strength = torch.sigmoid(seeded(tokens, heads, seed=7) + (2.0 if correlated else 0.0))
    state = seeded(heads, dim, value_dim, seed=8)
    return state, q, k, seeded(tokens, heads, value_dim, seed=9), g, strength


def delta_by_loops(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The recurrence in float64, head by head, written without the code under test."""
    tokens, heads, _ = v.shape
    group = heads // k.shape[1]
    states, out = state.double().clone(), torch.zeros(v.shape, dtype=torch.float64)
    for t in range(tokens):
        for head in range(heads):
            query, key = q[t, head // group].double(), k[t, head // group].double()
            query = query / (query @ query + EPS).sqrt() / query.shape[0] ** 0.5
            key = key / (key @ key + EPS).sqrt()
            kept = states[head] * g[t, head].double().exp()
            delta = (v[t, head].double() - kept.T @ key) * beta[t, head].double()
            states[head] = kept + torch.outer(key, delta)
            out[t, head] = states[head].T @ query
    return out, states


@pytest.mark.parametrize("correlated", [False, True], ids=["random", "correlated"])
@pytest.mark.parametrize("group", [1, 2, 3])
@pytest.mark.parametrize("tokens", [1, 2, 63, 64, 65, 130])
def test_delta_forms_agree(tokens: int, group: int, correlated: bool) -> None:
    inputs = delta_inputs(tokens, group, correlated)
    expected, expected_state = delta_by_loops(*inputs)
    for form in (gated_delta_chain, gated_delta_chunked):
        o, state = form(*inputs)
        torch.testing.assert_close(o.double(), expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(state.double(), expected_state, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chunk", [1, 16, 100])
def test_delta_chunk_size_does_not_matter(chunk: int) -> None:
    inputs = delta_inputs(70, 3, True)
    expected, expected_state = gated_delta_chunked(*inputs)
    o, state = gated_delta_chunked(*inputs, chunk=chunk)
    torch.testing.assert_close(o, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state, expected_state, rtol=1e-5, atol=1e-5)


def test_delta_step_is_out_of_place_and_rounds_only_the_output() -> None:
    state, q, k, v, g, strength = delta_inputs(1, 3, False)
    before = state.clone()
    narrow = [x[0].bfloat16() for x in (q, k, v)]
    new_state, o = gated_delta_step(state, *narrow, g[0], strength[0].bfloat16())
    assert torch.equal(state, before)
    assert new_state.dtype == torch.float32
    assert o.dtype == torch.bfloat16
    wide = [x.float() for x in narrow]
    same_state, wide_o = gated_delta_step(state, *wide, g[0], strength[0].bfloat16())
    assert torch.equal(new_state, same_state)
    assert torch.equal(o, wide_o.bfloat16())


def test_delta_chunked_survives_strong_decay_and_gives_gradients() -> None:
    state, q, k, v, g, strength = delta_inputs(65, 1, False)
    k = k.requires_grad_()
    o, _ = gated_delta_chunked(state, q, k, v, g * 200, strength)
    o.sum().backward()
    assert torch.isfinite(o).all()
    assert torch.isfinite(k.grad).all()


def test_decay_log_against_float64() -> None:
    a = torch.tensor([-40.0, -5.0, 0.0, 3.0, 30.0])
    a_log, dt_bias = seeded(5, seed=1), seeded(5, seed=2)
    wide = (a.double() + dt_bias.double()).exp().log1p()
    expected = -a_log.double().exp() * wide
    torch.testing.assert_close(decay_log(a, a_log, dt_bias).double(), expected, rtol=2e-6, atol=0.0)
    assert decay_log(a.bfloat16(), a_log.bfloat16(), dt_bias.bfloat16()).dtype == torch.float32


def test_l2_normalise_adds_eps_to_the_sum() -> None:
    x = torch.full((2, 4), 1e-3)
    expected = 1e-3 / (4e-6 + 1e-6) ** 0.5
    torch.testing.assert_close(l2_normalise(x), torch.full((2, 4), expected))


def test_rms_norm_zero_centred_and_plain() -> None:
    x, w = seeded(5, 48, seed=1) * 3, seeded(48, seed=2)
    wide = x.double()
    unit = wide / (wide.pow(2).mean(-1, keepdim=True) + EPS).sqrt()
    centred = (unit * (1 + w.double())).float()
    torch.testing.assert_close(rms_norm(x, w, EPS), centred, rtol=1e-6, atol=1e-6)
    plain = (unit * w.double()).float()
    torch.testing.assert_close(rms_norm(x, w, EPS, zero_centred=False), plain, rtol=1e-6, atol=1e-6)


def test_rms_norm_rounds_once_in_bf16() -> None:
    x, w = (seeded(64, 128, seed=1) * 3).bfloat16(), seeded(128, seed=2).bfloat16()
    assert torch.equal(rms_norm(x, w, EPS), rms_norm(x.float(), w.float(), EPS).bfloat16())


def test_add_rms_norm_reads_the_rounded_sum() -> None:
    r, x = seeded(64, 128, seed=1).bfloat16(), (seeded(64, 128, seed=2) * 1e-2).bfloat16()
    w = seeded(128, seed=3).bfloat16()
    total, normed = add_rms_norm(r, x, w, EPS)
    assert torch.equal(total, (r.float() + x.float()).bfloat16())
    assert torch.equal(normed, rms_norm(total, w, EPS))
    unrounded = rms_norm(r.float() + x.float(), w.float(), EPS).bfloat16()
    assert not torch.equal(normed, unrounded)


def test_gated_norm_rounding_order() -> None:
    o, z = seeded(50, 3, 128, seed=1).bfloat16(), seeded(50, 3, 128, seed=2).bfloat16()
    w = seeded(128, seed=3) + 1
    wide = o.float()
    n = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)).bfloat16()
    m = (w.bfloat16().float() * n.float()).bfloat16()
    gate = z.float() / (1 + (-z.float()).exp())
    got = gated_rms_norm(o, z, w, EPS)
    torch.testing.assert_close(got, (m.float() * gate).bfloat16(), rtol=2**-7, atol=0.0)
    unrounded = (w * wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS) * gate).bfloat16()
    rounded = (m.float() * gate).bfloat16()
    assert (got != rounded).float().mean() < 0.01 < (got != unrounded).float().mean()


def test_conv_split_equals_whole_and_taps_run_forward() -> None:
    x, w = seeded(23, 10, seed=1), seeded(10, 4, seed=2)
    zeros = torch.zeros(3, 10)
    whole, tail = causal_conv(x, w, zeros)
    pieces, carried = [], zeros
    for start, stop in ((0, 1), (1, 3), (3, 11), (11, 23)):
        piece, carried = causal_conv(x[start:stop], w, carried)
        pieces.append(piece)
    assert torch.equal(torch.cat(pieces), whole)
    assert torch.equal(carried, tail)
    assert torch.equal(tail, x[-3:])
    padded = functional.pad(x.T[None], (3, 0))
    expected = functional.silu(functional.conv1d(padded, w[:, None], groups=10))[0].T
    torch.testing.assert_close(whole, expected, rtol=1e-5, atol=1e-6)


def test_conv_in_bf16_rounds_the_sum_and_the_activation() -> None:
    x, w = seeded(9, 6, seed=1).bfloat16(), seeded(6, 4, seed=2).bfloat16()
    got, tail = causal_conv(x, w, torch.zeros(3, 6, dtype=torch.bfloat16))
    padded = functional.pad(x.float().T[None], (3, 0))
    total = functional.conv1d(padded, w.float()[:, None], groups=6)[0].T.bfloat16()
    assert got.dtype == tail.dtype == torch.bfloat16
    torch.testing.assert_close(got, functional.silu(total), rtol=2**-7, atol=1e-6)


def test_rope_rotates_pairs_by_position() -> None:
    positions = torch.tensor([0, 1, 7, 1000])
    cos, sin = rope_tables(positions, 8, 1e4, torch.float32)
    x = seeded(4, 2, 12, seed=1)
    got = apply_rope(x, cos, sin)
    assert torch.equal(got[0], x[0])
    assert torch.equal(got[..., 8:], x[..., 8:])
    for row, position in enumerate(positions.tolist()):
        for i in range(4):
            angle = torch.tensor(position * 1e4 ** (-2 * i / 8), dtype=torch.float64)
            turned = torch.complex(x[row, :, i].double(), x[row, :, i + 4].double())
            turned = turned * torch.complex(angle.cos(), angle.sin())
            torch.testing.assert_close(got[row, :, i].double(), turned.real, atol=2e-4, rtol=0)
            torch.testing.assert_close(got[row, :, i + 4].double(), turned.imag, atol=2e-4, rtol=0)


def test_rope_rounding_points_and_odd_dimension() -> None:
    cos, sin = rope_tables(torch.arange(40), 16, 1e7, torch.bfloat16)
    x = seeded(40, 3, 32, seed=1).bfloat16()
    first, second = x[..., :8].float(), x[..., 8:16].float()
    c, s = cos[:, None, :8].float(), sin[:, None, :8].float()
    expected = ((first * c).bfloat16().float() + (-second * s).bfloat16().float()).bfloat16()
    assert torch.equal(apply_rope(x, cos, sin)[..., :8], expected)
    with pytest.raises(ValueError, match="even"):
        rope_tables(torch.arange(2), 7, 1e4, torch.float32)


@pytest.mark.parametrize(("rows", "length"), [(1, 1), (1, 17), (5, 5), (6, 40)])
def test_attention_against_library(rows: int, length: int) -> None:
    q, k = seeded(rows, 6, 16, seed=1), seeded(length, 2, 16, seed=2)
    v = seeded(length, 2, 16, seed=3)
    mask = torch.ones(rows, length, dtype=torch.bool).tril(length - rows)
    expected = functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        v.transpose(0, 1)[None],
        attn_mask=mask,
        scale=0.2,
        enable_gqa=True,
    )[0].transpose(0, 1)
    torch.testing.assert_close(attention(q, k, v, length - rows, 0.2), expected)


def test_attention_ignores_later_positions_and_refuses_rows_beyond_them() -> None:
    q, k, v = seeded(2, 2, 8, seed=1), seeded(9, 1, 8, seed=2), seeded(9, 1, 8, seed=3)
    short = attention(q, k[:5], v[:5], 3, 1.0)
    torch.testing.assert_close(attention(q, k, v, 3, 1.0), short)
    with pytest.raises(ValueError, match="beyond"):
        attention(q, k, v, 8, 1.0)
    with pytest.raises(ValueError, match="divide"):
        attention(seeded(1, 3, 8), seeded(4, 2, 8), seeded(4, 2, 8), 0, 1.0)


def test_elementwise_rounding() -> None:
    a, b = seeded(500, seed=1).bfloat16(), seeded(500, seed=2).bfloat16()
    activated = (a.float() / (1 + (-a.float()).exp())).bfloat16()
    expected = (activated.float() * b.float()).bfloat16()
    assert (silu_mul(a, b) != expected).float().mean() < 0.02
    gate = torch.sigmoid(b.float()).bfloat16()
    assert torch.equal(output_gate(a, b), (a.float() * gate.float()).bfloat16())
    assert beta_of(b).dtype == torch.bfloat16
    assert torch.equal(beta_of(b), gate)


def test_embed_and_linear() -> None:
    table, ids = seeded(7, 4, seed=1), torch.tensor([[6, 0], [3, 3]])
    assert torch.equal(embed(table, ids), torch.stack([table[[6, 0]], table[[3, 3]]]))
    x, w = seeded(3, 4, seed=2), seeded(5, 4, seed=3)
    torch.testing.assert_close(linear(x, w), (x.double() @ w.double().T).float())
    assert linear(x.bfloat16(), w.bfloat16()).dtype == torch.bfloat16


def test_head_order_ties_and_nan() -> None:
    x, w = seeded(2, 4, seed=1).bfloat16(), seeded(9, 4, seed=2).bfloat16()
    logits = head_logits(x, w)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, (x.double() @ w.double().T).float())
    tied = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    assert argmax_lowest(tied).tolist() == [1, 0]
    values, indices = top_k(tied, 4)
    assert indices.tolist() == [[1, 2, 4, 3], [0, 1, 2, 3]]
    assert values[0].tolist() == [3.0, 3.0, 3.0, 2.0]
    with pytest.raises(ValueError, match="NaN"):
        argmax_lowest(torch.tensor([0.0, float("nan")]))
    with pytest.raises(ValueError, match=r"1\.\.5"):
        top_k(tied, 6)
