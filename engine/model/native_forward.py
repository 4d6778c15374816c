# SPDX-License-Identifier: MIT OR Apache-2.0
"""Issues the native operations of a pass, layer by layer, onto a tape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from engine.model.arena import Arena, delta_shape
from engine.model.config import ModelConfig
from engine.model.native_weights import (
    NativeAttention,
    NativeDelta,
    NativeWeights,
)
from engine.model.steps import attention, attention_prepare, delta_prepare, gated_delta, rms_norm
from kernels.embedding.native import embed
from kernels.head.native import argmax, log_sum_exp, top_k
from kernels.kv_cache.native import KvCache
from kernels.tape import Tape


@dataclass(frozen=True, slots=True)
class NativeForward:
    """One model's weights over one arena; every method appends to a tape and runs nothing itself."""

    config: ModelConfig
    weights: NativeWeights
    arena: Arena
    tokens: int  # ids that exist; columns of the logits behind them are padding

    def trunk(
        self,
        tape: Tape,
        *,
        rows: int,
        parity: int,
        advance: bool,
        tree: bool = False,
        tap: Callable[[int], Tensor | None] = lambda stream: None,
        after_layer: Callable[[Tape, int, str], None] | None = None,
    ) -> None:
        """Embedding to final norm of `rows` rows, left in arena.hidden.

        `parity`: the record set this pass owns; rows pending from the other one are committed first.
        `advance` commits every row at once instead of recording them. `tree`: the rows are nodes with the
        parents in arena.parents. `tap(i)` is where the residual stream that enters layer i goes instead of
        arena.residual, to be kept (i = layers: the one that leaves the model). `after_layer(tape, layer,
        part)` is called behind each mixer and each MLP, for diagnosis without taps.
        """
        arena, config, layers = self.arena, self.config, self.weights.layers
        stream = _or(tap(0), arena.residual)
        embed(tape, table=self.weights.embed, ids=arena.ids, out=stream, rows=rows)
        self._norm(tape, stream, layers[0].input_norm, arena.normed, rows)
        for index, layer in enumerate(layers):
            if isinstance(layer, NativeDelta):
                self._delta(tape, index, layer, rows, parity=parity, advance=advance, tree=tree)
            else:
                self._attention(
                    tape,
                    layer,
                    arena.kv[index],
                    start=arena.start,
                    rows=rows,
                    committing=True,
                    tree=tree,
                )
            self._add_norm(tape, layer.post_norm, arena.normed, rows, residual=stream)
            if after_layer:
                after_layer(tape, index, "mixer")
            last = index + 1 == config.layers
            norm = self.weights.final_norm if last else layers[index + 1].input_norm
            self._mlp(tape, layer, index, rows)
            stream = _or(tap(index + 1), arena.residual)
            normed = arena.hidden if last else arena.normed
            self._add_norm(tape, norm, normed, rows, total=stream)
            if after_layer:
                after_layer(tape, index, "MLP")

    def flush(self, tape: Tape, *, parity: int) -> None:
        """Apply the pending rows to every state and cache, without a pass."""
        projected = self.arena.projected
        for index, layer in enumerate(self.weights.layers):
            if isinstance(layer, NativeDelta):
                self._mix(tape, index, layer, projected, rows=0, parity=parity, advance=True)
            else:
                self._prepare(
                    tape, layer, self.arena.kv[index], self.arena.start, 0, committing=True
                )

    def head(self, tape: Tape, hidden: Tensor, rows: int) -> None:
        """Logits and the best token of `rows` rows of `hidden`, into arena.logits and arena.best."""
        arena = self.arena
        self.weights.head.append(tape, hidden, arena.logits, rows, name="head")
        self._argmax(tape, arena.best, rows)

    def mtp(
        self, tape: Tape, *, rows: int, hidden: Tensor, next_ids: Tensor, start: Tensor
    ) -> None:
        """MTP rows of (hidden row, next token) pairs, left in arena.mtp_hidden."""
        arena, mtp = self.arena, self.weights.mtp
        assert mtp is not None
        assert arena.mtp_kv is not None
        width = self.config.hidden_size
        embed(tape, table=self.weights.embed, ids=next_ids, out=arena.mixed, rows=rows)
        self._norm(tape, arena.mixed, mtp.norm_embedding, arena.mtp_pair[:, :width], rows)
        self._norm(tape, hidden, mtp.norm_hidden, arena.mtp_pair[:, width:], rows)
        mtp.fc.append(tape, arena.mtp_pair, arena.residual, rows, name="mtp fc")
        self._norm(tape, arena.residual, mtp.layer.input_norm, arena.normed, rows)
        self._attention(
            tape,
            mtp.layer,
            arena.mtp_kv,
            start=start,
            rows=rows,
            committing=False,
        )
        self._add_norm(tape, mtp.layer.post_norm, arena.normed, rows)
        self._mlp(tape, mtp.layer, self.config.layers, rows)
        self._add_norm(tape, mtp.norm, arena.mtp_hidden, rows)

    def draft(self, tape: Tape, *, rows: int, steps: int, width: int) -> None:
        """`rows` pairs brought into the MTP cache, then `steps` tokens drafted in a chain.

        The hidden rows are arena.mtp_waiting; every further step feeds the MTP's own normed row back. Each
        step leaves its `width` best tokens, their logits and the logarithm that makes them probabilities.
        """
        arena = self.arena
        self.mtp(
            tape,
            rows=rows,
            hidden=arena.mtp_waiting,
            next_ids=arena.mtp_next,
            start=arena.mtp_start[:1],
        )
        last = arena.mtp_hidden[rows - 1 :]
        for step in range(steps):
            self.weights.head.append(tape, last, arena.logits, 1, name="draft head")
            first = slice(step * width, (step + 1) * width)
            ids, values = arena.draft_ids[first], arena.draft_values[first]
            logits = arena.logits[:, : self.tokens]
            if width == 1:
                argmax(tape, logits=logits, ids=ids, values=values, rows=1)
            else:
                best = ids.view(1, width), values.view(1, width)
                top_k(tape, logits=logits, ids=best[0], values=best[1], rows=1)
            log_sum_exp(tape, logits=logits, sums=arena.draft_sums[step : step + 1], rows=1)
            if step + 1 < steps:
                self.mtp(
                    tape,
                    rows=1,
                    hidden=last,
                    next_ids=ids[:1],
                    start=arena.mtp_start[step + 1 : step + 2],
                )
                last = arena.mtp_hidden

    def _delta(
        self,
        tape: Tape,
        index: int,
        layer: NativeDelta,
        rows: int,
        *,
        parity: int,
        advance: bool,
        tree: bool,
    ) -> None:
        arena, value_width = self.arena, self.config.value_width
        projected = arena.projected if advance else arena.delta[index].projected[parity]
        layer.project.append(tape, arena.normed, projected, rows, barrier=False, name="delta in")
        layer.gates.append(tape, arena.normed, arena.gates, rows, name="delta gates")
        self._mix(
            tape, index, layer, projected, rows=rows, parity=parity, advance=advance, tree=tree
        )
        layer.out.append(tape, arena.attended[:, :value_width], arena.mixed, rows, name="delta out")

    def _mix(
        self,
        tape: Tape,
        index: int,
        layer: NativeDelta,
        projected: Tensor,
        *,
        rows: int,
        parity: int,
        advance: bool,
        tree: bool = False,
    ) -> None:
        """Convolution, recurrence and gated norm; commits what is pending, also with 0 rows."""
        arena, config = self.arena, self.config
        shape, buffers = delta_shape(config), arena.delta[index]
        channels, value_width = config.qkv_rows, config.value_width
        z_at, b_at, a_at = layer.project.offsets[1], *layer.gates.offsets
        heads = config.value_heads
        record = None if advance else buffers.records[parity]
        work = arena.delta_work if advance else arena.verify_work
        parents = arena.parents if tree else None
        delta_prepare(
            tape,
            shape=shape,
            raw=projected[:, :channels],
            a=arena.gates[:, a_at : a_at + heads],
            b=arena.gates[:, b_at : b_at + heads],
            weights=layer.small,
            state=buffers.state,
            work=work,
            rows=rows,
            record=record,
            pending=arena.pending,
            pending_raw=buffers.projected[1 - parity][:, :channels],
            parents=parents,
        )
        gated_delta(
            tape,
            shape=shape,
            state=buffers.state,
            work=work,
            z=projected[:, z_at : z_at + value_width],
            norm_weight=layer.gdn_norm,
            out=arena.attended[:, :value_width],
            eps=config.rms_eps,
            rows=rows,
            record=record,
            pending=arena.pending,
            pending_record=buffers.records[1 - parity],
            parents=parents,
        )

    def _attention(
        self,
        tape: Tape,
        layer: NativeAttention,
        cache: KvCache,
        *,
        start: Tensor,
        rows: int,
        committing: bool,
        tree: bool = False,
    ) -> None:
        arena, config = self.arena, self.config
        layer.project.append(tape, arena.normed, arena.projected, rows, name="attention in")
        query = self._prepare(tape, layer, cache, start, rows, committing=committing, tree=tree)
        width = config.attention_width
        attention(
            tape,
            q=arena.query,
            cache=cache,
            start=start,
            out=arena.attended[:, :width],
            scale=config.head_dim**-0.5,
            rows=rows,
            gated=query,
            parents=arena.parents if tree else None,
        )
        layer.out.append(tape, arena.attended[:, :width], arena.mixed, rows, name="attention out")

    def _prepare(
        self,
        tape: Tape,
        layer: NativeAttention,
        cache: KvCache,
        start: Tensor,
        rows: int,
        *,
        committing: bool,
        tree: bool = False,
    ) -> Tensor:
        """Queries into arena.query, keys and values into the cache; moves what is pending, also with 0 rows.

        Returns the projected queries with their gates.
        """
        arena, config = self.arena, self.config
        q_at, k_at, v_at = layer.project.offsets
        query = arena.projected[:, q_at : q_at + config.q_rows]
        attention_prepare(
            tape,
            q=query,
            k=arena.projected[:, k_at : k_at + config.kv_rows],
            v=arena.projected[:, v_at : v_at + config.kv_rows],
            q_scale=layer.q_norm,
            k_scale=layer.k_norm,
            table=self.weights.rope,
            cache=cache,
            start=start,
            q_out=arena.query,
            eps=config.rms_eps,
            rows=rows,
            pending=arena.pending if committing else None,
            parents=arena.parents if tree else None,
        )
        return query

    def _mlp(self, tape: Tape, layer: NativeDelta | NativeAttention, index: int, rows: int) -> None:
        """The MLP of arena.normed into arena.mixed; `index`: of the layer, the MTP layer behind the last."""
        arena, mlp = self.arena, layer.mlp
        if layer.moe is not None:
            assert arena.moe is not None
            distinct = arena.moe.distinct[index : index + 1]
            layer.moe.append(tape, arena.normed, arena.moe, rows, distinct)
        mlp.append_inner(tape, arena.normed, arena.gate_up, arena.inner, rows)
        mlp.down.append(tape, arena.inner, arena.mixed, rows, name="MLP down")
        if layer.moe is not None:
            layer.moe.append_sum(tape, arena.moe, arena.mixed, rows)

    def _norm(self, tape: Tape, x: Tensor, scale: Tensor, out: Tensor, rows: int) -> None:
        rms_norm(tape, x=x, scale=scale, out=out, eps=self.config.rms_eps, rows=rows)

    def _add_norm(
        self,
        tape: Tape,
        scale: Tensor,
        out: Tensor,
        rows: int,
        *,
        residual: Tensor | None = None,
        total: Tensor | None = None,
    ) -> None:
        """total = residual + arena.mixed, and the norm of the sum; both are arena.residual by default."""
        arena = self.arena
        rms_norm(
            tape,
            x=arena.mixed,
            scale=scale,
            out=out,
            eps=self.config.rms_eps,
            rows=rows,
            residual=_or(residual, arena.residual),
            total=_or(total, arena.residual),
            name="add_rms_norm",
        )

    def _argmax(self, tape: Tape, ids: Tensor, rows: int) -> None:
        logits = self.arena.logits[:, : self.tokens]
        argmax(tape, logits=logits, ids=ids, rows=rows)


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    return other if tensor is None else tensor
