# SPDX-License-Identifier: MIT OR Apache-2.0
"""The second ways of the gated delta rule: one row after the other, or all rows at once through a solve.

They read and leave the buffers of the kernels, so that passes of both kinds may follow each other.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from engine.model.host_steps import HostCall, own_past
from kernels.causal_conv.native import DeltaWeights
from kernels.causal_conv.reference import causal_conv_windows
from kernels.gated_delta.buffers import (
    CONV_TAIL,
    LANES,
    DeltaRecord,
    DeltaShape,
    DeltaState,
    DeltaWork,
    Pending,
    state_from_tiles,
)
from kernels.gated_delta.reference import l2_normalise
from kernels.rms_norm.reference import gated_rms_norm

_SMALLEST_DECAY = 1e-30  # its logarithm stays finite


def host_gated_delta(
    *,
    shape: DeltaShape,
    state: DeltaState,
    work: DeltaWork,
    z: Tensor,
    norm_weight: Tensor,
    out: Tensor,
    eps: float,
    rows: int,
    together: int,
    record: DeltaRecord | None = None,
    pending: Pending | None = None,
    pending_record: DeltaRecord | None = None,
    parents: Tensor | None = None,
) -> HostCall:
    """Operands as in `kernels.gated_delta.native.gated_delta`; `together`: rows solved at once, 1 walks."""
    group = shape.value_heads // shape.key_heads

    @torch.inference_mode()
    def call() -> None:
        held = state_from_tiles(state.recurrent)
        if pending is not None and pending_record is not None:
            for row in pending.rows[: int(pending.count)].tolist():
                key = pending_record.k[:, row].repeat_interleave(group, 0)
                correction = pending_record.correction[:, row]
                held = held * pending_record.decay[row][:, None, None]
                held = held + key[:, :, None] * correction[:, None, :]
        if not rows:
            _store(state, held)
            return
        kept = work if record is None else record
        operands = (
            work.q[:, :rows].repeat_interleave(group, 0),
            kept.k[:, :rows].repeat_interleave(group, 0),
            work.v[:, :rows].float(),
            kept.decay[:rows].t(),
            work.beta[:rows].t(),
        )
        tree = None if parents is None else parents[:rows].tolist()
        o, correction, walked = _recur(held, operands, tree, together)
        if record is None:
            _store(state, walked)
        else:
            _store(state, held)
            record.correction[:, :rows] = correction
        o = o.transpose(0, 1).to(torch.bfloat16)
        gate = z[:rows, : shape.value_width].reshape(o.shape)
        weight = norm_weight.to(torch.bfloat16)
        out[:rows, : shape.value_width] = gated_rms_norm(o, gate, weight, eps).reshape(rows, -1)

    return call


def host_delta_prepare(
    *,
    shape: DeltaShape,
    raw: Tensor,
    a: Tensor,
    b: Tensor,
    weights: DeltaWeights,
    state: DeltaState,
    work: DeltaWork,
    rows: int,
    record: DeltaRecord | None = None,
    pending: Pending | None = None,
    pending_raw: Tensor | None = None,
    parents: Tensor | None = None,
) -> HostCall:
    """Operands as in `kernels.causal_conv.native.delta_prepare`."""
    kept = work if record is None else record
    widths = [shape.key_heads * shape.key_dim] * 2 + [shape.value_width]

    @torch.inference_mode()
    def call() -> None:
        tail = state.tail
        if pending is not None and pending_raw is not None and int(pending.count):
            chosen = pending_raw[pending.rows[: int(pending.count)].long()]
            tail.copy_(torch.cat((tail, chosen))[-CONV_TAIL:])
        if not rows:
            return
        fresh = raw[:rows]
        windows = _windows(tail, fresh, None if parents is None else parents[:rows].tolist())
        q, k, v = causal_conv_windows(windows, weights.taps.t()).split(widths, dim=1)
        q = l2_normalise(q.float().view(rows, shape.key_heads, -1)) * shape.key_dim**-0.5
        k = l2_normalise(k.float().view(rows, shape.key_heads, -1))
        work.q[:, :rows], kept.k[:, :rows] = q.transpose(0, 1), k.transpose(0, 1)
        work.v[:, :rows] = v.view(rows, shape.value_heads, -1).transpose(0, 1)
        work.qk[:rows] = (q * k).sum(-1)
        speed = functional.softplus(a[:rows].float() + weights.dt_bias)
        kept.decay[:rows] = (weights.rate * speed).exp()
        work.beta[:rows] = b[:rows].float().sigmoid()
        if record is None:
            tail.copy_(torch.cat((tail, fresh))[-CONV_TAIL:])

    return call


def _windows(tail: Tensor, fresh: Tensor, parents: list[int] | None) -> Tensor:
    """The last four raw rows of every row's own past, oldest first: [rows, channels, 4]."""
    known = torch.cat((tail, fresh))
    if parents is None:
        return known.unfold(0, CONV_TAIL + 1, 1)
    pasts: list[list[int]] = []
    for row, parent in enumerate(parents):
        before = pasts[parent] if parent >= 0 else list(range(CONV_TAIL))
        pasts.append([*before[-CONV_TAIL:], CONV_TAIL + row])
    return known[torch.tensor(pasts)].transpose(1, 2)


def _store(state: DeltaState, held: Tensor) -> None:
    heads, key_dim, value_dim = held.shape
    state.recurrent.copy_(held.view(heads, key_dim, value_dim // LANES, LANES).transpose(1, 2))


def _recur(
    held: Tensor, operands: tuple[Tensor, ...], parents: list[int] | None, together: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(o [Hv, rows, dv], correction [Hv, rows, dv], state behind the last row) of heads-first operands."""
    if together == 1:
        return _walk(held, operands, parents)
    outputs, corrections = [], []
    for first in range(0, operands[0].shape[1], together):
        part = tuple(each[:, first : first + together] for each in operands)
        o, correction, held = _solve(held, part, parents)
        outputs.append(o)
        corrections.append(correction)
    return torch.cat(outputs, 1), torch.cat(corrections, 1), held


def _walk(
    held: Tensor, operands: tuple[Tensor, ...], parents: list[int] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """S' = S decay; d = (v - k S') beta; S = S' + k d; o = q S: row by row, each from its parent's state."""
    outputs, corrections, states = [], [], []
    for row in range(operands[0].shape[1]):
        q, k, v, decay, beta = (each[:, row] for each in operands)
        parent = row - 1 if parents is None else parents[row]
        faded = (states[parent] if parent >= 0 else held) * decay[:, None, None]
        correction = (v - torch.einsum("hk,hkv->hv", k, faded)) * beta[:, None]
        states.append(faded + k[:, :, None] * correction[:, None, :])
        if parents is None and row:
            states[row - 1] = held  # a chain needs the latest state alone
        corrections.append(correction)
        outputs.append(torch.einsum("hk,hkv->hv", q, states[row]))
    return torch.stack(outputs, 1), torch.stack(corrections, 1), states[-1]


def _solve(
    held: Tensor, operands: tuple[Tensor, ...], parents: list[int] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The corrections of all rows from one unit lower-triangular system (the WY form).

    With D_ts the decay from row s to its descendant t (0 elsewhere) and E_t that from the state, d solves
    d_t + beta_t sum_{s<t} D_ts (k_t k_s) d_s = beta_t (v_t - E_t k_t S).
    """
    q, k, v, decay, beta = operands
    rows = q.shape[1]
    past = own_past(parents if parents is not None else list(range(-1, rows - 1)))
    total = decay.clamp_min(_SMALLEST_DECAY).log() @ past.t().float()
    between = (total[:, :, None] - total[:, None, :]).masked_fill(~past, -torch.inf).exp()
    reach = total.exp()[:, :, None]
    system = (k * beta[:, :, None]) @ k.transpose(1, 2) * between
    wanted = beta[:, :, None] * (v - k * reach @ held)
    correction = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    o = q * reach @ held + (q @ k.transpose(1, 2) * between) @ correction
    left = between[:, -1, :, None]
    return o, correction, held * reach[:, -1:] + (k * left).transpose(1, 2) @ correction
