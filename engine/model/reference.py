# SPDX-License-Identifier: MIT OR Apache-2.0
"""The hybrid forward on the readable PyTorch operations: twin of every faster backend, and the oracle's view.

Runs in bfloat16 with the model's rounding points, or in float32 throughout. A chunk of the prompt is one pass
with the chunked delta rule. A verify pass runs its rows one at a time, because a library's matrix product
rounds differently with the number of rows: so a row has the bits of plain decoding, and the state after each
row is at hand to be kept. A node of a tree starts from its parent's state and writes its key and value at the
position behind its parent's: in depth-first order all it reads there are its ancestors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.cache.state import KvCache, RecurrentState
from engine.knobs import KnobSet
from engine.load.drafter import BlockCheckpoint
from engine.load.stored import Dense
from engine.load.weights import (
    AttentionLayerWeights,
    GdnLayerWeights,
    ModelWeights,
    MtpWeights,
)
from engine.model.backend import (
    MAX_DRAFT,
    MAX_WIDTH,
    Backend,
    DraftStep,
    Mark,
    Verified,
    accepted_path,
    check_mark,
    check_room,
    tree_parents,
)
from engine.model.block_forward import BlockRows
from engine.model.block_reference import ReferenceBlock
from engine.model.byte_model import ByteModel
from engine.model.config import ModelConfig
from engine.model.dense import first_suspect, in_dtype
from engine.model.moe_reference import mlp
from kernels.attention.reference import attention
from kernels.bf16_linear.reference import linear
from kernels.causal_conv.reference import causal_conv
from kernels.elementwise.reference import beta, output_gate
from kernels.embedding.reference import embed
from kernels.gated_delta.reference import (
    decay_log,
    gated_delta_chunked,
    gated_delta_step,
)
from kernels.head.reference import head_logits, top_k
from kernels.rms_norm.reference import add_rms_norm, gated_rms_norm, rms_norm
from kernels.rope.reference import apply_rope, rope_tables


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of a verify pass, kept until `commit`."""

    token: int
    hidden: Tensor  # [1, hidden], after the final norm
    recurrent: dict[int, RecurrentState]  # of every delta layer, after this row
    kv: tuple[tuple[Tensor, Tensor], ...]  # of every attention layer; of a tree's row only
    streams: Tensor  # [1, taps * hidden], those that a block drafter reads


class ReferenceBackend(Backend):
    """See `engine.model.backend.Backend`."""

    name = "reference"

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        *,
        capacity: int,
        dtype: torch.dtype,
        tokens: int | None = None,
    ) -> None:
        """`tokens`: ids that exist; padded vocabulary rows behind them are never chosen."""
        self._tokens = tokens or config.vocab_size
        self.config = config
        self.capacity = capacity
        self.length = self.sequence = 0
        self._dtype = dtype
        self._bytes = ByteModel.of(config, weights)
        self._weights = in_dtype(weights, dtype)
        self._head = self._weights.head_linear.dequantise().float()
        self._kv = {
            layer: KvCache.empty(capacity, config.kv_heads, config.head_dim, dtype)
            for layer in config.attention_layers
        }
        self._mtp_kv = KvCache.empty(capacity, config.kv_heads, config.head_dim, dtype)
        self.block: BlockCheckpoint | None = None
        self._block: ReferenceBlock | None = None
        self.reset(speculate=False)

    def apply_knobs(self, knobs: KnobSet) -> None:
        """No switch changes how these operations run."""

    def engaged(self) -> dict[str, int]:
        return {}

    def reset(self, *, speculate: bool) -> None:
        self.length = 0
        self.sequence += 1
        self._recurrent = {
            layer: RecurrentState.zeros(self.config, self._dtype)
            for layer in self.config.gdn_layers
        }
        self._verified: list[_Row] = []
        self._chosen: set[tuple[int, int]] = set()  # (layer, expert) of the latest pass
        self._parents: Sequence[int] | None = None
        self._speculate = speculate and self._weights.mtp is not None
        self._mtp_kv.length = self._mtp_begun = 0  # the latter: how often it began anew
        if self._block is not None:
            self._block.reset(active=speculate)
        # Hidden row of the last committed position; its MTP row waits for the token that follows it.
        self._last_hidden: Tensor | None = None

    def mark_bytes(self) -> int:
        return sum(each.state.nbytes + each.tail.nbytes for each in self._recurrent.values())

    def mark(self) -> Mark:
        # Every pass makes new states, so that the present ones need no copy.
        head = self._mtp_begun, self._mtp_kv.length, self._last_hidden
        return Mark(self.sequence, self.length, (self._recurrent, head))

    def resume(self, mark: Mark | None, *, speculate: bool) -> None:
        head = self._mtp_begun, self._mtp_kv.length, self._last_hidden
        if mark is not None:
            check_mark(mark, self.sequence, self.length)
            self._recurrent, head = mark.state
            self.length = mark.length
        self._verified = []
        active = speculate and self._weights.mtp is not None
        if active != self._speculate or head[0] != self._mtp_begun:
            head = self._mtp_begun + 1, 0, None
        self._speculate = active
        self._mtp_begun, self._mtp_kv.length, self._last_hidden = head
        if self._block is not None and not (mark is None and self._block.active == speculate):
            self._block.reset(active=speculate, length=self.length)

    @torch.inference_mode()
    def prefill(self, ids: Sequence[int]) -> Verified:
        hidden = self._advance(ids)
        return self._result([hidden[-1:]])

    @torch.inference_mode()
    def all_logits(self, ids: Sequence[int]) -> Tensor:
        return head_logits(self._advance(ids), self._head)

    @torch.inference_mode()
    def verify(self, ids: Sequence[int], parents: Sequence[int] | None = None) -> Verified:
        check_room(len(ids), self.length, self.capacity)
        parents = tree_parents(ids, parents)
        self._verified, self._parents = [], parents
        self._chosen.clear()
        depths: list[int] = []
        for row, token in enumerate(ids):
            parent = row - 1 if parents is None else parents[row]
            depths.append(depths[parent] + 1 if row else 0)
            before = self._verified[parent].recurrent if row else self._recurrent
            position = self.length + depths[row]
            hidden, recurrent, streams = self._forward([token], position, before)
            kv = () if parents is None else self._kv_at(position)
            self._verified.append(_Row(token, hidden, recurrent, kv, streams))
        return self._result([row.hidden for row in self._verified])

    @torch.inference_mode()
    def commit(self, rows: Sequence[int] | int) -> None:
        path = accepted_path(rows, len(self._verified), self._parents)
        kept = [self._verified[row] for row in path]
        self._verified = []
        self._recurrent = kept[-1].recurrent
        for position, row in enumerate(kept, self.length):
            # A later branch of the tree has written over these positions.
            for cache, (key, value) in zip(self._kv.values(), row.kv, strict=False):
                cache.keys[position], cache.values[position] = key, value
        self.length += len(kept)
        for row in kept:
            self._remember(row.hidden, [row.token])
        if self._block is not None:
            self._block.take(torch.cat([row.streams for row in kept]))

    @torch.inference_mode()
    def draft_steps(self, anchor: int, depth: int, width: int) -> list[DraftStep]:
        mtp, row, token = self._weights.mtp, self._last_hidden, anchor
        if mtp is None or row is None:
            return []
        steps = []
        first = self._mtp_kv.length
        depth, width = min(depth, MAX_DRAFT), min(width, MAX_WIDTH, self._tokens)
        for position in range(first, min(first + depth, self.capacity)):
            row = self._mtp_forward(mtp, row, [token], position)
            logits = head_logits(row, self._head)[0, : self._tokens]
            if logits.isnan().any():
                return [*steps, DraftStep((-1,) * width, (0.0,) * width)]
            values, tokens = top_k(logits, width)
            chances = (values - logits.logsumexp(-1)).exp()
            steps.append(DraftStep(tuple(tokens.tolist()), tuple(chances.tolist())))
            token = steps[-1].tokens[0]
        return steps

    def attach_block(self, block: BlockCheckpoint) -> None:
        self._block = ReferenceBlock(
            block.config,
            block.weights,
            embedding=self._weights.embed,
            head=self._head,
            tokens=self._tokens,
            capacity=self.capacity,
            dtype=self._dtype,
        )
        self.block = block

    def block_room(self) -> int:
        return 0 if self._block is None else self._block.room()

    def draft_block(self, anchor: int, width: int) -> BlockRows:
        if self._block is None:
            raise ValueError("no block drafter is attached")
        return self._block.draft(anchor, width)

    def block_bytes(self) -> int:
        return 0 if self._block is None else self._block.draft_bytes()

    def round_bytes(self, rows: int, drafted: int) -> int:
        counted = len(self._chosen) if rows == len(self._verified) else None
        return self._bytes.round_bytes(rows, drafted, self.length, experts_read=counted)

    def draft_bytes(self, steps: int) -> int:
        return self._bytes.draft_bytes(steps, self.length)

    def written_bytes(self) -> int:
        return self._bytes.state_bytes

    @torch.inference_mode()
    def suspect_layer(self) -> str:
        states = {index: each.state for index, each in self._recurrent.items()}
        return first_suspect(self._weights, self._head, states)

    def operation_times(self) -> str:
        return "PyTorch operations run, and only the native kernels are timed one by one"

    def reset_operation_times(self) -> None:
        """Nothing is timed, so there is nothing to reset."""

    def close(self) -> None:
        self._kv.clear()
        self._recurrent.clear()

    def _kv_at(self, position: int) -> tuple[tuple[Tensor, Tensor], ...]:
        """Copies of the keys and values at a position, layer by layer."""
        return tuple(
            (cache.keys[position].clone(), cache.values[position].clone())
            for cache in self._kv.values()
        )

    def _advance(self, ids: Sequence[int]) -> Tensor:
        """Commit a whole chunk; returns the hidden rows after the final norm."""
        check_room(len(ids), self.length, self.capacity)
        self._verified = []
        hidden, self._recurrent, streams = self._forward(ids, self.length, self._recurrent)
        self.length += len(ids)
        self._remember(hidden, ids)
        if self._block is not None:
            self._block.take(streams)
        return hidden

    def _remember(self, hidden: Tensor, ids: Sequence[int]) -> None:
        """Bring the MTP cache in step with newly committed rows: it holds all positions but the last."""
        mtp, before = self._weights.mtp, self._last_hidden
        if mtp is None or not self._speculate:
            return
        self._last_hidden = hidden[-1:].clone()
        paired, following = hidden[:-1], ids[1:]
        if before is not None:
            paired, following = torch.cat((before, paired)), ids
        if len(following):
            self._mtp_forward(mtp, paired, following, self._mtp_kv.length)
            self._mtp_kv.length += len(following)

    def _result(self, hidden: list[Tensor]) -> Verified:
        logits = torch.cat([head_logits(row, self._head) for row in hidden])[:, : self._tokens]
        best = logits.argmax(-1)
        best[logits.isnan().any(-1)] = -1
        return Verified(best.tolist(), logits.numpy())

    def _forward(
        self, ids: Sequence[int], start: int, recurrent: dict[int, RecurrentState]
    ) -> tuple[Tensor, dict[int, RecurrentState], Tensor]:
        """Rows from position `start`: hidden [T, hidden] after the final norm, and the states after them.

        The third are the residual streams [T, taps * hidden] that a block drafter reads.
        """
        config, weights = self.config, self._weights
        positions = torch.arange(start, start + len(ids))
        rope = rope_tables(positions, config.rotary_dim, config.rope_theta, self._dtype)
        residual = embed(weights.embed, torch.tensor(ids))
        normed = rms_norm(residual, weights.layers[0].input_norm, config.rms_eps)
        after: dict[int, RecurrentState] = {}
        wanted = () if self._block is None else self._block.config.streams
        kept = [residual] if 0 in wanted else []
        for index, layer in enumerate(weights.layers):
            if isinstance(layer, GdnLayerWeights):
                mixed, after[index] = self._gdn(layer, recurrent[index], normed)
            else:
                mixed = self._attention(layer, self._kv[index], normed, rope, start)
            residual, normed = add_rms_norm(residual, mixed, layer.post_norm, config.rms_eps)
            last = index + 1 == len(weights.layers)
            norm = weights.final_norm if last else weights.layers[index + 1].input_norm
            chosen: set[int] = set()
            out = mlp(layer, normed, config.experts_per_token, chosen)
            self._chosen |= {(index, expert) for expert in chosen}
            residual, normed = add_rms_norm(residual, out, norm, config.rms_eps)
            if index + 1 in wanted:
                kept.append(residual)
        return normed, after, torch.cat(kept, -1) if kept else residual[:, :0]

    def _gdn(
        self, layer: GdnLayerWeights, recurrent: RecurrentState, x: Tensor
    ) -> tuple[Tensor, RecurrentState]:
        config = self.config
        rows = x.shape[0]
        raw = _apply(layer.in_qkv, x)
        mixed, tail = causal_conv(raw, layer.conv, recurrent.tail)
        q, k, v = mixed.split((config.key_width, config.key_width, config.value_width), dim=-1)
        q = q.view(rows, config.key_heads, config.key_dim)
        k = k.view(rows, config.key_heads, config.key_dim)
        v = v.view(rows, config.value_heads, config.value_dim)
        g = decay_log(_apply(layer.in_a, x), layer.a_log, layer.dt_bias)
        strength = beta(_apply(layer.in_b, x))
        if rows == 1:
            state, out = gated_delta_step(recurrent.state, q[0], k[0], v[0], g[0], strength[0])
            o = out[None]
        else:
            o, state = gated_delta_chunked(recurrent.state, q, k, v, g, strength)
        z = _apply(layer.in_z, x).view(rows, config.value_heads, config.value_dim)
        y = gated_rms_norm(o, z, layer.gdn_norm, config.rms_eps)
        return _apply(layer.out, y.reshape(rows, -1)), RecurrentState(state, tail.clone())

    def _attention(
        self,
        layer: AttentionLayerWeights,
        cache: KvCache,
        x: Tensor,
        rope: tuple[Tensor, Tensor],
        start: int,
    ) -> Tensor:
        config = self.config
        rows = x.shape[0]
        query_gate = _apply(layer.q, x).view(rows, config.attention_heads, 2 * config.head_dim)
        query, gate = query_gate.chunk(2, dim=-1)
        key = _apply(layer.k, x).view(rows, config.kv_heads, config.head_dim)
        value = _apply(layer.v, x).view(rows, config.kv_heads, config.head_dim)
        query = apply_rope(rms_norm(query, layer.q_norm, config.rms_eps), *rope)
        key = apply_rope(rms_norm(key, layer.k_norm, config.rms_eps), *rope)
        keys, values = cache.write(key, value, start)
        attended = attention(query, keys, values, start, config.head_dim**-0.5)
        gated = output_gate(attended, gate).reshape(rows, -1)
        return _apply(layer.o, gated)

    def _mtp_forward(
        self, mtp: MtpWeights, hidden: Tensor, next_ids: Sequence[int], start: int
    ) -> Tensor:
        """MTP rows [T, hidden] for (hidden of position p, token of position p + 1), p from start."""
        eps = self.config.rms_eps
        embedded = embed(self._weights.embed, torch.tensor(next_ids))
        pair = torch.cat(
            (
                rms_norm(embedded, mtp.norm_embedding, eps),
                rms_norm(hidden, mtp.norm_hidden, eps),
            ),
            dim=-1,
        )
        residual = _apply(mtp.fc, pair)
        positions = torch.arange(start, start + len(next_ids))
        rope = rope_tables(positions, self.config.rotary_dim, self.config.rope_theta, self._dtype)
        normed = rms_norm(residual, mtp.layer.input_norm, eps)
        mixed = self._attention(mtp.layer, self._mtp_kv, normed, rope, start)
        residual, normed = add_rms_norm(residual, mixed, mtp.layer.post_norm, eps)
        out = mlp(mtp.layer, normed, self.config.experts_per_token)
        return add_rms_norm(residual, out, mtp.norm, eps)[1]


def _apply(weight: Dense, x: Tensor) -> Tensor:
    return linear(x, weight.weight)
