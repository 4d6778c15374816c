# SPDX-License-Identifier: MIT OR Apache-2.0
"""A block drafter's weights on a device, in the form that the GPU's operations read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.load.drafter import BlockLayerWeights, BlockWeights
from engine.model.cuda_weights import Product, Projection


@dataclass(frozen=True, slots=True)
class CudaBlockLayer:
    """One drafter layer; norms are zero-centred, as the target's are, in float32."""

    input_norm: Tensor
    q: Projection
    kv: Projection
    o: Projection
    q_norm: Tensor
    k_norm: Tensor
    post_norm: Tensor
    gate_up: Projection
    down: Projection
    attention_conv: Tensor  # float32 [sides, taps, hidden]
    attention_kernel: Projection
    mlp_conv: Tensor  # float32 [sides, taps, hidden]
    mlp_kernel: Projection


@dataclass(frozen=True, slots=True)
class CudaBlockWeights:
    """A whole drafter but for the selector's codebooks, which are read on the host."""

    fc: Projection
    hidden_norm: Tensor
    norm: Tensor
    hidden_projection: Tensor  # bf16 [rank, hidden]
    layers: tuple[CudaBlockLayer, ...]

    @staticmethod
    def place(weights: BlockWeights, device: torch.device) -> CudaBlockWeights:
        """Place linear by linear, freeing each stored one."""
        return CudaBlockWeights(
            fc=Projection.place(weights.fc, device=device),
            hidden_norm=_centred(weights.hidden_norm, device),
            norm=_centred(weights.norm, device),
            hidden_projection=weights.hidden_projection.dequantise().to(device, torch.bfloat16),
            layers=tuple(_layer(layer, device) for layer in weights.layers),
        )

    @property
    def products(self) -> Iterator[Product]:
        """Every product that the operations multiply."""
        yield from (product for product, _ in self.fc.products)
        for layer in self.layers:
            for each in (
                layer.q, layer.kv, layer.o, layer.gate_up, layer.down,
                layer.attention_kernel, layer.mlp_kernel,
            ):  # fmt: skip
                yield from (product for product, _ in each.products)


def _layer(layer: BlockLayerWeights, device: torch.device) -> CudaBlockLayer:
    return CudaBlockLayer(
        input_norm=_centred(layer.input_norm, device),
        q=Projection.place(layer.q, device=device),
        kv=Projection.place(layer.k, layer.v, device=device),
        o=Projection.place(layer.o, device=device),
        q_norm=_centred(layer.q_norm, device),
        k_norm=_centred(layer.k_norm, device),
        post_norm=_centred(layer.post_norm, device),
        gate_up=Projection.place(layer.gate, layer.up, device=device),
        down=Projection.place(layer.down, device=device),
        attention_conv=layer.attention_conv.to(device, torch.float32),
        attention_kernel=Projection.place(layer.attention_kernel, device=device),
        mlp_conv=layer.mlp_conv.to(device, torch.float32),
        mlp_kernel=Projection.place(layer.mlp_kernel, device=device),
    )


def _centred(factor: Tensor, device: torch.device) -> Tensor:
    """A plain factor as what is added to 1."""
    return (factor.float() - 1.0).to(device)
