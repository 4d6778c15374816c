# SPDX-License-Identifier: MIT OR Apache-2.0
"""Readable gated delta rule: one step, a sequential chain and the chunked form.

Every function keeps the state [Hv, dk, dv] in float32 and works out of place, so a caller can
branch from any state. Value head j uses key head j // (Hv / Hk). q and k are the raw outputs of
the convolution: their L2 norm and the factor dk^-0.5 on q are applied here.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def decay_log(a: Tensor, a_log: Tensor, dt_bias: Tensor) -> Tensor:
    """Logarithm of the decay: -exp(A_log) * softplus(a + dt_bias), in float32.

    Args:
        a: [..., Hv] projection; a_log, dt_bias: [Hv].

    Returns:
        float32 [..., Hv], never positive.
    """
    return -a_log.float().exp() * functional.softplus(a.float() + dt_bias.float())


def l2_normalise(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x * rsqrt(sum(x^2) + eps) over the last axis, in x's dtype; eps is added to the sum."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)


def gated_delta_step(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """One token of the recurrence, out of place.

    S' = S exp(g); d = (v - k^T S') beta; S_new = S' + k d^T; o = q^T S_new.

    Args:
        state: float32 [Hv, dk, dv].
        q, k: [Hk, dk]; v: [Hv, dv]; g: float32 [Hv] from `decay_log`; beta: [Hv].

    Returns:
        (new state float32 [Hv, dk, dv], o [Hv, dv] in v's dtype).
    """
    group = v.shape[0] // k.shape[0]
    query = _unit_query(q).repeat_interleave(group, dim=0)
    key = l2_normalise(k.float()).repeat_interleave(group, dim=0)
    decayed = state * g.float().exp()[:, None, None]
    recalled = torch.einsum("hk,hkv->hv", key, decayed)
    correction = (v.float() - recalled) * beta.float()[:, None]
    new_state = decayed + key[:, :, None] * correction[:, None, :]
    return new_state, torch.einsum("hk,hkv->hv", query, new_state).to(v.dtype)


def gated_delta_chain(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """T tokens in sequence by `gated_delta_step`.

    Args:
        state: float32 [Hv, dk, dv].
        q, k: [T, Hk, dk]; v: [T, Hv, dv]; g, beta: [T, Hv]; T >= 1.

    Returns:
        (o [T, Hv, dv] in v's dtype, final state float32).
    """
    outputs = []
    for token in range(v.shape[0]):
        state, o = gated_delta_step(state, q[token], k[token], v[token], g[token], beta[token])
        outputs.append(o)
    return torch.stack(outputs), state


def gated_delta_chunked(
    state: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk: int = 64,
) -> tuple[Tensor, Tensor]:
    """The same result as `gated_delta_chain` up to float32 reassociation, a chunk at a time.

    Inside a chunk the corrections solve a unit lower-triangular system (the WY form), so the
    state is read and written once a chunk.

    Args and returns: as `gated_delta_chain`; chunk is the number of tokens solved together.
    """
    group = v.shape[1] // k.shape[1]
    query = _unit_query(q).repeat_interleave(group, dim=1).transpose(0, 1)
    key = l2_normalise(k.float()).repeat_interleave(group, dim=1).transpose(0, 1)
    value = v.float().transpose(0, 1)
    decay = g.float().transpose(0, 1)
    strength = beta.float().transpose(0, 1)
    outputs = []
    for start in range(0, v.shape[0], chunk):
        part = slice(start, start + chunk)
        o, state = _one_chunk(
            state, query[:, part], key[:, part], value[:, part], decay[:, part], strength[:, part]
        )
        outputs.append(o)
    return torch.cat(outputs, dim=1).transpose(0, 1).to(v.dtype), state


def _unit_query(q: Tensor) -> Tensor:
    return l2_normalise(q.float()) * q.shape[-1] ** -0.5


def _one_chunk(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """Heads first: q, k [Hv, C, dk], v [Hv, C, dv], g, beta [Hv, C] -> (o [Hv, C, dv], state)."""
    total = g.cumsum(-1)
    length = total.shape[-1]
    # Differences above the diagonal are unbounded, so they are masked before exp.
    above = torch.ones(length, length, dtype=torch.bool, device=g.device).triu(1)
    between = (total[:, :, None] - total[:, None, :]).masked_fill(above, float("-inf")).exp()
    weighted_key = k * beta[:, :, None]
    system = weighted_key @ k.transpose(1, 2) * between
    from_state = weighted_key * total.exp()[:, :, None] @ state
    correction = torch.linalg.solve_triangular(
        system, v * beta[:, :, None] - from_state, upper=False, unitriangular=True
    )
    inside = q @ k.transpose(1, 2) * between
    o = q * total.exp()[:, :, None] @ state + inside @ correction
    left = (total[:, -1:] - total).exp()[:, :, None]
    carried = state * total[:, -1].exp()[:, None, None]
    return o, carried + (k * left).transpose(1, 2) @ correction
