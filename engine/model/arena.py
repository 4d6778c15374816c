# SPDX-License-Identifier: MIT OR Apache-2.0
"""Every buffer of a native forward pass, allocated once: addresses never change, a round allocates nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.backend import MAX_DRAFT, MAX_WIDTH, VERIFY_ROWS
from engine.model.config import ModelConfig
from engine.model.native_moe import MoeBuffers
from kernels.cpu.buffers import aligned_zeros
from kernels.gated_delta.buffers import DeltaRecord, DeltaShape, DeltaState, DeltaWork, Pending
from kernels.kv_cache.native import KvCache

MAX_ROWS = 256  # of a prompt chunk


@dataclass(frozen=True, slots=True)
class Widths:
    """Columns of the projection outputs, each part padded to whole tiles by the packing."""

    delta_in: int
    delta_gates: int
    attention_in: int
    gate_up: int  # 0 when SiLU(gate) * up is written by the product itself
    vocabulary: int
    steering: int = 0  # of the router's product; 0 without routed experts
    experts_fused: bool = True  # every layer's experts write SiLU(gate) * up themselves


@dataclass(frozen=True, slots=True)
class DeltaBuffers:
    """A delta layer's state and, for each parity, its record and its projection rows."""

    state: DeltaState
    records: tuple[DeltaRecord, DeltaRecord]
    projected: tuple[Tensor, Tensor]  # bf16 [VERIFY_ROWS, delta_in]


@dataclass(frozen=True, slots=True)
class Arena:
    """Static buffers; `rows` is the largest pass, a prompt chunk.

    What changes from pass to pass without a new recording lies in the int32 vectors: ids, start, parents,
    pending.
    """

    rows: int
    ids: Tensor  # int32 [rows]
    start: Tensor  # int32 [1], committed positions
    parents: Tensor  # int32 [VERIFY_ROWS], of the nodes of a tree
    pending: Pending
    residual: Tensor  # bf16 [rows, hidden]
    normed: Tensor  # bf16 [rows, hidden]
    mixed: Tensor  # bf16 [rows, hidden], output of a mixer or an MLP
    hidden: Tensor  # bf16 [rows, hidden], after the final norm
    projected: Tensor  # bf16 [rows, widest mixer projection]
    gates: Tensor  # bf16 [rows, delta_gates]
    attended: Tensor  # bf16 [rows, widest mixer output]
    query: Tensor  # bf16 [rows, query heads, head dim]
    gate_up: Tensor  # bf16 [rows, gate_up or 16]
    inner: Tensor  # bf16 [rows, intermediate]
    moe: MoeBuffers | None
    logits: Tensor  # float32 [VERIFY_ROWS, vocabulary padded]
    best: Tensor  # int32 [VERIFY_ROWS]
    delta_work: DeltaWork  # of a prompt chunk
    verify_work: DeltaWork
    delta: dict[int, DeltaBuffers]
    kv: dict[int, KvCache]
    mtp_kv: KvCache | None
    mtp_waiting: Tensor  # bf16 [rows, hidden], hidden rows whose MTP entry is not written yet
    mtp_pair: Tensor  # bf16 [rows, 2 hidden]
    mtp_hidden: Tensor  # bf16 [rows, hidden], after the MTP norm
    mtp_next: Tensor  # int32 [rows], the token that follows each hidden row
    mtp_start: Tensor  # int32 [MAX_DRAFT], first MTP position of each draft step
    draft_ids: Tensor  # int32 [MAX_DRAFT * MAX_WIDTH], candidates, step by step
    draft_values: Tensor  # float32 [MAX_DRAFT * MAX_WIDTH], their logits
    draft_sums: Tensor  # float32 [MAX_DRAFT], ln of the sum of exponentials of each step's logits

    @staticmethod
    def build(
        config: ModelConfig,
        widths: Widths,
        *,
        rows: int,
        capacity: int,
        mtp: bool,
        scaled_kv: bool = False,
    ) -> Arena:
        """Allocate for passes of up to `rows` rows and `capacity` positions; `scaled_kv`: kept in e4m3."""
        hidden = config.hidden_size
        shape = delta_shape(config)
        bf16, int32 = torch.bfloat16, torch.int32
        positions = capacity + VERIFY_ROWS

        def cache() -> KvCache:
            return KvCache.zeros(positions, config.kv_heads, config.head_dim, scaled=scaled_kv)

        delta = {
            layer: DeltaBuffers(
                DeltaState.zeros(shape),
                (DeltaRecord.zeros(shape), DeltaRecord.zeros(shape)),
                (
                    aligned_zeros((VERIFY_ROWS, widths.delta_in), bf16),
                    aligned_zeros((VERIFY_ROWS, widths.delta_in), bf16),
                ),
            )
            for layer in config.gdn_layers
        }
        mixer_in = max(widths.delta_in, widths.attention_in)
        mixer_out = max(config.value_width, config.attention_width)
        mtp_rows = rows if mtp else 1
        return Arena(
            rows=rows,
            ids=aligned_zeros(rows, int32),
            start=aligned_zeros(1, int32),
            parents=aligned_zeros(VERIFY_ROWS, int32),
            pending=Pending.none(),
            residual=aligned_zeros((rows, hidden), bf16),
            normed=aligned_zeros((rows, hidden), bf16),
            mixed=aligned_zeros((rows, hidden), bf16),
            hidden=aligned_zeros((rows, hidden), bf16),
            projected=aligned_zeros((rows, mixer_in), bf16),
            gates=aligned_zeros((rows, max(16, widths.delta_gates)), bf16),
            attended=aligned_zeros((rows, mixer_out), bf16),
            query=aligned_zeros((rows, config.attention_heads, config.head_dim), bf16),
            gate_up=aligned_zeros((rows, max(16, widths.gate_up)), bf16),
            inner=aligned_zeros((rows, config.intermediate_size), bf16),
            moe=MoeBuffers.build(
                config, rows=rows, steering=widths.steering, fused=widths.experts_fused
            )
            if config.experts
            else None,
            logits=aligned_zeros((VERIFY_ROWS, widths.vocabulary), torch.float32),
            best=aligned_zeros(VERIFY_ROWS, int32),
            delta_work=DeltaWork.zeros(shape, rows),
            verify_work=DeltaWork.zeros(shape, VERIFY_ROWS),
            delta=delta,
            kv={layer: cache() for layer in config.attention_layers},
            mtp_kv=cache() if mtp else None,
            mtp_waiting=aligned_zeros((mtp_rows, hidden), bf16),
            mtp_pair=aligned_zeros((mtp_rows, 2 * hidden), bf16),
            mtp_hidden=aligned_zeros((mtp_rows, hidden), bf16),
            mtp_next=aligned_zeros(mtp_rows, int32),
            mtp_start=aligned_zeros(MAX_DRAFT, int32),
            draft_ids=aligned_zeros(MAX_DRAFT * MAX_WIDTH, int32),
            draft_values=aligned_zeros(MAX_DRAFT * MAX_WIDTH, torch.float32),
            draft_sums=aligned_zeros(MAX_DRAFT, torch.float32),
        )


def delta_shape(config: ModelConfig) -> DeltaShape:
    """Heads of the delta layers; one head of the smallest size where a model has none."""
    if not config.gdn_layers:
        return DeltaShape(1, 1, 4, 16)
    return DeltaShape(config.key_heads, config.value_heads, config.key_dim, config.value_dim)
