# SPDX-License-Identifier: MIT OR Apache-2.0
"""The block drafter over the operations of a GPU backend; see `engine.model.block_native.NativeBlock`.

Products, norms and the head are the kernels that serve the target; what only a drafter has is PyTorch's. Its
passes read positions and tokens from device buffers, so that they are captured like the target's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.errors import UnsupportedModelError
from engine.load.drafter import BlockWeights
from engine.model import cuda_block_plain as block
from engine.model.backend import VERIFY_ROWS
from engine.model.block_config import CONV_SIDES, CONV_TAPS, MAX_BLOCK, BlockConfig
from engine.model.block_forward import BlockBytes, BlockRows, check_width, shaped
from engine.model.block_waiting import CONTEXT, DRAFT, WaitingRows
from engine.model.cuda_arena import MAX_ROWS, Arena, KvPair, KvStack, Staged
from engine.model.cuda_block_weights import CudaBlockLayer, CudaBlockWeights
from engine.model.cuda_forward import CudaForward
from engine.model.cuda_plain import sums
from engine.model.cuda_weights import COLUMNS
from engine.model.run_pass import RunPass
from kernels.rope.native import rope_table

_NUMBERS = 4  # that change from pass to pass: each starts at 16 bytes


class CudaBlock(WaitingRows):
    """Keeps the keys and values of committed rows and drafts behind them; its buffers are allocated once."""

    def __init__(
        self, config: BlockConfig, weights: BlockWeights, forward: CudaForward, *, capacity: int
    ) -> None:
        """Place `weights`, which are freed one by one; embedding, head and logits are those of `forward`."""
        arena: Arena = forward.arena
        device = arena.residual.device
        super().__init__(config, capacity=capacity, most=MAX_ROWS)
        self._forward, self._arena, self._ops = forward, arena, forward.ops
        self._bytes = BlockBytes.of(config, weights)
        self._device = device
        self._weights = CudaBlockWeights.place(weights, device)
        self._ops.make_room(list(self._weights.products), device=device)
        held = self._positions + VERIFY_ROWS  # rows behind a block are computed, too
        self._rope = rope_table(held, config.head_dim, config.rope_theta).to(device)
        hidden, bf16 = config.hidden_size, torch.bfloat16
        wide = len(config.taps) * hidden

        def rows(count: int, *shape: int, dtype: torch.dtype = bf16) -> Tensor:
            return torch.zeros(count, *shape, dtype=dtype, device=device)

        caches = (config.layers, config.kv_heads, held, config.head_dim)
        self._kv = KvStack(rows(*caches), rows(*caches))
        self._places = torch.arange(MAX_ROWS, device=device)
        self.streams, self._waiting = rows(MAX_ROWS, wide), rows(MAX_ROWS, wide)
        self._fused, self._context = rows(MAX_ROWS, hidden), rows(MAX_ROWS, hidden)
        layer = self._weights.layers[0]
        self._context_kv = rows(MAX_ROWS, layer.kv.width)
        self._inputs = Staged(3 * _NUMBERS + MAX_BLOCK, device)
        self._residual, self._turned, self._mixed = (rows(MAX_BLOCK, hidden) for _ in range(3))
        # Behind its second row there are as many as a product of few rows reads.
        self._normed = rows(2 * VERIFY_ROWS, hidden)
        taps = CONV_SIDES * CONV_TAPS * config.conv_groups
        self._dynamic = rows(MAX_BLOCK, -(-taps // COLUMNS) * COLUMNS)
        self._q, self._block_kv = rows(MAX_BLOCK, layer.q.width), rows(MAX_BLOCK, layer.kv.width)
        self._attended = rows(MAX_BLOCK, config.attention_width)
        self._gate_up = rows(MAX_BLOCK, layer.gate_up.width)
        self._inner = rows(MAX_BLOCK, config.intermediate_size)
        best = min(config.top_k, forward.tokens)
        found = (
            rows(MAX_BLOCK, best, dtype=torch.int32),
            rows(MAX_BLOCK, best, dtype=torch.float32),
            rows(MAX_BLOCK, config.selector_rank, dtype=torch.float32),
        )
        pinned = device.type == "cuda"
        self._found = found
        self._read = tuple(torch.empty_like(t, device="cpu", pin_memory=pinned) for t in found)

    def keep(self, stream: int, residual: Tensor, rows: int) -> None:
        """Part of a trunk pass: residual stream `stream` of its rows, where the drafter reads it."""
        if stream in self.config.streams:
            hidden = self.config.hidden_size
            at = self.config.streams.index(stream) * hidden
            self.streams[:rows, at : at + hidden].copy_(residual[:rows])

    def try_out(self, run: RunPass) -> None:
        """One pass of each kind over an empty sequence, so that what fails does so before a round needs it.

        Raises:
            UnsupportedModelError: the GPU failed; a lack of memory stays its own error.
        """
        try:
            run(CONTEXT, VERIFY_ROWS)
            run(DRAFT, self.config.block_size)
            self._found[0].cpu()
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError) as error:
            raise UnsupportedModelError(
                f"The GPU failed on this block drafter: {error}.",
                next_step="Set QWEN38_DFLASH2=off, or compute on the CPU (--device cpu).",
            ) from error

    def draft(self, run: RunPass, anchor: int, width: int) -> BlockRows:
        """See `Backend.draft_block`."""
        check_width(width, self.room())
        self._extend(run, in_round=True)
        inputs = self._inputs
        inputs.wait()
        numbers = inputs.host
        numbers[0], numbers[_NUMBERS] = self.length, self.first
        numbers[3 * _NUMBERS :] = self.config.mask_id
        numbers[3 * _NUMBERS] = anchor
        inputs.upload()
        run(DRAFT, width, in_round=True)
        for host, found in zip(self._read, self._found, strict=True):
            host.copy_(found, non_blocking=True)
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        best, logits, projected = (host[: width - 1].numpy().copy() for host in self._read)
        return BlockRows(best, shaped(self.config, logits), projected)

    def draft_bytes(self) -> int:
        """Bytes that one draft has to read, the target's head included."""
        head = sum(product.nbytes for product, _ in self._forward.weights.head.products)
        return self._bytes.draft(self._seen) + head

    def context(self, run: RunPass) -> list[tuple[Tensor, Tensor]]:
        """Copies of every layer's keys and values at positions first .. length - 1, for tests and tools."""
        self._extend(run, in_round=False)
        both = zip(self._kv.keys, self._kv.values, strict=True)
        part = slice(self.first, self.length)
        return [tuple(t[:, part].transpose(0, 1).cpu().clone() for t in pair) for pair in both]

    def compute_context(self, rows: int) -> None:
        """Keys and values of waiting rows, into the caches."""
        ops, weights = self._ops, self._weights
        slots = self._number(2) + self._places[:rows]
        ops.project(weights.fc, self._waiting, self._fused, rows, name="block fusion")
        ops.norm(self._fused, weights.hidden_norm, self._context, rows)
        for layer, cache in self._layers():
            ops.project(layer.kv, self._context, self._context_kv, rows, name="block context")
            self._append(layer, cache, self._context_kv[:rows], slots)

    def compute_draft(self, width: int) -> None:
        """A whole draft: its candidates, their logits and the selector's rows."""
        ops, weights, hidden = self._ops, self._weights, self._normed
        ids = self._inputs.device[3 * _NUMBERS :]
        ops.embed(self._forward.weights.embed, ids, self._residual, width)
        norms = [*(layer.input_norm for layer in weights.layers[1:]), weights.norm]
        ops.norm(self._residual, weights.layers[0].input_norm, hidden, width)
        for (layer, cache), norm in zip(self._layers(), norms, strict=True):
            ops.project(layer.attention_kernel, hidden, self._dynamic, width, name="block taps")
            self._convolve(hidden, layer.attention_conv, 0)
            ops.project(layer.q, self._turned, self._q, width, name="block in")
            ops.project(layer.kv, self._turned, self._block_kv, width, name="block in")
            self._attend(layer, cache, width)
            ops.project(layer.o, self._attended, self._mixed, width, name="block out")
            self._convolve(self._mixed, layer.attention_conv, 1)
            ops.add_norm(self._residual, self._turned, layer.post_norm, hidden, width)
            ops.project(layer.mlp_kernel, hidden, self._dynamic, width, name="block taps")
            self._convolve(hidden, layer.mlp_conv, 0)
            ops.project(layer.gate_up, self._turned, self._gate_up, width, name="block gate, up")
            ops.silu_mul(self._gate_up, self._inner, width)
            ops.project(layer.down, self._inner, self._mixed, width, name="block down")
            self._convolve(self._mixed, layer.mlp_conv, 1)
            ops.add_norm(self._residual, self._turned, norm, hidden, width)
        slots, last, logits = width - 1, hidden[1:], self._arena.logits
        best, values, projected = self._found
        projected.copy_(sums(last[:MAX_BLOCK], weights.hidden_projection))
        ops.head(self._forward.weights.head, last, logits, slots, name="block head")
        block.candidates(logits[:slots, : self._forward.tokens], best[:slots], values[:slots])

    def _copy(self, path: Sequence[int], at: int, *, in_order: bool) -> None:
        rows = len(path)
        waiting = self._waiting[at : at + rows]
        if in_order:
            waiting.copy_(self.streams[:rows])
            return
        picked = self._arena.picked
        picked.wait()
        picked.host[:rows] = path
        picked.upload()
        waiting.copy_(self.streams.index_select(0, picked.device[:rows]))

    def _keep_from(self, at: int, count: int) -> None:
        self._waiting[:count].copy_(self._waiting[at : at + count])

    def _start_context(self, position: int) -> None:
        self._inputs.wait()
        self._inputs.host[2 * _NUMBERS] = position
        self._inputs.upload()

    def _number(self, index: int) -> Tensor:
        """int32 [1] on the device: 0, where a block starts; 1, where the context does; 2, the waiting rows."""
        return self._inputs.device[_NUMBERS * index :][:1]

    def _layers(self) -> list[tuple[CudaBlockLayer, KvPair]]:
        return [(layer, self._kv.layer(at)) for at, layer in enumerate(self._weights.layers)]

    def _append(self, layer: CudaBlockLayer, cache: KvPair, kv: Tensor, slots: Tensor) -> None:
        config = self.config
        keys, values = (
            kv[:, at : at + config.kv_width].unflatten(1, (config.kv_heads, config.head_dim))
            for at in layer.kv.offsets
        )
        keys = block.rotated(keys, layer.k_norm, self._rope, slots, config.rms_eps)
        block.append(cache, keys, values, slots)

    def _attend(self, layer: CudaBlockLayer, cache: KvPair, width: int) -> None:
        config, start = self.config, self._number(0)
        slots = start + self._places[:MAX_BLOCK]
        self._append(layer, cache, self._block_kv[:width], slots[:width])
        query = self._q[:, : config.attention_width].unflatten(1, (config.attention_heads, -1))
        query = block.rotated(query, layer.q_norm, self._rope, slots, config.rms_eps)
        attended = block.attend(
            query, cache, start=start, first=self._number(1), rows=width, window=config.window
        )
        self._attended.copy_(attended)
        self._ops.mark("block_attention", 4 * config.window * config.kv_width, 0)

    def _convolve(self, x: Tensor, base: Tensor, side: int) -> None:
        size = CONV_TAPS * self.config.conv_groups
        dynamic = self._dynamic[:, side * size : (side + 1) * size].unflatten(1, (CONV_TAPS, -1))
        block.convolve(x[:MAX_BLOCK], base[side], dynamic, self._turned)
        self._ops.mark("block_conv", base[side].nbytes, 0)


def check_block(config: BlockConfig) -> None:
    """Raise UnsupportedModelError unless the GPU's operations take a drafter of this shape."""
    checks = (
        (config.hidden_size % 16, "hidden_size must be a multiple of 16"),
        (config.head_dim % 16, "head_dim a multiple of 16"),
        (config.intermediate_size % 16, "intermediate_size a multiple of 16"),
    )
    why_not = "; ".join(text for bad, text in checks if bad)
    if why_not:
        raise UnsupportedModelError(
            f"The GPU's operations do not take this block drafter ({why_not}).",
            next_step="Set QWEN38_DFLASH2=off, or compute on the CPU (--device cpu).",
        )
