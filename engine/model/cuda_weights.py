# SPDX-License-Identifier: MIT OR Apache-2.0
"""A model's weights on a device, in the form the GPU's kernels read: stored codes stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.load.stored import FP8_BLOCK, Dense, Fp8Block, Fp8Row, Nvfp4, StoredLinear
from engine.load.weights import (
    AttentionLayerWeights,
    GdnLayerWeights,
    LayerWeights,
    ModelWeights,
    MtpWeights,
)
from engine.model.config import ModelConfig
from engine.model.projection import free, release
from kernels.nvfp4_linear.cuda import DeviceNvfp4, place_nvfp4
from kernels.nvfp4_linear.tiles import STEP as NVFP4_STEP
from kernels.rope.native import rope_table

COLUMNS = 16  # a product's first column is a multiple: what the kernels ask of rows and starts
_LEAST_OUTPUTS = 8  # of the skinny kernels


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """E4M3 codes [N, K] with a float32 scale [N] for every output."""

    codes: Tensor
    scale: Tensor


@dataclass(frozen=True, slots=True)
class DeviceBlocks:
    """E4M3 codes [N, K] with a float32 scale for every 128 x 128 block [ceil(N/128), ceil(K/128)]."""

    codes: Tensor
    scale: Tensor


@dataclass(frozen=True, slots=True)
class Product:
    """One matrix product on the device; `sizes` are the outputs of the linears that lie in it."""

    weight: DeviceNvfp4 | DeviceRows | DeviceBlocks | Tensor  # the last: bf16 [N, K]
    sizes: tuple[int, ...]
    inputs: int

    @property
    def outputs(self) -> int:
        """N, all parts together."""
        return sum(self.sizes)

    @property
    def nbytes(self) -> int:
        """Bytes that one use reads."""
        weight = self.weight
        if isinstance(weight, DeviceNvfp4):
            return weight.codes.nbytes + weight.scales.nbytes + weight.scale_2.nbytes
        if isinstance(weight, Tensor):
            return weight.nbytes
        return weight.codes.nbytes + weight.scale.nbytes


@dataclass(frozen=True, slots=True)
class Projection:
    """Products over one input whose outputs lie side by side; `offsets`: first column of each linear."""

    products: tuple[tuple[Product, int], ...]  # with its first column
    offsets: tuple[int, ...]
    width: int

    @staticmethod
    def place(
        *linears: StoredLinear, device: torch.device, fuse: bool = True, keep: bool = False
    ) -> Projection:
        """Put linears on the device and free each; neighbours of one format are one product if `fuse`.

        `keep` leaves the stored ones as they are.
        """
        products, offsets, column = [], [], 0
        for group in _groups(linears, fuse):
            product = _place(group, device)
            products.append((product, column))
            at = column
            for size in product.sizes:
                offsets.append(at)
                at += size
            column = -(-at // COLUMNS) * COLUMNS
            for stored in () if keep else group:
                free(stored)
        return Projection(tuple(products), tuple(offsets), column)

    @property
    def is_joined(self) -> bool:
        """Whether some product holds more than one linear."""
        return any(len(product.sizes) > 1 for product, _ in self.products)


@dataclass(frozen=True, slots=True)
class CudaDelta:
    """A gated delta layer."""

    input_norm: Tensor
    project: Projection  # qkv, z
    gates: Projection  # b, a
    conv: Tensor  # bf16 [channels, 4]
    a_log: Tensor  # float32 [value heads]
    dt_bias: Tensor  # float32 [value heads]
    gdn_norm: Tensor  # float32 [value dim]
    out: Projection
    post_norm: Tensor
    gate_up: Projection
    down: Projection


@dataclass(frozen=True, slots=True)
class CudaAttention:
    """A gated full-attention layer."""

    input_norm: Tensor
    project: Projection  # q with its gate, k, v
    q_norm: Tensor
    k_norm: Tensor
    out: Projection
    post_norm: Tensor
    gate_up: Projection
    down: Projection


@dataclass(frozen=True, slots=True)
class CudaMtp:
    """The MTP head."""

    fc: Projection
    norm_embedding: Tensor
    norm_hidden: Tensor
    norm: Tensor
    layer: CudaAttention


@dataclass(frozen=True, slots=True)
class CudaWeights:
    """All of a model's weights on a device; norms are zero-centred as they are stored."""

    embed: Tensor
    layers: tuple[CudaDelta | CudaAttention, ...]
    final_norm: Tensor
    head: Projection
    mtp: CudaMtp | None
    rope: Tensor  # bf16 [positions, rotary dim]: cosines, then sines

    @staticmethod
    def place(
        config: ModelConfig,
        weights: ModelWeights,
        *,
        device: torch.device,
        positions: int,
        fuse: bool = True,
        fuse_gates: bool = True,
        on_layer: Callable[[int], None] = lambda index: None,
    ) -> CudaWeights:
        """Place linear by linear, freeing each stored one, so that the host never holds more than before.

        `fuse`, `fuse_gates`: see `Projection.place`, for the linears beside each other and for those of decay
        and beta. `on_layer(index)` is called before each layer and may raise to cancel.
        """
        placer = _Placer(device, fuse, fuse_gates)
        layers = []
        for index, layer in enumerate(weights.layers):
            on_layer(index)
            layers.append(placer.layer(layer))
        mtp = None if weights.mtp is None else placer.mtp(weights.mtp)
        embed = weights.embed.to(device, torch.bfloat16, copy=True)
        release(weights.embed)
        # A tied head reads the embedding's own memory.
        head = Dense(embed) if weights.head is None else weights.head
        placed_head = Projection.place(head, device=device, keep=weights.head is None)
        rope = rope_table(positions, config.rotary_dim, config.rope_theta).to(device)
        final_norm = placer.small(weights.final_norm)
        return CudaWeights(embed, tuple(layers), final_norm, placed_head, mtp, rope)


class _Placer:
    def __init__(self, device: torch.device, fuse: bool, fuse_gates: bool) -> None:
        self._device, self._fuse, self._fuse_gates = device, fuse, fuse_gates

    def small(self, tensor: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return tensor.to(self._device, dtype, copy=True).contiguous()

    def join(self, *linears: StoredLinear, fuse: bool | None = None) -> Projection:
        fuse = self._fuse if fuse is None else fuse
        return Projection.place(*linears, device=self._device, fuse=fuse)

    def layer(self, layer: LayerWeights) -> CudaDelta | CudaAttention:
        return self.delta(layer) if isinstance(layer, GdnLayerWeights) else self.attention(layer)

    def delta(self, layer: GdnLayerWeights) -> CudaDelta:
        return CudaDelta(
            input_norm=self.small(layer.input_norm),
            project=self.join(layer.in_qkv, layer.in_z),
            gates=self.join(layer.in_b, layer.in_a, fuse=self._fuse_gates),
            conv=self.small(layer.conv),
            a_log=self.small(layer.a_log, torch.float32),
            dt_bias=self.small(layer.dt_bias, torch.float32),
            gdn_norm=self.small(layer.gdn_norm, torch.float32),
            out=self.join(layer.out),
            post_norm=self.small(layer.post_norm),
            gate_up=self.join(layer.gate, layer.up),
            down=self.join(layer.down),
        )

    def attention(self, layer: AttentionLayerWeights) -> CudaAttention:
        return CudaAttention(
            input_norm=self.small(layer.input_norm),
            project=self.join(layer.q, layer.k, layer.v),
            q_norm=self.small(layer.q_norm),
            k_norm=self.small(layer.k_norm),
            out=self.join(layer.o),
            post_norm=self.small(layer.post_norm),
            gate_up=self.join(layer.gate, layer.up),
            down=self.join(layer.down),
        )

    def mtp(self, mtp: MtpWeights) -> CudaMtp:
        return CudaMtp(
            fc=self.join(mtp.fc),
            norm_embedding=self.small(mtp.norm_embedding),
            norm_hidden=self.small(mtp.norm_hidden),
            norm=self.small(mtp.norm),
            layer=self.attention(mtp.layer),
        )


def unsupported_shape(config: ModelConfig) -> str:
    """Why the GPU's operations do not take a model of this shape; empty when they do."""
    checks = (
        (config.hidden_size % 16, "hidden_size must be a multiple of 16"),
        (config.intermediate_size % 16, "intermediate_size a multiple of 16"),
        (config.head_dim % 16 or config.head_dim > 256, "head_dim a multiple of 16 up to 256"),
        (
            config.gdn_layers and config.key_dim not in (16, 32, 64, 128, 256),
            "linear_key_head_dim a power of two from 16 to 256",
        ),
        (config.gdn_layers and config.value_dim % 16, "linear_value_head_dim a multiple of 16"),
    )
    return "; ".join(text for bad, text in checks if bad)


def is_expanded(stored: StoredLinear) -> bool:
    """Whether a stored linear is kept as bf16 on the device because no kernel takes its form or shape."""
    outputs, inputs = stored.shape
    if isinstance(stored, Nvfp4):
        return bool(inputs % NVFP4_STEP) or outputs < _LEAST_OUTPUTS
    return not isinstance(stored, Dense) and bool(inputs % COLUMNS)


def device_bytes(stored: StoredLinear) -> int:
    """Bytes that a linear takes on the device."""
    outputs, inputs = stored.shape
    if is_expanded(stored):
        return 2 * outputs * inputs
    return stored.nbytes + (4 * (outputs - 1) if isinstance(stored, Nvfp4) else 0)


def _groups(linears: tuple[StoredLinear, ...], fuse: bool) -> list[list[StoredLinear]]:
    """Neighbours of one form on the device together, where each of them then starts at a whole column."""
    groups: list[list[StoredLinear]] = []
    for stored in linears:
        alike = groups and _form(groups[-1][0]) is _form(stored)
        whole = FP8_BLOCK if _form(stored) is Fp8Block else COLUMNS
        if fuse and alike and not groups[-1][-1].shape[0] % whole:
            groups[-1].append(stored)
        else:
            groups.append([stored])
    return groups


def _form(stored: StoredLinear) -> type:
    return Dense if is_expanded(stored) else type(stored)


def _place(group: list[StoredLinear], device: torch.device) -> Product:
    sizes = tuple(stored.shape[0] for stored in group)
    inputs = group[0].shape[1]
    first = group[0]
    if isinstance(first, Nvfp4) and not is_expanded(first):
        parts = [(each.codes, each.scales, each.scale_2) for each in group]
        return Product(place_nvfp4(parts, device), sizes, inputs)
    if isinstance(first, Fp8Row) and not is_expanded(first):
        codes = torch.cat([each.codes.view(torch.uint8) for each in group]).to(device).contiguous()
        scale = torch.cat([each.scale.float() for each in group]).to(device).contiguous()
        return Product(DeviceRows(codes.view(torch.float8_e4m3fn), scale), sizes, inputs)
    if isinstance(first, Fp8Block) and not is_expanded(first):
        codes = torch.cat([each.codes.view(torch.uint8) for each in group]).to(device).contiguous()
        scale = torch.cat([each.scale.float() for each in group]).to(device).contiguous()
        return Product(DeviceBlocks(codes.view(torch.float8_e4m3fn), scale), sizes, inputs)
    dense = [each.dequantise().to(torch.bfloat16) for each in group]
    joined = dense[0] if len(dense) == 1 else torch.cat(dense)
    placed = joined.to(device).contiguous()
    # A tensor of its own: `free` empties the stored one, whose memory this may be.
    return Product(placed.view(placed.shape), sizes, inputs)
