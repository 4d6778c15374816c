# SPDX-License-Identifier: MIT OR Apache-2.0
"""The operations of a GPU pass over static buffers, each by the way the switches ask for.

A kernel where there is one for this device, and PyTorch otherwise (`engine.model.cuda_plain`). Counters say
which way was taken. On a CPU, where tests run the same forward, everything goes through PyTorch.
"""

from __future__ import annotations

from dataclasses import fields

from torch import Tensor

from engine.model import cuda_plain as plain
from engine.model.backend import VERIFY_ROWS
from engine.model.config import ModelConfig
from engine.model.cuda_arena import (
    DeltaLayer,
    DeltaRecord,
    DeltaStack,
    KvPair,
    KvStack,
    PassInputs,
    TreePaths,
)
from engine.model.cuda_pass import Pass
from engine.model.cuda_products import Products
from engine.model.cuda_weights import CudaAttention, CudaDelta, Projection
from kernels.attention.prefill import causal_bias
from kernels.causal_conv.reference import causal_conv
from kernels.cuda_build import CudaLibrary
from kernels.elementwise.reference import beta, silu_mul
from kernels.gated_delta.reference import decay_log, gated_delta_chunked
from kernels.rms_norm.reference import add_rms_norm, rms_norm
from kernels.tree_paths.reference import tree_paths


class CudaOps(Products):
    """One set for one backend; every method puts its work on the current stream and waits for nothing.

    Rows of buffers may be more than the rows asked for: those behind are garbage afterwards. `paths` counts the
    ways taken, `mark(name, bytes_read, flops)` is called behind each operation.
    """

    def __init__(self, config: ModelConfig, library: CudaLibrary | None) -> None:
        """`library`: the compiled kernels; None on a CPU."""
        super().__init__(library)
        causal_bias()  # imported here, so that no first prompt waits for it
        self.config = config
        self.sizes = plain.DeltaSizes(
            config.key_heads, config.value_heads, config.key_dim, config.value_dim
        )

    def embed(self, table: Tensor, ids: Tensor, out: Tensor, rows: int) -> None:
        """out[r] = the embedding of ids[r]; NaN for a negative id."""
        count = plain.computed_rows(rows)
        plain.embed(table, ids[:count], out[:count])
        self.mark("embedding", rows * table.shape[1] * 2, 0)

    def norm(self, x: Tensor, weight: Tensor, out: Tensor, rows: int) -> None:
        """out = the zero-centred RMS norm of x."""
        count = plain.computed_rows(rows)
        out[:count] = rms_norm(x[:count], weight, self.config.rms_eps)
        self._count("norms by PyTorch")
        self.mark("rms_norm", weight.nbytes, 0)

    def add_norm(self, residual: Tensor, x: Tensor, weight: Tensor, out: Tensor, rows: int) -> None:
        """residual += x; out = the norm of the rounded sum."""
        count = plain.computed_rows(rows)
        total, normed = add_rms_norm(residual[:count], x[:count], weight, self.config.rms_eps)
        residual[:count] = total
        out[:count] = normed
        self._count("norms by PyTorch")
        self.mark("add_rms_norm", weight.nbytes, 0)

    def project(
        self, projection: Projection, x: Tensor, out: Tensor, rows: int, *, name: str
    ) -> None:
        """The products of x into the columns of out from 0 to the projection's width."""
        if len(projection.offsets) > 1:
            self._count(f"{'joined' if projection.is_joined else 'separate'} {name}")
        for product, column in projection.products:
            self.product(product, x, out[:, column : column + product.outputs], rows)
            self.mark(name, product.nbytes, 2 * rows * product.outputs * product.inputs)

    def head(self, head: Projection, x: Tensor, logits: Tensor, rows: int, *, name: str) -> None:
        """float32 logits of 1 to 32 rows."""
        ((product, _),) = head.products
        found = logits[:rows, : product.outputs]
        if (rows > 1 or self.switches.head) and self.head_by_kernel(product, x, found, rows):
            self._count("one-row head kernels" if rows == 1 else "head kernels")
        else:
            logits[:, : product.outputs] = self.sums(product, x[:VERIFY_ROWS])
            self._count("heads by PyTorch")
        self.mark(name, product.nbytes, 2 * rows * product.outputs * product.inputs)

    def best(self, logits: Tensor, out: Tensor) -> None:
        """out int32 [R] = the best token of every row of logits [R, tokens]."""
        out.copy_(plain.best_tokens(logits))
        self.mark("argmax", logits.nbytes, 0)

    def top(self, logits: Tensor, ids: Tensor, figures: Tensor, width: int) -> None:
        """The best tokens of one row of logits and their values; figures[-1] = the logarithm of its sum."""
        ids[:width], figures[:width] = plain.top_tokens(logits, width)
        figures[-1:] = logits.logsumexp(-1, keepdim=True)
        self.mark("top tokens", logits.nbytes, 0)

    def silu_mul(self, gate_up: Tensor, inner: Tensor, rows: int) -> None:
        """inner = silu(gate) * up, which lie side by side."""
        count, size = plain.computed_rows(rows), inner.shape[1]
        inner[:count] = silu_mul(gate_up[:count, :size], gate_up[:count, size : 2 * size])
        self.mark("silu_mul", 0, 0)

    def attention_prepare(
        self,
        layer: CudaAttention,
        projected: Tensor,
        cache: KvPair,
        here: Pass,
        *,
        rope: Tensor,
        out: Tensor,
    ) -> None:
        """Queries into out, keys and values into the cache."""
        query, _, key, value = self._split_attention(layer, projected, here.rows)
        plain.attention_prepare(
            query,
            key,
            value,
            q_norm=layer.q_norm,
            k_norm=layer.k_norm,
            rope=rope,
            positions=here.positions,
            slots=here.slots,
            cache=cache,
            out=out[: len(query)],
            eps=self.config.rms_eps,
        )
        self._count("attention preparation by PyTorch")
        self.mark("attention_prepare", 0, 0)

    def attention(
        self,
        layer: CudaAttention,
        projected: Tensor,
        query: Tensor,
        cache: KvPair,
        out: Tensor,
        here: Pass,
    ) -> None:
        """Gated attention of rows to verify."""
        rows, places = here.rows, here.places
        count = plain.computed_rows(rows)
        _, gate, _, _ = self._split_attention(layer, projected, rows)
        plain.attention(
            query[:count],
            gate,
            cache,
            rows=rows,
            start=here.start,
            paths=here.tree.paths,
            places=places,
            out=out[:count],
        )
        self._count("narrow attention by PyTorch")
        self._mark_attention(rows, len(places))

    def attention_of_chunk(
        self,
        layer: CudaAttention,
        projected: Tensor,
        query: Tensor,
        cache: KvPair,
        out: Tensor,
        here: Pass,
    ) -> None:
        """The same for a prompt chunk of more than 32 rows."""
        rows, first = here.rows, here.first
        assert first is not None
        _, gate, _, _ = self._split_attention(layer, projected, rows)
        plain.attention_of_chunk(query[:rows], gate[:rows], cache, start=first, out=out[:rows])
        self._count("wide attention by PyTorch")
        self._mark_attention(rows, first + rows)

    def paths_of(self, parents: Tensor, tree: TreePaths) -> None:
        """tree = the paths and depths of a pass's parents, on the device."""
        paths, depths = tree_paths(parents)
        tree.paths.copy_(paths)
        tree.depths.copy_(depths)
        self.mark("tree paths", 0, 0)

    def settle(
        self,
        kv: KvStack,
        delta: DeltaStack,
        record: DeltaRecord,
        inputs: PassInputs,
    ) -> None:
        """Bring the pending rows of the pass before into caches and tails; `record` has the layers in front."""
        flat = (part.flatten(0, 1) for part in (kv.keys, kv.values))
        plain.move_rows(*flat, inputs.rows, inputs.count, inputs.start)
        plain.shift_tail(delta.tails, record.raw, inputs.count, inputs.rows)
        self.mark("commit rows", 0, 0)

    def commit(self, delta: DeltaStack, record: DeltaRecord, inputs: PassInputs) -> None:
        """Apply pending rows to the states of all layers; `record` has the layers in front."""
        for layer in range(len(delta.states)):
            before = DeltaRecord(*(getattr(record, each.name)[layer] for each in fields(record)))
            plain.commit(delta.states[layer], before, inputs.count, inputs.rows)
        self._count("delta commit row by row")
        self.mark("delta commit", delta.states.nbytes, 0)

    def delta(
        self,
        layer: CudaDelta,
        buffers: DeltaLayer,
        projected: Tensor,
        gates: Tensor,
        out: Tensor,
        inputs: PassInputs,
        here: Pass,
    ) -> None:
        """Convolution, recurrence and gated norm of rows to verify.

        Pending rows are applied to the state from the record that the pass's parity does not own; this pass's
        rows are recorded in the other one and leave the state as it is.
        """
        rows, record, before = here.rows, *here.records(buffers)
        raw, z, a, b = self._split_delta(layer, projected, gates, VERIFY_ROWS)
        mixed = plain.convolved(raw, buffers.tail, layer.conv, here.tree)
        record.raw[:rows] = raw[:rows]
        operands = plain.delta_operands(mixed, a, b, layer.a_log, layer.dt_bias, self.sizes)
        plain.commit(buffers.state, before, inputs.count, inputs.rows)
        o = plain.walk(buffers.state, operands, record, inputs.parents, rows)
        plain.gated_norm(o, z[:rows], layer.gdn_norm, self.config.rms_eps, out[:rows])
        self._count(f"delta {here.kind} row by row")
        self.mark("gated_delta", buffers.state.nbytes, self._delta_flops(rows))

    def delta_chunk(
        self,
        layer: CudaDelta,
        buffers: DeltaLayer,
        projected: Tensor,
        gates: Tensor,
        out: Tensor,
        *,
        rows: int,
    ) -> None:
        """The same for a prompt chunk, whose rows are all committed to the state."""
        raw, z, a, b = self._split_delta(layer, projected, gates, rows)
        mixed, tail = causal_conv(raw, layer.conv, buffers.tail)
        q, k, v = self.sizes.split(mixed)
        decay = decay_log(a, layer.a_log, layer.dt_bias)
        chunk = self.switches.prefill_chunk
        o, state = gated_delta_chunked(buffers.state, q, k, v, decay, beta(b), chunk)
        buffers.tail.copy_(tail)
        buffers.state.copy_(state)
        plain.gated_norm(o, z, layer.gdn_norm, self.config.rms_eps, out[:rows])
        self._count("delta prefill by a solve")
        self.mark("gated_delta", buffers.state.nbytes, self._delta_flops(rows))

    def _split_attention(
        self, layer: CudaAttention, projected: Tensor, rows: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(query, gate [R, Hq, D], key, value [R, Hkv, D]) of the projected rows."""
        config, count = self.config, plain.computed_rows(rows)
        q_at, k_at, v_at = layer.project.offsets
        both = projected[:count, q_at : q_at + config.q_rows]
        both = both.unflatten(1, (config.attention_heads, 2, config.head_dim))
        key, value = (
            projected[:count, at : at + config.kv_rows].unflatten(1, (config.kv_heads, -1))
            for at in (k_at, v_at)
        )
        return both[:, :, 0], both[:, :, 1], key, value

    def _split_delta(
        self, layer: CudaDelta, projected: Tensor, gates: Tensor, count: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(raw [R, channels], z [R, Hv * dv], a, b [R, Hv]) of the projected rows."""
        config, heads = self.config, self.config.value_heads
        raw_at, z_at = layer.project.offsets
        b_at, a_at = layer.gates.offsets
        raw = projected[:count, raw_at : raw_at + config.qkv_rows]
        z = projected[:count, z_at : z_at + config.value_width]
        return raw, z, gates[:count, a_at : a_at + heads], gates[:count, b_at : b_at + heads]

    def _mark_attention(self, rows: int, seen: int) -> None:
        config = self.config
        flops = 4 * rows * seen * config.attention_width
        self.mark("attention", 4 * seen * config.kv_rows, flops)

    def _delta_flops(self, rows: int) -> int:
        config = self.config
        return 8 * rows * config.value_heads * config.key_dim * config.value_dim
