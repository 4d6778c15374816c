# SPDX-License-Identifier: MIT OR Apache-2.0
"""The block drafter on readable PyTorch operations: twin of the native pass.

Source of the arithmetic: the DFlash2 drafters' published form. Context rows are hidden_norm(fc(streams)) of the
target's residual streams, from which every layer makes its keys and values; a block is the anchor and mask
tokens, attends to the context and to all of its own rows, and convolves each sublayer's input and output with
two dynamic taps. Norms round once here; the published code rounds before the weight, too.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine.cache.state import KvCache
from engine.load.drafter import BlockLayerWeights, BlockWeights
from engine.load.stored import Dense
from engine.model.block_config import CONV_SIDES, CONV_TAPS, BlockConfig
from engine.model.block_forward import (
    BlockBytes,
    BlockRows,
    block_room,
    check_width,
    shaped,
)
from engine.model.dense import in_dtype
from kernels.bf16_linear.reference import linear
from kernels.block_attention.reference import block_attention
from kernels.block_conv.reference import block_conv
from kernels.elementwise.reference import silu_mul
from kernels.embedding.reference import embed
from kernels.head.reference import head_logits, top_k
from kernels.rms_norm.reference import rms_norm
from kernels.rope.reference import apply_rope, rope_tables


class ReferenceBlock:
    """Keeps the keys and values of committed rows and drafts behind them."""

    def __init__(
        self,
        config: BlockConfig,
        weights: BlockWeights,
        *,
        embedding: Tensor,
        head: Tensor,
        tokens: int,
        capacity: int,
        dtype: torch.dtype,
    ) -> None:
        """`embedding` and `head` [vocab, hidden] are the target's; `tokens` of its ids exist."""
        self.config = config
        self._bytes = BlockBytes.of(config, weights)
        self._weights = in_dtype(weights, dtype, ("predecessor", "successor"))
        self._embedding, self._head = embedding, head
        self._tokens, self._capacity, self._dtype = tokens, capacity, dtype
        positions = min(capacity, config.context_tokens) + config.block_size
        self._kv = [
            KvCache.empty(positions, config.kv_heads, config.head_dim, dtype)
            for _ in range(config.layers)
        ]
        self.reset(active=False)

    def reset(self, *, active: bool, length: int = 0) -> None:
        """Forget everything; what is committed from position `length` on is kept if `active`."""
        self.active, self.first, self.length = active, length, length

    @torch.inference_mode()
    def take(self, streams: Tensor) -> None:
        """Rows were committed: the target's streams [T, taps * hidden] side by side, in order."""
        if not self.active:
            return
        weights = self._weights
        room = self._kv[0].keys.shape[0] - self.length
        streams = streams[: max(0, room)]  # behind its last position nothing is drafted
        if not len(streams):
            return
        fused = self._norm(_apply(weights.fc, streams), weights.hidden_norm)
        positions = torch.arange(self.length, self.length + len(streams))
        for layer, cache in zip(weights.layers, self._kv, strict=True):
            cache.write(*self._key_value(layer, fused, positions), self.length)
        self.length += len(streams)

    def room(self) -> int:
        """See `Backend.block_room`."""
        return block_room(self.config, self.length, self._capacity) if self.active else 0

    @torch.inference_mode()
    def draft(self, anchor: int, width: int) -> BlockRows:
        """See `Backend.draft_block`."""
        check_width(width, self.room())
        config, weights = self.config, self._weights
        ids = torch.full((width,), config.mask_id)
        ids[0] = anchor
        x = embed(self._embedding, ids)
        for layer, cache in zip(weights.layers, self._kv, strict=True):
            normed = self._norm(x, layer.input_norm)
            kernel = _apply(layer.attention_kernel, normed)
            normed = _convolve(normed, layer.attention_conv, kernel, 0)
            mixed = self._attend(layer, cache, normed)
            x = x + _convolve(mixed, layer.attention_conv, kernel, 1)
            normed = self._norm(x, layer.post_norm)
            kernel = _apply(layer.mlp_kernel, normed)
            normed = _convolve(normed, layer.mlp_conv, kernel, 0)
            mixed = silu_mul(_apply(layer.gate, normed), _apply(layer.up, normed))
            x = x + _convolve(_apply(layer.down, mixed), layer.mlp_conv, kernel, 1)
        hidden = self._norm(x, weights.norm)[1:]
        tokens, values = self._candidates(head_logits(hidden, self._head)[:, : self._tokens])
        projected = linear(hidden.float(), weights.hidden_projection.weight.float())
        return BlockRows(tokens, shaped(config, values), projected.numpy())

    def draft_bytes(self) -> int:
        """Bytes that one draft has to read, the target's head included."""
        seen = min(self.length - self.first, self.config.window)
        return self._bytes.draft(seen) + self._head.nbytes

    def context(self) -> list[tuple[Tensor, Tensor]]:
        """Copies of every layer's keys and values at positions first .. length - 1, for tests and tools."""
        part = slice(self.first, self.length)
        return [(cache.keys[part].clone(), cache.values[part].clone()) for cache in self._kv]

    def _attend(self, layer: BlockLayerWeights, cache: KvCache, x: Tensor) -> Tensor:
        config, rows = self.config, len(x)
        positions = torch.arange(self.length, self.length + rows)
        query = _apply(layer.q, x).view(rows, config.attention_heads, config.head_dim)
        query = self._rotate(self._norm(query, layer.q_norm), positions)
        keys, values = cache.write(*self._key_value(layer, x, positions), self.length)
        mixed = block_attention(
            query,
            keys[self.first :],
            values[self.first :],
            window=config.window,
            scale=config.head_dim**-0.5,
        )
        return _apply(layer.o, mixed.reshape(rows, -1))

    def _key_value(
        self, layer: BlockLayerWeights, x: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        shape = (len(x), self.config.kv_heads, self.config.head_dim)
        key = _apply(layer.k, x).view(shape)
        return self._rotate(self._norm(key, layer.k_norm), positions), _apply(layer.v, x).view(
            shape
        )

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, self.config.rms_eps, zero_centred=False)

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        tables = rope_tables(positions, self.config.head_dim, self.config.rope_theta, self._dtype)
        return apply_rope(x, *tables)

    def _candidates(self, logits: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """(tokens, logits) of the top K of every row; -1 and NaN for a row with a NaN."""
        k = min(self.config.top_k, self._tokens)
        broken = logits.isnan().any(-1, keepdim=True)
        values, tokens = top_k(logits.masked_fill(broken, 0.0), k)
        tokens = tokens.masked_fill(broken, -1)
        values = values.masked_fill(broken, float("nan"))
        return tokens.to(torch.int32).numpy(), values.numpy()


def _convolve(x: Tensor, base: Tensor, kernel: Tensor, side: int) -> Tensor:
    dynamic = kernel.view(len(kernel), CONV_SIDES, CONV_TAPS, -1)[:, side]
    return block_conv(x, base[side], dynamic)


def _apply(weight: Dense, x: Tensor) -> Tensor:
    return linear(x, weight.weight)
