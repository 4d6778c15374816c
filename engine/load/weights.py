# SPDX-License-Identifier: MIT OR Apache-2.0
"""The weights of a loaded model, by role.

Linears are `StoredLinear` [out, in]. Norm weights are BF16 vectors and zero-centred (the layer multiplies by
1 + weight), except `gdn_norm`, which is plain. A float32 checkpoint read with `keep_float32` keeps float32
where this page says bf16.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from torch import Tensor

from engine.load.stored import Dense, Fp8Block, Fp8Row, Nvfp4, StoredLinear


@dataclass(frozen=True, slots=True, eq=False)
class ExpertWeights:
    """One routed expert."""

    gate: StoredLinear  # [expert size, hidden]
    up: StoredLinear  # [expert size, hidden]
    down: StoredLinear  # [hidden, expert size]


@dataclass(frozen=True, slots=True, eq=False)
class MoeWeights:
    """What a mixture-of-experts layer has beside its shared expert, which stands where a dense MLP does."""

    router: StoredLinear  # [experts, hidden]
    shared_gate: StoredLinear  # [1, hidden]
    experts: tuple[ExpertWeights, ...]


@dataclass(frozen=True, slots=True, eq=False)
class GdnLayerWeights:
    """One gated delta layer and its MLP."""

    input_norm: Tensor  # bf16 [hidden]
    in_qkv: StoredLinear  # [qkv_rows, hidden], rows q | k | v
    in_z: StoredLinear  # [value_width, hidden]
    in_b: StoredLinear  # [value_heads, hidden]
    in_a: StoredLinear  # [value_heads, hidden]
    conv: Tensor  # bf16 [qkv_rows, 4]; tap 3 multiplies the current token
    dt_bias: Tensor  # float32 [value_heads], the stored value
    a_log: Tensor  # float32 [value_heads], the stored value
    gdn_norm: Tensor  # float32 [value_dim], the stored value, plain
    out: StoredLinear  # [hidden, value_width]
    post_norm: Tensor  # bf16 [hidden]
    gate: StoredLinear  # [intermediate, hidden]
    up: StoredLinear  # [intermediate, hidden]
    down: StoredLinear  # [hidden, intermediate]
    moe: MoeWeights | None = None


@dataclass(frozen=True, slots=True, eq=False)
class AttentionLayerWeights:
    """One gated full-attention layer and its MLP."""

    input_norm: Tensor  # bf16 [hidden]
    q: StoredLinear  # [q_rows, hidden]; per head first the query, then the output gate
    k: StoredLinear  # [kv_rows, hidden]
    v: StoredLinear  # [kv_rows, hidden]
    o: StoredLinear  # [hidden, attention_width]
    q_norm: Tensor  # bf16 [head_dim]
    k_norm: Tensor  # bf16 [head_dim]
    post_norm: Tensor  # bf16 [hidden]
    gate: StoredLinear  # [intermediate, hidden]
    up: StoredLinear  # [intermediate, hidden]
    down: StoredLinear  # [hidden, intermediate]
    moe: MoeWeights | None = None


LayerWeights = GdnLayerWeights | AttentionLayerWeights


@dataclass(frozen=True, slots=True, eq=False)
class MtpWeights:
    """The multi-token-prediction head; embedding and output head are the model's own."""

    fc: StoredLinear  # [hidden, 2 hidden]; columns: embedding half, then hidden-state half
    norm_embedding: Tensor  # bf16 [hidden]
    norm_hidden: Tensor  # bf16 [hidden]
    norm: Tensor  # bf16 [hidden]
    layer: AttentionLayerWeights


@dataclass(frozen=True, slots=True, eq=False)
class ModelWeights:
    """Everything a forward pass reads; `head` is None when the embedding is the head."""

    embed: Tensor  # bf16 [vocab, hidden]
    final_norm: Tensor  # bf16 [hidden]
    head: StoredLinear | None  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    mtp: MtpWeights | None

    @property
    def head_linear(self) -> StoredLinear:
        """The head as a linear, [vocab, hidden], tied or not."""
        return Dense(self.embed) if self.head is None else self.head

    @property
    def nbytes(self) -> int:
        """Bytes of all stored tensors, scales included."""
        return sum(_nbytes(part) for part in parts_of(self))


def parts_of(record: object) -> Iterator[Tensor | StoredLinear]:
    """Every tensor and linear of a weight record, depth first, in field order."""
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Tensor | Dense | Nvfp4 | Fp8Block | Fp8Row):
            yield value
        elif isinstance(value, tuple):
            for item in value:
                yield from parts_of(item)
        elif value is not None:
            yield from parts_of(value)


def _nbytes(part: Tensor | StoredLinear) -> int:
    return part.nbytes
