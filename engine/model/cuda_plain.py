# SPDX-License-Identifier: MIT OR Apache-2.0
"""Operations of a GPU pass in PyTorch: the second way of each kernel, and the only one where there is none.

No function reads a device value on the host, so a graph can hold all of them but those of prompt chunks. They
run on any device. Up to 32 rows they always compute 32: a library's product, sum or softmax may round a row
differently with the number of rows, so the number never changes. What lies behind the rows is garbage that
stays in its own row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.backend import VERIFY_ROWS
from engine.model.cuda_arena import CONV_TAIL, DeltaRecord, KvPair, TreePaths
from kernels.attention.prefill import attend_prefill
from kernels.causal_conv.reference import causal_conv_windows
from kernels.elementwise.reference import beta, output_gate
from kernels.gated_delta.reference import decay_log, l2_normalise
from kernels.head.reference import head_logits
from kernels.rms_norm.reference import gated_rms_norm, rms_norm
from kernels.rope.reference import apply_rope


def computed_rows(rows: int) -> int:
    """How many rows are computed for so many: 32 at least."""
    return max(rows, VERIFY_ROWS)


@dataclass(frozen=True, slots=True)
class DeltaOperands:
    """What the recurrence reads of each row, in float32.

    q, k: [R, Hk, dk], unit length, q scaled; v: [R, Hv, dv]; g, the decay's logarithm, and beta: [R, Hv].
    """

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor


@dataclass(frozen=True, slots=True)
class DeltaSizes:
    """Heads of a delta layer."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int

    def split(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q [R, Hk, dk], k [R, Hk, dk], v [R, Hv, dv] of convolved rows [R, channels]."""
        keys, values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        q, k, v = mixed.split((keys, keys, values), dim=-1)
        shape = (len(mixed), self.key_heads, self.key_dim)
        return q.view(shape), k.view(shape), v.view(-1, self.value_heads, self.value_dim)


def embed(table: Tensor, ids: Tensor, out: Tensor) -> None:
    """out[r] = table[ids[r]]; a negative id, which stands for no token, gives NaN."""
    rows = table.index_select(0, ids.clamp_min(0))
    out.copy_(rows.masked_fill_((ids < 0)[:, None], float("nan")))


def sums(x: Tensor, weight: Tensor) -> Tensor:
    """x [R, K] times weight [N, K], both bf16, as the float32 sums [R, N]."""
    if x.device.type == "cuda":
        return torch.mm(x, weight.t(), out_dtype=torch.float32)
    return head_logits(x, weight)


def best_tokens(logits: Tensor) -> Tensor:
    """int32 [R]: the lowest index of the largest logit [R, V] of each row; -1 where a logit is NaN."""
    index = logits.argmax(-1, keepdim=True)
    broken = logits.gather(-1, index).isnan()
    return index.masked_fill_(broken, -1).squeeze(-1).to(torch.int32)


def top_tokens(logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """(int32 tokens, float32 logits), each [width]: the largest of logits [V], ties by the lowest index.

    The first token is -1 where a logit is NaN.
    """
    left, tokens, values = logits.clone(), [], []
    for _ in range(width):
        index = left.argmax(-1, keepdim=True)
        value = left.gather(-1, index)
        tokens.append(index.masked_fill(value.isnan(), -1))
        values.append(value)
        left.scatter_(-1, index, -torch.inf)
    return torch.cat(tokens).to(torch.int32), torch.cat(values)


def attention_prepare(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    q_norm: Tensor,
    k_norm: Tensor,
    rope: Tensor,
    positions: Tensor,
    slots: Tensor,
    cache: KvPair,
    out: Tensor,
    eps: float,
) -> None:
    """Head norms, rotary embedding, and the keys and values into the cache.

    query [R, Hq, D] without its gate -> out; key, value [R, Hkv, D], of which the first len(slots) rows are
    stored at `slots`. positions: int64 [R].
    """
    halves = rope.index_select(0, positions).chunk(2, -1)
    cos, sin = (half.repeat(1, 2) for half in halves)
    out.copy_(apply_rope(rms_norm(query, q_norm, eps), cos, sin))
    rotated = apply_rope(rms_norm(key, k_norm, eps), cos, sin)
    rows = len(slots)
    cache.keys.index_copy_(1, slots, rotated[:rows].transpose(0, 1))
    cache.values.index_copy_(1, slots, value[:rows].transpose(0, 1))


def attention(
    query: Tensor,
    gate: Tensor,
    cache: KvPair,
    *,
    rows: int,
    start: Tensor,
    paths: Tensor,
    places: Tensor,
    out: Tensor,
) -> None:
    """Rows of a verify pass attend to the committed positions and to their ancestors, then are gated.

    query [32, Hq, D]; gate the same; start [1]; paths as in TreePaths; places: int64 0, 1, 2, ... up to the
    longest context of this pass; out [32, Hq * D].
    """
    keys, values = cache.keys[:, : len(places)], cache.values[:, : len(places)]
    own = places - start
    table = ancestors(paths).index_select(1, own.clamp(0, VERIFY_ROWS - 1))
    seen = (own < 0) | ((own >= 0) & (own < rows) & table)
    kv_heads, dim = keys.shape[0], keys.shape[2]
    wide = query.float().view(len(query), kv_heads, -1, dim)
    scores = torch.einsum("rhgd,hld->hgrl", wide, keys.float()) * dim**-0.5
    # A value that is no number breaks the rows that see it, and no other: 0 times it would not be 0.
    sound = values.isfinite()
    scores.masked_fill_(~sound.all(-1)[:, None, None], torch.nan)
    weights = scores.masked_fill_(~seen, -torch.inf).softmax(-1)
    held = values.float().masked_fill(~sound, 0.0)
    attended = torch.einsum("hgrl,hld->rhgd", weights, held)
    attended = attended.reshape(query.shape).to(query.dtype)
    out.copy_(output_gate(attended, gate).reshape(len(query), -1))


def attention_of_chunk(
    query: Tensor, gate: Tensor, cache: KvPair, *, start: int, out: Tensor
) -> None:
    """A prompt chunk attends to everything before each row; `start` is known on the host."""
    attended = attend_prefill(query, cache.keys, cache.values, first=start)
    out.copy_(output_gate(attended, gate).reshape(len(query), -1))


def ancestors(paths: Tensor) -> Tensor:
    """bool [32, 32]: whether row r descends from row j or is it."""
    own = torch.arange(VERIFY_ROWS, device=paths.device)
    return (paths[:, :, None] == own).any(1)


def move_rows(keys: Tensor, values: Tensor, rows: Tensor, count: Tensor, start: Tensor) -> None:
    """Accepted rows of the pass before to the end of the committed positions, which `start` counts already.

    keys, values: [H, positions, D]; the rest as in PassInputs.
    """
    first = (start - count).long()
    places = first + torch.arange(VERIFY_ROWS, device=rows.device)
    source = torch.where(places < start, first + rows, places)
    for part in (keys, values):
        part.index_copy_(1, places, part.index_select(1, source))


def shift_tail(tail: Tensor, raw: Tensor, count: Tensor, rows: Tensor) -> None:
    """The last three of [tail | raw at rows[:count]]: tail [L, 3, C], raw [L, 32, C]."""
    table = torch.cat((tail, raw.index_select(1, rows)), 1)
    tail.copy_(table.index_select(1, count + torch.arange(CONV_TAIL, device=rows.device)))


def commit(state: Tensor, record: DeltaRecord, count: Tensor, rows: Tensor) -> None:
    """Apply the rows[:count] of a layer's record to its state, with the bits of single steps."""
    key = _of_values(record.k, state.shape[0]).index_select(0, rows)
    decay = record.g.index_select(0, rows).exp()
    correction = record.u.index_select(0, rows)
    after = state
    for at in range(VERIFY_ROWS):
        child = _child(after * decay[at, :, None, None], key[at], correction[at])
        after = torch.where(count > at, child, after)
    state.copy_(after)


def convolved(raw: Tensor, tail: Tensor, conv: Tensor, tree: TreePaths) -> Tensor:
    """silu(conv) [32, channels] of rows [32, channels], each behind its own three ancestors."""
    level = tree.depths[:, None] + torch.arange(-CONV_TAIL, 1, device=raw.device)
    node = tree.paths.gather(1, level.clamp_min(0).long())
    table = torch.cat((tail, raw))
    index = torch.where(level < 0, level, node) + CONV_TAIL
    windows = table.index_select(0, index.flatten()).view(len(raw), -1, raw.shape[1])
    return causal_conv_windows(windows.transpose(1, 2), conv)


def delta_operands(
    mixed: Tensor, a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor, sizes: DeltaSizes
) -> DeltaOperands:
    """What the recurrence reads of convolved rows [R, channels] and their gates a, b [R, Hv]."""
    q, k, v = sizes.split(mixed)
    return DeltaOperands(
        l2_normalise(q.float()) * sizes.key_dim**-0.5,
        l2_normalise(k.float()),
        v.float(),
        decay_log(a, a_log, dt_bias),
        beta(b).float(),
    )


def walk(
    state: Tensor, operands: DeltaOperands, record: DeltaRecord, parents: Tensor, rows: int
) -> Tensor:
    """o float32 [rows, Hv, dv]: every row from its parent's state, row 0 from `state`; fills the record.

    parents: int32 [32], -1 for row 0.
    """
    heads = state.shape[0]
    states = state.new_empty(rows + 1, *state.shape)
    states[0] = state
    key, query = (_of_values(each, heads) for each in (operands.k, operands.q))
    before, decay = parents[:rows] + 1, operands.g.exp()
    totals = state.new_zeros(rows + 1, heads)
    outputs = []
    for row in range(rows):
        parent = states.index_select(0, before[row : row + 1])[0]
        faded = parent * decay[row, :, None, None]
        recalled = torch.matmul(key[row, :, None], faded)[:, 0]
        correction = (operands.v[row] - recalled) * operands.beta[row, :, None]
        states[row + 1] = _child(faded, key[row], correction)
        record.u[row] = correction
        totals[row + 1] = totals.index_select(0, before[row : row + 1])[0] + operands.g[row]
        outputs.append(torch.matmul(query[row, :, None], states[row + 1])[:, 0])
    record.k[:rows] = operands.k[:rows]
    record.g[:rows] = operands.g[:rows]
    record.gc[:rows] = totals[1:]
    return torch.stack(outputs)


def gated_norm(o: Tensor, z: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """out [R, Hv * dv] = the gated norm of o [R, Hv, dv] by z [R, Hv * dv]."""
    normed = gated_rms_norm(o.to(z.dtype), z.unflatten(1, o.shape[1:]), weight, eps)
    out.copy_(normed.flatten(1))


def _child(faded: Tensor, key: Tensor, correction: Tensor) -> Tensor:
    """S + k d^T: faded [Hv, dk, dv], key [Hv, dk], correction [Hv, dv]."""
    return faded + key[:, :, None] * correction[:, None, :]


def _of_values(keys: Tensor, value_heads: int) -> Tensor:
    """[R, Hk, dk] -> [R, Hv, dk]: value head j uses key head j // (Hv / Hk)."""
    return keys.repeat_interleave(value_heads // keys.shape[1], dim=1)
