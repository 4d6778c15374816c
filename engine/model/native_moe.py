# SPDX-License-Identifier: MIT OR Apache-2.0
"""The routed experts of a layer on the native kernels: their packed weights, their buffers, their steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.allocation import give_back_memory
from engine.load.stored import StoredLinear
from engine.load.weights import ExpertWeights, ModelWeights, MoeWeights
from engine.model.config import ModelConfig
from engine.model.projection import Packing, Projection, free, pack_group
from engine.model.steps import as_read
from kernels.cpu.buffers import aligned_zeros
from kernels.cpu.product import PackedLinear
from kernels.elementwise.native import silu_mul
from kernels.moe.native import (
    MoePlan,
    PackedExperts,
    moe_combine,
    moe_down,
    moe_gate_up,
    moe_route,
    pack_experts,
)
from kernels.moe.plan import MOST_CHOSEN, MOST_EXPERTS
from kernels.tape import Tape


@dataclass(frozen=True, slots=True)
class MoeBuffers:
    """Static buffers that all mixture-of-experts layers of a pass use in turn."""

    plan: MoePlan
    steering: Tensor  # bf16 [rows, router and shared gate, padded]
    hidden: Tensor  # bf16 [rows * experts a token, expert size], by place
    gate_up: tuple[Tensor, Tensor] | None  # the same twice, where gate and up are two products
    y: Tensor  # bf16 [rows * experts a token, hidden], by place
    distinct: Tensor  # int32 [layers + 1]: experts of the latest pass, layer by layer, the MTP layer's last

    @staticmethod
    def build(config: ModelConfig, *, rows: int, steering: int, fused: bool) -> MoeBuffers:
        """For passes of up to `rows` rows; `steering`: columns of the router's product."""
        plan = MoePlan.empty(rows=rows, experts=config.experts, top_k=config.experts_per_token)
        size = config.expert_size
        return MoeBuffers(
            plan=plan,
            steering=aligned_zeros((rows, steering), torch.bfloat16),
            hidden=plan.buffer(size),
            gate_up=None if fused else (plan.buffer(size), plan.buffer(size)),
            y=plan.buffer(config.hidden_size),
            distinct=aligned_zeros(config.layers + 1, torch.int32),
        )

    def counted(self) -> int:
        """(layer, expert) pairs that the latest trunk pass read."""
        return int(self.distinct[:-1].sum())


@dataclass(frozen=True, slots=True)
class NativeMoe:
    """Router, gate of the shared expert and routed experts; gate and up are one product where they can be."""

    steering: Projection  # router, gate of the shared expert
    gate_up: tuple[PackedExperts, ...]  # one with SiLU in it, or gate and up
    down: PackedExperts

    @staticmethod
    def pack(moe: MoeWeights, packing: Packing) -> NativeMoe:
        """Pack expert by expert, freeing each stored matrix as soon as it is packed."""
        experts = moe.experts

        def packed(*parts: Callable[[ExpertWeights], StoredLinear]) -> PackedExperts:
            def pack(index: int) -> PackedLinear:
                group = [part(experts[index]) for part in parts]
                result = pack_group(group, amx=packing.amx, interleave=len(group) > 1)
                for stored in group:
                    free(stored)
                return result

            result = pack_experts(len(experts), pack)
            give_back_memory()  # of the many small matrices, which the allocator would keep
            return result

        steering = Projection.pack(moe.router, moe.shared_gate, packing=packing)
        if packing.fuse and type(experts[0].gate) is type(experts[0].up):
            gate_up = (packed(lambda e: e.gate, lambda e: e.up),)
        else:
            gate_up = (packed(lambda e: e.gate), packed(lambda e: e.up))
        return NativeMoe(steering, gate_up, packed(lambda e: e.down))

    def append(
        self, tape: Tape, x: Tensor, buffers: MoeBuffers, rows: int, distinct: Tensor
    ) -> None:
        """Every row's experts into buffers.y, to be summed by `append_sum`; their count into `distinct` [1]."""
        plan = buffers.plan
        self.steering.append(tape, x, buffers.steering, rows, name="router")
        logits = buffers.steering[:, : plan.experts]
        moe_route(tape, plan, logits=logits, rows=rows, distinct=distinct, name="route")
        if len(self.gate_up) == 1:
            tape.count("joined experts' gate, up")
            (fused,) = self.gate_up
            moe_gate_up(
                tape,
                as_read(tape, fused),
                plan,
                x=x,
                out=buffers.hidden,
                rows=rows,
                distinct=distinct,
                name="experts gate, up",
            )
        else:
            tape.count("separate experts' gate, up")
            assert buffers.gate_up is not None
            for weight, out in zip(self.gate_up, buffers.gate_up, strict=True):
                moe_gate_up(
                    tape,
                    as_read(tape, weight),
                    plan,
                    x=x,
                    out=out,
                    rows=rows,
                    distinct=distinct,
                    name="experts gate, up",
                )
            gate, up = buffers.gate_up
            silu_mul(tape, gate=gate, up=up, out=buffers.hidden, rows=rows * plan.top_k)
        moe_down(
            tape,
            as_read(tape, self.down),
            plan,
            x=buffers.hidden,
            out=buffers.y,
            rows=rows,
            distinct=distinct,
            name="experts down",
        )

    def append_sum(self, tape: Tape, buffers: MoeBuffers, shared: Tensor, rows: int) -> None:
        """shared [rows, hidden] = the weighted experts of every row + sigmoid(gate) * shared."""
        at = self.steering.offsets[1]
        gate = buffers.steering[:, at : at + 1]
        moe_combine(
            tape,
            buffers.plan,
            y=buffers.y,
            shared=shared,
            shared_gate=gate,
            out=shared,
            rows=rows,
            name="experts sum",
        )


def unsupported_experts(config: ModelConfig, weights: ModelWeights) -> str:
    """Why the native kernels do not take the experts of a model; empty when they do, or when there are none."""
    if config.experts > MOST_EXPERTS or config.experts_per_token > MOST_CHOSEN:
        return f"at most {MOST_EXPERTS} experts and {MOST_CHOSEN} of them a token"
    if config.expert_size % 2:
        return "moe_intermediate_size must be even"
    layers = [*weights.layers, *([weights.mtp.layer] if weights.mtp else [])]
    for layer in layers:
        for part in ("gate", "up", "down"):
            forms = {type(getattr(each, part)) for each in (layer.moe.experts if layer.moe else ())}
            if len(forms) > 1:
                return "the experts of one layer must be stored in one format"
    return ""
