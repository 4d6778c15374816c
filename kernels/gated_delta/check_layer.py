# SPDX-License-Identifier: MIT OR Apache-2.0
"""One gated delta layer with its weights, states and pending rows, as the checks and the tests drive it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.build import NativeLibrary
from kernels.causal_conv.native import DeltaWeights, delta_prepare
from kernels.checks import poison
from kernels.cpu.buffers import aligned_empty
from kernels.gated_delta.buffers import (
    MAX_NODES,
    DeltaRecord,
    DeltaShape,
    DeltaState,
    DeltaWork,
    Pending,
    state_from_tiles,
    state_to_tiles,
)
from kernels.gated_delta.native import gated_delta, gated_norm_weight
from kernels.tape import Pool, Tape

EPS = 1e-6


@dataclass(frozen=True)
class DeltaInputs:
    """Weights and T rows of projections of one layer, in checkpoint layout."""

    raw: Tensor  # bf16 [T, channels]
    a: Tensor  # bf16 [T, Hv]
    b: Tensor  # bf16 [T, Hv]
    z: Tensor  # bf16 [T, Hv*dv]
    conv: Tensor  # bf16 [channels, 4]
    a_log: Tensor  # float32 [Hv]
    dt_bias: Tensor  # float32 [Hv]
    norm: Tensor  # bf16 [dv]
    state: Tensor  # float32 [Hv, dk, dv]
    tail: Tensor  # bf16 [3, channels]


def random_inputs(shape: DeltaShape, rows: int, seed: int, kind: str = "gaussian") -> DeltaInputs:
    """Random inputs of one class: gaussian, correlated, outliers, denormal or zeros."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    raw = normal(rows, shape.channels)
    if kind == "correlated":
        raw = raw[:1] + 0.01 * raw
    elif kind == "outliers":
        raw = torch.where(normal(rows, shape.channels) > 2.5, raw * 300, raw)
    elif kind == "denormal":
        raw = raw * 1e-38
    elif kind == "zeros":
        raw = torch.zeros_like(raw)
    return DeltaInputs(
        raw=raw.bfloat16(),
        a=(2 * normal(rows, shape.value_heads)).bfloat16(),
        b=(2 * normal(rows, shape.value_heads)).bfloat16(),
        z=normal(rows, shape.value_width).bfloat16(),
        conv=(0.5 * normal(shape.channels, 4)).bfloat16(),
        a_log=normal(shape.value_heads),
        dt_bias=normal(shape.value_heads),
        norm=(1 + 0.1 * normal(shape.value_dim)).bfloat16(),
        state=0.1 * normal(shape.value_heads, shape.key_dim, shape.value_dim),
        tail=normal(3, shape.channels).bfloat16(),
    )


class DeltaLayer:
    """One layer driven through the native kernels, with the buffers of both parities."""

    def __init__(
        self, library: NativeLibrary, shape: DeltaShape, inputs: DeltaInputs, threads: int = 1
    ) -> None:
        """Copies the starting state out of `inputs`; close() ends the workers."""
        self.shape, self.inputs = shape, inputs
        self.pool = Pool(library, threads)
        self.state = DeltaState(state_to_tiles(inputs.state), inputs.tail.clone())
        self.weights = DeltaWeights.pack(inputs.conv, inputs.a_log, inputs.dt_bias)
        self.norm_weight = gated_norm_weight(inputs.norm)
        self.records = [DeltaRecord.zeros(shape) for _ in range(2)]
        self.raw = [aligned_empty((MAX_NODES, shape.channels), torch.bfloat16) for _ in range(2)]
        self.pending = Pending.none()
        self.parity = 0
        self.work = DeltaWork.zeros(shape, MAX_NODES)

    def close(self) -> None:
        """End the worker threads."""
        self.pool.close()

    def recurrent(self) -> Tensor:
        """The committed state, float32 [Hv, dk, dv]."""
        return state_from_tiles(self.state.recurrent)

    def advance(self, rows: list[int]) -> Tensor:
        """Decode the given rows of the inputs, committing them; pending rows go first."""
        self.work = DeltaWork.zeros(self.shape, max(len(rows), 1))
        for buffer in (self.work.q, self.work.k, self.work.v, self.work.qk):
            poison(buffer)
        out = self._run(rows, self.inputs.raw[rows], None, None)
        self.pending.set([])
        return out

    def verify(self, rows: list[int], parents: list[int] | None = None) -> Tensor:
        """Walk the given rows without committing them; `commit` then names the accepted ones."""
        self.parity ^= 1
        self.work = DeltaWork.zeros(self.shape, MAX_NODES)
        record = self.records[self.parity]
        poison(record.k), poison(record.correction), poison(record.decay)
        raw = poison(self.raw[self.parity])
        raw[: len(rows)] = self.inputs.raw[rows]
        tree = None
        if parents is not None:
            tree = torch.zeros(MAX_NODES, dtype=torch.int32)
            tree[: len(parents)] = torch.tensor(parents, dtype=torch.int32)
        out = self._run(rows, raw, record, tree)
        self.pending.set([])
        return out

    def commit(self, nodes: list[int]) -> None:
        """Accept nodes of the latest verify pass; the next pass applies them."""
        self.pending.set(nodes)

    def _run(
        self, rows: list[int], raw: Tensor, record: DeltaRecord | None, parents: Tensor | None
    ) -> Tensor:
        count = len(rows)
        other = self.parity ^ 1 if record is not None else self.parity
        out = poison(torch.empty(count, self.shape.value_width, dtype=torch.bfloat16))
        tape = Tape(self.pool)
        delta_prepare(
            tape,
            shape=self.shape,
            raw=raw,
            a=self.inputs.a[rows],
            b=self.inputs.b[rows],
            weights=self.weights,
            state=self.state,
            work=self.work,
            rows=count,
            record=record,
            pending=self.pending,
            pending_raw=self.raw[other],
            parents=parents,
        )
        gated_delta(
            tape,
            shape=self.shape,
            state=self.state,
            work=self.work,
            z=self.inputs.z[rows],
            norm_weight=self.norm_weight,
            out=out,
            eps=EPS,
            rows=count,
            record=record,
            pending=self.pending,
            pending_record=self.records[other],
            parents=parents,
        )
        tape.run()
        return out
