# SPDX-License-Identifier: MIT OR Apache-2.0
"""A block drafter's weights in the form the native kernels read."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.load.drafter import BlockLayerWeights, BlockWeights
from engine.model.native_weights import NativeMlp
from engine.model.projection import Packing, Projection
from kernels.cpu.buffers import aligned_copy
from kernels.rms_norm.native import norm_scale


@dataclass(frozen=True, slots=True)
class NativeBlockLayer:
    """One drafter layer. Keys and values are a product of their own: context rows need no queries."""

    input_norm: Tensor
    attention_kernel: Projection
    attention_conv: tuple[Tensor, Tensor]  # of the input and of the output, float32 [taps, hidden]
    q: Projection
    kv: Projection
    q_norm: Tensor
    k_norm: Tensor
    o: Projection
    post_norm: Tensor
    mlp_kernel: Projection
    mlp_conv: tuple[Tensor, Tensor]
    mlp: NativeMlp

    @staticmethod
    def pack(layer: BlockLayerWeights, packing: Packing) -> NativeBlockLayer:
        return NativeBlockLayer(
            input_norm=_plain(layer.input_norm),
            attention_kernel=Projection.pack(layer.attention_kernel, packing=packing),
            attention_conv=_sides(layer.attention_conv),
            q=Projection.pack(layer.q, packing=packing),
            kv=Projection.pack(layer.k, layer.v, packing=packing),
            q_norm=_plain(layer.q_norm),
            k_norm=_plain(layer.k_norm),
            o=Projection.pack(layer.o, packing=packing),
            post_norm=_plain(layer.post_norm),
            mlp_kernel=Projection.pack(layer.mlp_kernel, packing=packing),
            mlp_conv=_sides(layer.mlp_conv),
            mlp=NativeMlp.pack(layer, packing),
        )


@dataclass(frozen=True, slots=True)
class NativeBlockWeights:
    """A whole drafter, packed, and the columns its buffers need."""

    fc: Projection
    hidden_norm: Tensor
    norm: Tensor
    hidden_projection: Projection
    layers: tuple[NativeBlockLayer, ...]
    widest_q: int
    widest_kv: int
    widest_kernel: int
    gate_up: int

    @staticmethod
    def pack(weights: BlockWeights, packing: Packing) -> NativeBlockWeights:
        """Pack linear by linear, freeing each stored one; codebooks and norms stay."""
        layers = tuple(NativeBlockLayer.pack(layer, packing) for layer in weights.layers)
        return NativeBlockWeights(
            fc=Projection.pack(weights.fc, packing=packing),
            hidden_norm=_plain(weights.hidden_norm),
            norm=_plain(weights.norm),
            hidden_projection=Projection.pack(weights.hidden_projection, packing=packing),
            layers=layers,
            widest_q=max(layer.q.width for layer in layers),
            widest_kv=max(layer.kv.width for layer in layers),
            widest_kernel=max(
                kernel.width
                for layer in layers
                for kernel in (layer.attention_kernel, layer.mlp_kernel)
            ),
            gate_up=max(layer.mlp.scratch_width for layer in layers),
        )


def _plain(weight: Tensor) -> Tensor:
    return norm_scale(weight, zero_centred=False)


def _sides(base: Tensor) -> tuple[Tensor, Tensor]:
    return aligned_copy(base[0].float()), aligned_copy(base[1].float())
