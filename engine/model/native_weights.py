# SPDX-License-Identifier: MIT OR Apache-2.0
"""A model's weights in the form the native kernels read, and what shapes those kernels take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from engine.load.stored import Dense
from engine.load.weights import (
    AttentionLayerWeights,
    GdnLayerWeights,
    LayerWeights,
    ModelWeights,
    MtpWeights,
)
from engine.model.arena import Widths
from engine.model.config import ModelConfig
from engine.model.native_moe import NativeMoe
from engine.model.projection import Packing, Projection, release
from kernels.causal_conv.native import DeltaWeights
from kernels.cpu.buffers import aligned_copy
from kernels.elementwise.native import silu_mul
from kernels.gated_delta.native import gated_norm_weight
from kernels.rms_norm.native import norm_scale
from kernels.rope.native import rope_table
from kernels.tape import Tape


@dataclass(frozen=True, slots=True)
class NativeMlp:
    """gate and up, as one product with SiLU where their formats agree, and down."""

    fused: Projection | None
    gate: Projection | None
    up: Projection | None
    down: Projection

    @staticmethod
    def pack(layer: LayerWeights, packing: Packing) -> NativeMlp:
        fused = Projection.pack_gate_up(layer.gate, layer.up, packing)
        gate = None if fused else Projection.pack(layer.gate, packing=packing)
        up = None if fused else Projection.pack(layer.up, packing=packing)
        return NativeMlp(fused, gate, up, Projection.pack(layer.down, packing=packing))

    @property
    def scratch_width(self) -> int:
        """Columns of the buffer for gate and up where they are two products."""
        return 0 if self.gate is None or self.up is None else self.gate.width + self.up.width

    def append_inner(
        self, tape: Tape, x: Tensor, gate_up: Tensor, inner: Tensor, rows: int
    ) -> None:
        """inner = round(round(silu(gate(x))) * up(x))."""
        if self.fused is not None:
            self.fused.append(tape, x, inner, rows, name="MLP gate, up")
            return
        assert self.gate is not None
        assert self.up is not None
        size, second = inner.shape[1], self.gate.width
        gate, up = gate_up[:, :size], gate_up[:, second : second + size]
        tape.count("separate MLP gate, up")
        self.gate.append(tape, x, gate, rows, name="MLP gate, up", barrier=False)
        self.up.append(tape, x, up, rows, name="MLP gate, up")
        silu_mul(tape, gate=gate, up=up, out=inner, rows=rows)


@dataclass(frozen=True, slots=True)
class NativeDelta:
    """A gated delta layer."""

    input_norm: Tensor
    project: Projection  # qkv, z
    gates: Projection  # b, a
    small: DeltaWeights
    gdn_norm: Tensor
    out: Projection
    post_norm: Tensor
    mlp: NativeMlp
    moe: NativeMoe | None

    @staticmethod
    def pack(layer: GdnLayerWeights, packing: Packing) -> NativeDelta:
        return NativeDelta(
            input_norm=norm_scale(layer.input_norm),
            project=Projection.pack(layer.in_qkv, layer.in_z, packing=packing),
            gates=Projection.pack(layer.in_b, layer.in_a, packing=packing.of_gates),
            small=DeltaWeights.pack(layer.conv, layer.a_log, layer.dt_bias),
            gdn_norm=gated_norm_weight(layer.gdn_norm),
            out=Projection.pack(layer.out, packing=packing),
            post_norm=norm_scale(layer.post_norm),
            mlp=NativeMlp.pack(layer, packing),
            moe=None if layer.moe is None else NativeMoe.pack(layer.moe, packing),
        )


@dataclass(frozen=True, slots=True)
class NativeAttention:
    """A gated full-attention layer."""

    input_norm: Tensor
    project: Projection  # q with its gate, k, v
    q_norm: Tensor
    k_norm: Tensor
    out: Projection
    post_norm: Tensor
    mlp: NativeMlp
    moe: NativeMoe | None

    @staticmethod
    def pack(layer: AttentionLayerWeights, packing: Packing) -> NativeAttention:
        return NativeAttention(
            input_norm=norm_scale(layer.input_norm),
            project=Projection.pack(layer.q, layer.k, layer.v, packing=packing),
            q_norm=norm_scale(layer.q_norm),
            k_norm=norm_scale(layer.k_norm),
            out=Projection.pack(layer.o, packing=packing),
            post_norm=norm_scale(layer.post_norm),
            mlp=NativeMlp.pack(layer, packing),
            moe=None if layer.moe is None else NativeMoe.pack(layer.moe, packing),
        )


@dataclass(frozen=True, slots=True)
class NativeMtp:
    """The MTP head."""

    fc: Projection
    norm_embedding: Tensor
    norm_hidden: Tensor
    norm: Tensor
    layer: NativeAttention

    @staticmethod
    def pack(mtp: MtpWeights, packing: Packing) -> NativeMtp:
        return NativeMtp(
            fc=Projection.pack(mtp.fc, packing=packing),
            norm_embedding=norm_scale(mtp.norm_embedding),
            norm_hidden=norm_scale(mtp.norm_hidden),
            norm=norm_scale(mtp.norm),
            layer=NativeAttention.pack(mtp.layer, packing),
        )


@dataclass(frozen=True, slots=True)
class NativeWeights:
    """All of a model's weights, packed; see `engine.load.weights.ModelWeights`."""

    embed: Tensor
    layers: tuple[NativeDelta | NativeAttention, ...]
    final_norm: Tensor
    head: Projection
    mtp: NativeMtp | None
    rope: Tensor
    widths: Widths

    @staticmethod
    def pack(
        config: ModelConfig,
        weights: ModelWeights,
        *,
        positions: int,
        packing: Packing,
        on_layer: Callable[[int], None] = lambda index: None,
    ) -> NativeWeights:
        """Pack linear by linear, freeing each stored one, so that memory never holds both sets.

        The embedding is freed, too; norms and other small tensors are not.

        `on_layer(index)` is called before each layer and may raise to cancel.
        """
        layers: list[NativeDelta | NativeAttention] = []
        for index, layer in enumerate(weights.layers):
            on_layer(index)
            if isinstance(layer, GdnLayerWeights):
                layers.append(NativeDelta.pack(layer, packing))
            else:
                layers.append(NativeAttention.pack(layer, packing))
        mtp = None if weights.mtp is None else NativeMtp.pack(weights.mtp, packing)
        embed = aligned_copy(weights.embed)
        release(weights.embed)
        # A tied head packs a copy of its own: the embedding is still gathered from.
        tied = weights.head is None
        head = Projection.pack(Dense(embed.clone()) if tied else weights.head, packing=packing)
        attentions = [layer for layer in layers if isinstance(layer, NativeAttention)]
        attentions += [] if mtp is None else [mtp.layer]
        deltas = [layer for layer in layers if isinstance(layer, NativeDelta)]
        mlps = [layer.mlp for layer in (*deltas, *attentions)]
        moes = [layer.moe for layer in (*deltas, *attentions) if layer.moe is not None]
        widths = Widths(
            delta_in=max((layer.project.width for layer in deltas), default=16),
            delta_gates=max((layer.gates.width for layer in deltas), default=16),
            attention_in=max((layer.project.width for layer in attentions), default=16),
            gate_up=max(mlp.scratch_width for mlp in mlps),
            vocabulary=head.width,
            steering=max((moe.steering.width for moe in moes), default=0),
            experts_fused=all(len(moe.gate_up) == 1 for moe in moes),
        )
        rope = rope_table(positions, config.rotary_dim, config.rope_theta)
        return NativeWeights(embed, layers, norm_scale(weights.final_norm), head, mtp, rope, widths)


def unsupported_shape(config: ModelConfig) -> str:
    """Why the native kernels do not take a model of this shape; empty when they do."""
    checks = (
        (config.hidden_size % 16, "hidden_size must be a multiple of 16"),
        (config.head_dim % 16 or config.head_dim > 256, "head_dim a multiple of 16 up to 256"),
        (config.intermediate_size % 2, "intermediate_size must be even"),
        (config.gdn_layers and config.key_dim % 4, "linear_key_head_dim a multiple of 4"),
        (config.gdn_layers and config.key_dim > 128, "linear_key_head_dim at most 128"),
        (config.gdn_layers and config.value_dim % 16, "linear_value_head_dim a multiple of 16"),
    )
    return "; ".join(text for bad, text in checks if bad)
