# SPDX-License-Identifier: MIT OR Apache-2.0
"""The block drafter on the compiled kernels, over the arena of a native backend."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.load.drafter import BlockWeights
from engine.model.arena import MAX_ROWS
from engine.model.block_config import MAX_BLOCK, BlockConfig
from engine.model.block_forward import BlockBytes, BlockRows, check_width, shaped
from engine.model.block_pack import NativeBlockLayer, NativeBlockWeights
from engine.model.block_waiting import DRAFT, WaitingRows
from engine.model.projection import Packing, Projection
from engine.model.run_pass import RunPass
from kernels.block_attention.native import block_attention
from kernels.block_conv.native import block_conv
from kernels.cpu.buffers import aligned_zeros
from kernels.embedding.native import embed
from kernels.head.native import top_k
from kernels.kv_cache.native import KvCache
from kernels.rms_norm.native import rms_norm
from kernels.rope.native import attention_prepare, rope_table
from kernels.tape import Tape


class NativeBlock(WaitingRows):
    """Keeps the keys and values of committed rows and drafts behind them; its buffers are allocated once.

    A trunk pass leaves the streams of its rows in `streams`. Passes run through `run`, which is handed in with
    every call, so that the backend and this do not hold each other.
    """

    def __init__(
        self,
        config: BlockConfig,
        weights: BlockWeights,
        packing: Packing,
        *,
        embedding: Tensor,
        head: Projection,
        logits: Tensor,
        tokens: int,
        capacity: int,
    ) -> None:
        """Pack `weights`, which are freed one by one.

        `embedding`, `head` and `logits` (float32 [>= MAX_BLOCK, vocabulary padded], overwritten by a draft) are
        the target's; `tokens` of its ids exist.
        """
        super().__init__(config, capacity=capacity, most=MAX_ROWS)
        self._bytes = BlockBytes.of(config, weights)
        self._embedding, self._head, self._logits = embedding, head, logits
        self._tokens = tokens
        self._weights = packed = NativeBlockWeights.pack(weights, packing)
        positions = self._positions
        self._rope = rope_table(positions, config.head_dim, config.rope_theta)
        self._kv = [
            KvCache.zeros(positions, config.kv_heads, config.head_dim) for _ in packed.layers
        ]
        hidden, bf16 = config.hidden_size, torch.bfloat16
        wide = len(config.taps) * hidden

        def rows(count: int, width: int, dtype: torch.dtype = bf16) -> Tensor:
            return aligned_zeros((count, width), dtype)

        self.streams = rows(MAX_ROWS, wide)
        self._waiting = rows(MAX_ROWS, wide)
        self._fused, self._context = rows(MAX_ROWS, hidden), rows(MAX_ROWS, hidden)
        self._context_kv = rows(MAX_ROWS, packed.widest_kv)
        self._ids = aligned_zeros(MAX_BLOCK, torch.int32)
        self._start, self._first, self._waiting_start = (
            aligned_zeros(1, torch.int32) for _ in range(3)
        )
        self._residual, self._normed, self._turned, self._mixed = (
            rows(MAX_BLOCK, hidden) for _ in range(4)
        )
        self._dynamic = rows(MAX_BLOCK, packed.widest_kernel)
        self._q, self._block_kv = (
            rows(MAX_BLOCK, packed.widest_q),
            rows(MAX_BLOCK, packed.widest_kv),
        )
        self._query = aligned_zeros((MAX_BLOCK, config.attention_heads, config.head_dim), bf16)
        self._attended = rows(MAX_BLOCK, config.attention_width)
        self._gate_up = rows(MAX_BLOCK, max(16, packed.gate_up))
        self._inner = rows(MAX_BLOCK, config.intermediate_size)
        self._projected = rows(MAX_BLOCK, packed.hidden_projection.width, torch.float32)
        self._best = rows(MAX_BLOCK, min(config.top_k, tokens), torch.int32)
        self._best_logits = rows(MAX_BLOCK, min(config.top_k, tokens), torch.float32)
        self._numbers = {
            name: getattr(self, f"_{name}").numpy()
            for name in (
                "ids",
                "start",
                "first",
                "waiting_start",
                "best",
                "best_logits",
                "projected",
            )
        }
        # NumPy has no bfloat16: rows move as 16-bit integers.
        self._stream_rows = self.streams.view(torch.int16).numpy()
        self._waiting_rows = self._waiting.view(torch.int16).numpy()

    def tap(self, stream: int) -> Tensor | None:
        """Where a trunk pass leaves the rows of a residual stream: bf16 [MAX_ROWS, hidden]; None: nowhere."""
        if stream not in self.config.streams:
            return None
        at = self.config.streams.index(stream) * self.config.hidden_size
        return self.streams[:, at : at + self.config.hidden_size]

    def draft(self, run: RunPass, anchor: int, width: int) -> BlockRows:
        """See `Backend.draft_block`."""
        check_width(width, self.room())
        self._extend(run, in_round=True)
        numbers, slots = self._numbers, width - 1
        numbers["ids"][0] = anchor
        numbers["ids"][1:width] = self.config.mask_id
        numbers["start"][0], numbers["first"][0] = self.length, self.first
        run(DRAFT, width, in_round=True)
        return BlockRows(
            numbers["best"][:slots].copy(),
            shaped(self.config, numbers["best_logits"][:slots]),
            numbers["projected"][:slots, : self.config.selector_rank].copy(),
        )

    def draft_bytes(self) -> int:
        """Bytes that one draft has to read, the target's head included."""
        return self._bytes.draft(self._seen) + self._head.weight_bytes

    def context(self, run: RunPass) -> list[tuple[Tensor, Tensor]]:
        """Copies of every layer's keys and values at positions first .. length - 1, for tests and tools."""
        self._extend(run, in_round=False)
        both = [cache.read(self.length) for cache in self._kv]
        return [(keys[self.first :], values[self.first :]) for keys, values in both]

    def record_context(self, tape: Tape, rows: int) -> None:
        """Keys and values of waiting rows, into the caches."""
        weights = self._weights
        weights.fc.append(tape, self._waiting, self._fused, rows, name="block fusion")
        self._norm(tape, self._fused, weights.hidden_norm, self._context, rows)
        for layer, cache in zip(weights.layers, self._kv, strict=True):
            layer.kv.append(tape, self._context, self._context_kv, rows, name="block context")
            self._prepare(tape, layer, cache, self._context_kv, rows, query=None)

    def record_draft(self, tape: Tape, width: int) -> None:
        """A whole draft: its candidates, their logits and the selector's rows."""
        weights, hidden = self._weights, self._normed
        embed(tape, table=self._embedding, ids=self._ids, out=self._residual, rows=width)
        norms = [layer.input_norm for layer in weights.layers[1:]] + [weights.norm]
        self._norm(tape, self._residual, weights.layers[0].input_norm, hidden, width)
        for layer, cache, norm in zip(weights.layers, self._kv, norms, strict=True):
            layer.attention_kernel.append(tape, hidden, self._dynamic, width, name="block taps")
            self._convolve(tape, hidden, layer.attention_conv[0], 0, width)
            layer.q.append(tape, self._turned, self._q, width, name="block in", barrier=False)
            layer.kv.append(tape, self._turned, self._block_kv, width, name="block in")
            self._prepare(tape, layer, cache, self._block_kv, width, query=self._q)
            block_attention(
                tape,
                q=self._query,
                cache=cache,
                start=self._start,
                first=self._first,
                out=self._attended,
                scale=self.config.head_dim**-0.5,
                window=self.config.window,
                rows=width,
            )
            layer.o.append(tape, self._attended, self._mixed, width, name="block out")
            self._convolve(tape, self._mixed, layer.attention_conv[1], 1, width)
            self._add_norm(tape, layer.post_norm, width)
            layer.mlp_kernel.append(tape, hidden, self._dynamic, width, name="block taps")
            self._convolve(tape, hidden, layer.mlp_conv[0], 0, width)
            layer.mlp.append_inner(tape, self._turned, self._gate_up, self._inner, width)
            layer.mlp.down.append(tape, self._inner, self._mixed, width, name="block down")
            self._convolve(tape, self._mixed, layer.mlp_conv[1], 1, width)
            self._add_norm(tape, norm, width)
        slots, last = width - 1, hidden[1:]
        weights.hidden_projection.append(tape, last, self._projected, slots, name="block selector")
        self._head.append(tape, last, self._logits, slots, name="block head")
        logits = self._logits[:, : self._tokens]
        top_k(tape, logits=logits, ids=self._best, values=self._best_logits, rows=slots)

    def _copy(self, path: Sequence[int], at: int, *, in_order: bool) -> None:
        rows = slice(len(path)) if in_order else list(path)
        self._waiting_rows[at : at + len(path)] = self._stream_rows[rows]

    def _keep_from(self, at: int, count: int) -> None:
        self._waiting_rows[:count] = self._waiting_rows[at : at + count]

    def _start_context(self, position: int) -> None:
        self._numbers["waiting_start"][0] = position

    def _prepare(
        self,
        tape: Tape,
        layer: NativeBlockLayer,
        cache: KvCache,
        kv: Tensor,
        rows: int,
        *,
        query: Tensor | None,
    ) -> None:
        """Keys and values into the cache, and with `query` the rotated queries."""
        k_at, v_at = layer.kv.offsets
        width = self.config.attention_width
        attention_prepare(
            tape,
            q=None if query is None else query[:, :width],
            q_scale=None if query is None else layer.q_norm,
            q_out=None if query is None else self._query,
            gated=False,
            k=kv[:, k_at : k_at + self.config.kv_width],
            v=kv[:, v_at : v_at + self.config.kv_width],
            k_scale=layer.k_norm,
            table=self._rope,
            cache=cache,
            start=self._waiting_start if query is None else self._start,
            eps=self.config.rms_eps,
            rows=rows,
            name="block_prepare",
        )

    def _convolve(self, tape: Tape, x: Tensor, base: Tensor, side: int, rows: int) -> None:
        size = self.config.conv_groups * base.shape[0]
        dynamic = self._dynamic[:, side * size : (side + 1) * size]
        block_conv(tape, x=x, base=base, dynamic=dynamic, out=self._turned, rows=rows)

    def _norm(self, tape: Tape, x: Tensor, scale: Tensor, out: Tensor, rows: int) -> None:
        rms_norm(tape, x=x, scale=scale, out=out, eps=self.config.rms_eps, rows=rows)

    def _add_norm(self, tape: Tape, scale: Tensor, rows: int) -> None:
        rms_norm(
            tape,
            x=self._turned,
            scale=scale,
            out=self._normed,
            eps=self.config.rms_eps,
            rows=rows,
            residual=self._residual,
            total=self._residual,
            name="add_rms_norm",
        )


def unsupported_block(config: BlockConfig) -> str:
    """Why the native kernels do not take a drafter of this shape; empty when they do."""
    checks = (
        (config.hidden_size % 16, "hidden_size must be a multiple of 16"),
        (config.head_dim % 16, "head_dim a multiple of 16"),
        (config.intermediate_size % 2, "intermediate_size must be even"),
    )
    return "; ".join(text for bad, text in checks if bad)
