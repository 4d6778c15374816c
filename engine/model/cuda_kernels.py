# SPDX-License-Identifier: MIT OR Apache-2.0
"""The operations of a GPU pass through the Triton kernels; a switch that is off goes through PyTorch.

Import it where Triton is wanted alone: on a machine without a GPU the kernels run in Triton's interpreter
(TRITON_INTERPRET=1), which tests do.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.model import cuda_plain as plain
from engine.model.backend import VERIFY_ROWS
from engine.model.config import ModelConfig
from engine.model.cuda_arena import (
    MAX_ROWS,
    DeltaLayer,
    DeltaRecord,
    DeltaStack,
    KvPair,
    KvStack,
    PassInputs,
    TreePaths,
)
from engine.model.cuda_ops import CudaOps
from engine.model.cuda_weights import CudaAttention, CudaDelta, Product
from kernels.attention import triton as attention
from kernels.causal_conv import triton as conv
from kernels.cuda_build import CudaLibrary
from kernels.elementwise import triton as elementwise
from kernels.embedding import triton as embedding
from kernels.gated_delta import triton as delta_kernel
from kernels.gated_delta.triton import Accepted, DeltaFactors
from kernels.head import triton as head
from kernels.kv_cache import triton as kv_cache
from kernels.rms_norm import triton as norms
from kernels.rope import triton as rope_kernel
from kernels.tree_paths import triton as tree_paths


class KernelOps(CudaOps):
    """See `CudaOps`."""

    def __init__(self, config: ModelConfig, library: CudaLibrary | None) -> None:
        super().__init__(config, library)
        self._argmax_work: tuple[Tensor, Tensor] | None = None

    def reserve(self, products: list[Product], *, device: torch.device, positions: int) -> None:
        super().reserve(products, device=device, positions=positions)
        config = self.config
        self._attention_work = attention.AttentionWork.empty(
            rows=VERIFY_ROWS,
            heads=config.attention_heads,
            dim=config.head_dim,
            longest=positions,
            device=device,
        )
        self._best_values = torch.empty(VERIFY_ROWS, device=device)
        self._convolved = torch.empty(
            MAX_ROWS, config.qkv_rows, dtype=torch.bfloat16, device=device
        )
        self._walked = torch.empty(
            MAX_ROWS, config.value_width, dtype=torch.bfloat16, device=device
        )
        self._query = torch.empty(MAX_ROWS, config.key_heads, config.key_dim, device=device)
        self._beta = torch.empty(MAX_ROWS, config.value_heads, device=device)
        self._chunk_factors = DeltaFactors.empty(
            rows=MAX_ROWS,
            key_heads=config.key_heads,
            value_heads=config.value_heads,
            key_dim=config.key_dim,
            value_dim=config.value_dim,
            device=device,
        )
        none = torch.zeros(1, dtype=torch.int32, device=device)
        self._nothing = Accepted(none, none.new_zeros(VERIFY_ROWS))

    def embed(self, table: Tensor, ids: Tensor, out: Tensor, rows: int) -> None:
        embedding.embed(table, ids[:rows], out, rows=rows)
        self.mark("embedding", rows * table.shape[1] * 2, 0)

    def norm(self, x: Tensor, weight: Tensor, out: Tensor, rows: int) -> None:
        if not self.switches.norm:
            super().norm(x, weight, out, rows)
            return
        norms.rms_norm(x, weight, out, eps=self.config.rms_eps, rows=rows)
        self._count("norm kernels")
        self.mark("rms_norm", weight.nbytes, 0)

    def add_norm(self, residual: Tensor, x: Tensor, weight: Tensor, out: Tensor, rows: int) -> None:
        switches = self.switches
        if not switches.norm:
            super().add_norm(residual, x, weight, out, rows)
        elif not switches.add_norm:
            residual[:rows] += x[:rows]
            self._count("adds and norms apart")
            self.norm(residual, weight, out, rows)
        else:
            norms.add_rms_norm(residual, x, weight, out, eps=self.config.rms_eps, rows=rows)
            self._count("norm kernels")
            self._count("add-norm kernels")
            self.mark("add_rms_norm", weight.nbytes, 0)

    def best(self, logits: Tensor, out: Tensor) -> None:
        rows, vocabulary = logits.shape
        if self._argmax_work is None:
            # At the first pass, which is never a captured one, because the vocabulary is known then.
            self._argmax_work = head.argmax_work(VERIFY_ROWS, vocabulary, logits.device)
        head.argmax(logits, out, self._best_values, self._argmax_work, rows=rows)
        self.mark("argmax", logits.nbytes, 0)

    def silu_mul(self, gate_up: Tensor, inner: Tensor, rows: int) -> None:
        elementwise.silu_mul(gate_up, inner, rows=rows)
        self.mark("silu_mul", 0, 0)

    def attention_prepare(
        self,
        layer: CudaAttention,
        projected: Tensor,
        cache: KvPair,
        *,
        rope: Tensor,
        start: Tensor,
        positions: Tensor,
        slots: Tensor,
        tree: TreePaths | None,
        out: Tensor,
        rows: int,
    ) -> None:
        if not self.switches.attention_prepare:
            super().attention_prepare(
                layer,
                projected,
                cache,
                rope=rope,
                start=start,
                positions=positions,
                slots=slots,
                tree=tree,
                out=out,
                rows=rows,
            )
            return
        config = self.config
        q_at, k_at, v_at = layer.project.offsets
        rope_kernel.attention_prepare(
            projected[:, q_at : q_at + config.q_rows],
            projected[:, k_at : k_at + config.kv_rows],
            projected[:, v_at : v_at + config.kv_rows],
            layer.q_norm,
            layer.k_norm,
            rope,
            start,
            out,
            cache.keys,
            cache.values,
            eps=config.rms_eps,
            rows=rows,
            depths=None if tree is None else tree.depths,
        )
        self._count("attention preparation kernels")
        self.mark("attention_prepare", 0, 0)

    def attention(
        self,
        layer: CudaAttention,
        projected: Tensor,
        query: Tensor,
        cache: KvPair,
        out: Tensor,
        *,
        rows: int,
        start: Tensor,
        tree: TreePaths,
        places: Tensor,
    ) -> None:
        if not self.switches.attention:
            super().attention(
                layer,
                projected,
                query,
                cache,
                out,
                rows=rows,
                start=start,
                tree=tree,
                places=places,
            )
            return
        q_at = layer.project.offsets[0]
        attention.attend(
            query,
            cache.keys,
            cache.values,
            out,
            start,
            tree.paths,
            tree.depths,
            self._attention_work,
            scale=self.config.head_dim**-0.5,
            rows=rows,
            longest=len(places),
            gated=projected[:, q_at : q_at + self.config.q_rows],
        )
        self._count("narrow attention kernels")
        self._mark_attention(rows, len(places))

    def paths_of(self, parents: Tensor, tree: TreePaths) -> None:
        tree_paths.paths_of(parents, tree.paths, tree.depths)
        self.mark("tree paths", 0, 0)

    def settle(
        self, kv: KvStack, delta: DeltaStack, record: DeltaRecord, inputs: PassInputs
    ) -> None:
        if len(kv.keys):
            keys, values = (part.flatten(0, 1) for part in (kv.keys, kv.values))
            kv_cache.move_rows(keys, values, inputs.rows, inputs.count, inputs.start)
        if len(delta.tails):
            conv.shift_tail(delta.tails, record.raw, inputs.count, inputs.rows)
        self.mark("commit rows", 0, 0)

    def delta(
        self,
        layer: CudaDelta,
        buffers: DeltaLayer,
        parity: int,
        projected: Tensor,
        gates: Tensor,
        out: Tensor,
        inputs: PassInputs,
        *,
        rows: int,
        tree: TreePaths,
        is_tree: bool,
    ) -> None:
        switches, record, before = (
            self.switches,
            buffers.records[parity],
            buffers.records[1 - parity],
        )
        raw, z, a, b = self._split_delta(layer, projected, gates, MAX_ROWS)
        record.raw[:rows] = raw[:rows]
        factors, paths = _factors(record), tree if is_tree else None
        one = rows == 1
        if switches.delta_prepare_one if one else switches.delta_prepare_more:
            self._prepare(layer, buffers, raw, a, b, factors, rows, paths)
            self._count("one-row preparation kernels" if one else "verify preparation kernels")
        else:
            self._prepare_plainly(layer, buffers, raw, a, b, record, rows, tree)
        kind = "tree" if is_tree else "one-row" if one else "chain"
        by_kernel = {"tree": switches.delta_tree, "one-row": switches.delta_one}
        if by_kernel.get(kind, switches.delta_chain):
            accepted = Accepted(inputs.count, inputs.rows)
            self._walk(buffers, factors, _factors(before), accepted, rows, paths)
            self._count(f"delta {kind} kernels")
        else:
            plain.commit(buffers.state, before, inputs.count, inputs.rows)
            width = VERIFY_ROWS
            v = self.sizes.split(self._convolved[:width])[2].float()
            operands = plain.DeltaOperands(
                self._query[:width], record.k, v, record.g, self._beta[:width]
            )
            o = plain.walk(buffers.state, operands, record, inputs.parents, rows)
            self._walked[:rows] = o.flatten(1)
            self._count(f"delta {kind} row by row")
            self.mark("gated_delta", buffers.state.nbytes, self._delta_flops(rows))
        self._gated_norm(layer, z, out, rows)

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
        if not self.switches.delta_prefill:
            super().delta_chunk(layer, buffers, projected, gates, out, rows=rows)
            return
        raw, z, a, b = self._split_delta(layer, projected, gates, MAX_ROWS)
        own, unused = self._chunk_factors, _factors(buffers.records[0])
        self._prepare(layer, buffers, raw, a, b, own, rows, None)
        count = torch.full_like(self._nothing.count, rows)
        conv.shift_tail(buffers.tail[None], raw[None, :rows], count)
        self._walk(buffers, own, unused, self._nothing, rows, None, advance=True)
        self._count("delta prefill kernels")
        self._gated_norm(layer, z, out, rows)

    def commit(self, delta: DeltaStack, record: DeltaRecord, inputs: PassInputs) -> None:
        if not self.switches.commit:
            super().commit(delta, record, inputs)
            return
        accepted = Accepted(inputs.count, inputs.rows)
        delta_kernel.commit(delta.states, _factors(record), accepted, exact=True)
        self._count("delta commit kernels")
        self.mark("delta commit", delta.states.nbytes, 0)

    def _prepare(
        self,
        layer: CudaDelta,
        buffers: DeltaLayer,
        raw: Tensor,
        a: Tensor,
        b: Tensor,
        factors: DeltaFactors,
        rows: int,
        tree: TreePaths | None,
    ) -> None:
        """Convolved rows, unit queries and keys, decay and beta."""
        conv.causal_conv(
            raw,
            layer.conv,
            buffers.tail,
            self._convolved,
            rows=rows,
            paths=None if tree is None else tree.paths,
            depths=None if tree is None else tree.depths,
        )
        delta_kernel.delta_operands(self._convolved, self._query, factors.k, rows=rows)
        elementwise.delta_gates(a, b, layer.a_log, layer.dt_bias, factors.g, self._beta, rows=rows)
        self.mark("delta_prepare", layer.conv.nbytes, 0)

    def _prepare_plainly(
        self,
        layer: CudaDelta,
        buffers: DeltaLayer,
        raw: Tensor,
        a: Tensor,
        b: Tensor,
        record: DeltaRecord,
        rows: int,
        tree: TreePaths,
    ) -> None:
        """The same through PyTorch."""
        width = VERIFY_ROWS
        mixed = plain.convolved(raw[:width], buffers.tail, layer.conv, tree)
        operands = plain.delta_operands(
            mixed, a[:width], b[:width], layer.a_log, layer.dt_bias, self.sizes
        )
        self._convolved[:width] = mixed
        self._query[:width], self._beta[:width] = operands.q, operands.beta
        record.k[:rows], record.g[:rows] = operands.k[:rows], operands.g[:rows]
        self._count(f"{'one-row' if rows == 1 else 'verify'} preparation by PyTorch")
        self.mark("delta_prepare", layer.conv.nbytes, 0)

    def _walk(
        self,
        buffers: DeltaLayer,
        factors: DeltaFactors,
        old: DeltaFactors,
        accepted: Accepted,
        rows: int,
        tree: TreePaths | None,
        *,
        advance: bool = False,
    ) -> None:
        delta_kernel.walk(
            buffers.state,
            self._query,
            factors,
            self._convolved[:, 2 * self.config.key_width :],
            self._beta,
            self._walked,
            rows=rows,
            advance=advance,
            accepted=accepted,
            accepted_factors=old,
            paths=None if tree is None else tree.paths,
            depths=None if tree is None else tree.depths,
        )
        self.mark("gated_delta", buffers.state.nbytes, self._delta_flops(rows))

    def _gated_norm(self, layer: CudaDelta, z: Tensor, out: Tensor, rows: int) -> None:
        eps = self.config.rms_eps
        norms.gated_rms_norm(self._walked, z, layer.gdn_norm, out, eps=eps, rows=rows)
        self.mark("gated norm", layer.gdn_norm.nbytes, 0)


def _factors(record: DeltaRecord) -> DeltaFactors:
    return DeltaFactors(record.k, record.u, record.g, record.gc)
