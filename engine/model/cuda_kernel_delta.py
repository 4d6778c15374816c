# SPDX-License-Identifier: MIT OR Apache-2.0
"""The gated delta layers of a GPU pass in Triton kernels; a switch that is off goes through PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.model import cuda_plain as plain
from engine.model.backend import VERIFY_ROWS
from engine.model.cuda_arena import (
    MAX_ROWS,
    DeltaLayer,
    DeltaRecord,
    DeltaStack,
    PassInputs,
    TreePaths,
)
from engine.model.cuda_ops import CudaOps
from engine.model.cuda_pass import Pass
from engine.model.cuda_weights import CudaDelta, Product, Projection
from kernels.causal_conv import triton as conv
from kernels.elementwise import triton as elementwise
from kernels.gated_delta import triton as delta_kernel
from kernels.gated_delta import triton_chunks as chunks
from kernels.gated_delta import triton_tree as tree_kernel
from kernels.gated_delta.triton_chunks import Solved
from kernels.gated_delta.triton_pass import Accepted, DeltaFactors, DeltaPass
from kernels.rms_norm import triton as norms


class KernelDelta(CudaOps):
    """See `CudaOps`."""

    def reserve(
        self, products: list[Product], head: Projection, *, device: torch.device, positions: int
    ) -> None:
        super().reserve(products, head, device=device, positions=positions)
        config = self.config
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
        self._solved = Solved.empty(rows=MAX_ROWS, value_heads=config.value_heads, device=device)
        none = torch.zeros(1, dtype=torch.int32, device=device)
        self._nothing = Accepted(none, none.new_zeros(VERIFY_ROWS))

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
        switches, rows, kind, paths = self.switches, here.rows, here.kind, here.above
        record, before = here.records(buffers)
        raw, z, a, b = self._split_delta(layer, projected, gates, MAX_ROWS)
        record.raw[:rows] = raw[:rows]
        factors, single = _factors(record), rows == 1
        if switches.delta_prepare_one if single else switches.delta_prepare_more:
            self._prepare(layer, buffers, raw, a, b, factors, rows, paths)
            self._count("one-row preparation kernels" if single else "verify preparation kernels")
        else:
            self._prepare_plainly(layer, buffers, raw, a, b, record, rows, here.tree)
        by_kernel = {"tree": switches.delta_tree, "one-row": switches.delta_one}
        one = DeltaPass(
            state=buffers.state,
            q=self._query,
            factors=factors,
            v=self._convolved[:, 2 * self.config.key_width :],
            beta=self._beta,
            out=self._walked,
            rows=rows,
            accepted=Accepted(inputs.count, inputs.rows),
            accepted_factors=_factors(before),
        )
        above = {} if paths is None else {"paths": paths.paths, "depths": paths.depths}
        limit = switches.solve_tree_rows if paths else switches.solve_chain_rows
        if switches.solve and 1 < rows <= limit:
            chunks.solve(self._query, factors, self._beta, self._solved, rows=rows, **above)
            chunks.walk_solved(one, self._solved)
            self._count("delta verify by a solve")
        elif by_kernel.get(kind, switches.delta_chain):
            if paths and not switches.exact:
                tree_kernel.walk_stack(one, depths=paths.depths)
            else:
                delta_kernel.walk(one, advance=False, **above)
                self._count("exact tree walks", here.is_tree)
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
        own = self._chunk_factors
        self._prepare(layer, buffers, raw, a, b, own, rows, None)
        count = torch.full_like(self._nothing.count, rows)
        conv.shift_tail(buffers.tail[None], raw[None, :rows], count)
        chunks.solve(self._query, own, self._beta, self._solved, rows=rows)
        v = self._convolved[:, 2 * self.config.key_width :]
        chunks.prefill(buffers.state, self._query, own, v, self._solved, self._walked, rows=rows)
        self.mark("gated_delta", buffers.state.nbytes, self._delta_flops(rows))
        self._count("delta prefill kernels")
        self._gated_norm(layer, z, out, rows)

    def commit(self, delta: DeltaStack, record: DeltaRecord, inputs: PassInputs) -> None:
        if not self.switches.commit:
            super().commit(delta, record, inputs)
            return
        accepted = Accepted(inputs.count, inputs.rows)
        delta_kernel.commit(delta.states, _factors(record), accepted, exact=self.switches.exact)
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

    def _gated_norm(self, layer: CudaDelta, z: Tensor, out: Tensor, rows: int) -> None:
        eps = self.config.rms_eps
        norms.gated_rms_norm(self._walked, z, layer.gdn_norm, out, eps=eps, rows=rows)
        self.mark("gated norm", layer.gdn_norm.nbytes, 0)


def _factors(record: DeltaRecord) -> DeltaFactors:
    return DeltaFactors(record.k, record.u, record.g, record.gc)
