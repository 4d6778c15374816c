# SPDX-License-Identifier: MIT OR Apache-2.0
"""The operations of a GPU pass through the Triton kernels; a switch that is off goes through PyTorch.

Import it where Triton is wanted alone: on a machine without a GPU the kernels run in Triton's interpreter
(TRITON_INTERPRET=1), which tests do.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.model.backend import VERIFY_ROWS
from engine.model.config import ModelConfig
from engine.model.cuda_arena import (
    DeltaRecord,
    DeltaStack,
    KvPair,
    KvStack,
    PassInputs,
    TreePaths,
)
from engine.model.cuda_kernel_delta import KernelDelta
from engine.model.cuda_kernel_products import KernelProducts
from engine.model.cuda_pass import Pass
from engine.model.cuda_weights import CudaAttention, Product, Projection
from kernels.attention import triton as attention
from kernels.causal_conv import triton as conv
from kernels.cuda_build import CudaLibrary
from kernels.elementwise import triton as elementwise
from kernels.embedding import triton as embedding
from kernels.head import triton as head
from kernels.kv_cache import triton as kv_cache
from kernels.rms_norm import triton as norms
from kernels.rope import triton as rope_kernel
from kernels.tree_paths import triton as tree_paths


class KernelOps(KernelProducts, KernelDelta):
    """See `CudaOps`."""

    def __init__(self, config: ModelConfig, library: CudaLibrary | None) -> None:
        super().__init__(config, library)
        self._argmax_work: tuple[Tensor, Tensor] | None = None

    def reserve(
        self, products: list[Product], head: Projection, *, device: torch.device, positions: int
    ) -> None:
        super().reserve(products, head, device=device, positions=positions)
        config = self.config
        self._attention_work = attention.AttentionWork.empty(
            rows=VERIFY_ROWS,
            heads=config.attention_heads,
            dim=config.head_dim,
            longest=positions,
            device=device,
        )
        self._best_values = torch.empty(VERIFY_ROWS, device=device)

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
        here: Pass,
        *,
        rope: Tensor,
        out: Tensor,
    ) -> None:
        if not self.switches.attention_prepare:
            super().attention_prepare(layer, projected, cache, here, rope=rope, out=out)
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
            here.start,
            out,
            cache.keys,
            cache.values,
            eps=config.rms_eps,
            rows=here.rows,
            depths=None if here.above is None else here.above.depths,
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
        here: Pass,
    ) -> None:
        if not self.switches.attention:
            super().attention(layer, projected, query, cache, out, here)
            return
        q_at = layer.project.offsets[0]
        attention.attend(
            query,
            cache.keys,
            cache.values,
            out,
            here.start,
            here.tree.paths,
            here.tree.depths,
            self._attention_work,
            scale=self.config.head_dim**-0.5,
            rows=here.rows,
            longest=len(here.places),
            gated=projected[:, q_at : q_at + self.config.q_rows],
        )
        self._count("narrow attention kernels")
        self._mark_attention(here.rows, len(here.places))

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
