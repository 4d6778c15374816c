# SPDX-License-Identifier: MIT OR Apache-2.0
"""The hybrid forward on the readable PyTorch operations: the twin of every faster backend, and the oracle's view.

Runs in bfloat16 with the model's rounding points, or in float32 throughout. A chunk of the prompt takes the
chunked delta rule; a verify pass steps row by row and keeps the state after each, so any number of rows can be
kept afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from engine.api import KernelTable
from engine.cache.state import CONV_TAIL, KvCache, RecurrentState
from engine.load.stored import Dense, Fp8Block, Fp8Row, Nvfp4
from engine.load.weights import (
    AttentionLayerWeights,
    GdnLayerWeights,
    LayerWeights,
    ModelWeights,
    MtpWeights,
)
from engine.model.backend import Verified
from engine.model.byte_model import ByteModel
from engine.model.config import ModelConfig
from kernels.attention.reference import attention
from kernels.bf16_linear.reference import linear
from kernels.causal_conv.reference import causal_conv
from kernels.elementwise.reference import beta, output_gate, silu_mul
from kernels.embedding.reference import embed
from kernels.gated_delta.reference import (
    decay_log,
    gated_delta_chunked,
    gated_delta_step,
)
from kernels.head.reference import head_logits
from kernels.rms_norm.reference import add_rms_norm, gated_rms_norm, rms_norm
from kernels.rope.reference import apply_rope, rope_tables

_PENDING_LIMIT = 64  # hidden rows kept for the MTP head before its cache is brought up to date


@dataclass(slots=True)
class _Trace:
    """What a verify pass leaves for `commit`: per delta layer the states and raw rows, per pass the hiddens."""

    ids: list[int]
    states: list[list[Tensor]]  # [delta layer][row] -> [Hv, dk, dv]
    raw: list[Tensor]  # [delta layer] -> [3 + T, channels]
    hidden: Tensor  # [T, hidden], after the final norm


class ReferenceBackend:
    """See `engine.model.backend.Backend`."""

    name = "reference"

    def __init__(
        self, config: ModelConfig, weights: ModelWeights, *, capacity: int, dtype: torch.dtype
    ) -> None:
        self.config = config
        self.capacity = capacity
        self.length = 0
        self._dtype = dtype
        self._bytes = ByteModel.of(config, weights)
        self._weights = _in_dtype(weights, dtype)
        self._head = self._weights.head_linear.dequantise()
        self._kv = {
            layer: KvCache.empty(capacity, config.kv_heads, config.head_dim, dtype)
            for layer in config.attention_layers
        }
        self._mtp_kv = KvCache.empty(capacity, config.kv_heads, config.head_dim, dtype)
        self._trace: _Trace | None = None
        self.reset(speculate=False)

    def reset(self, *, speculate: bool) -> None:
        self.length = 0
        self._recurrent = {
            layer: RecurrentState.zeros(self.config, self._dtype)
            for layer in self.config.gdn_layers
        }
        self._trace = None
        self._speculate = speculate and self._weights.mtp is not None
        self._mtp_kv.length = 0
        # Hidden rows whose MTP entry is not written yet, and the tokens that follow all but the last.
        self._pending_hidden: list[Tensor] = []
        self._pending_next: list[int] = []

    @torch.inference_mode()
    def prefill(self, ids: Sequence[int]) -> Verified:
        hidden = self._advance(ids)
        return self._result(hidden[-1:])

    @torch.inference_mode()
    def all_logits(self, ids: Sequence[int]) -> Tensor:
        return head_logits(self._advance(ids), self._head)

    @torch.inference_mode()
    def verify(self, ids: Sequence[int]) -> Verified:
        self._check_room(len(ids))
        self._trace = _Trace(list(ids), [], [], torch.empty(0))
        hidden = self._forward(ids, self._trace)
        self._trace.hidden = hidden
        return self._result(hidden)

    def commit(self, keep: int) -> None:
        trace = self._trace
        if trace is None or not 1 <= keep <= len(trace.ids):
            rows = 0 if trace is None else len(trace.ids)
            raise ValueError(f"commit keeps 1 to {rows} rows of the last verify pass, got {keep}")
        self._trace = None
        for layer, states, raw in zip(self.config.gdn_layers, trace.states, trace.raw, strict=True):
            self._recurrent[layer] = RecurrentState(
                states[keep - 1], raw[keep : keep + CONV_TAIL].clone()
            )
        self.length += keep
        self._remember(trace.hidden[:keep], trace.ids[:keep])

    @torch.inference_mode()
    def draft(self, anchor: int, depth: int) -> list[int]:
        mtp = self._weights.mtp
        if mtp is None or not self._speculate or not self._pending_hidden:
            return []
        rows = self._mtp_rows(mtp, [*self._pending_next, anchor])
        self._mtp_kv.length = self.length
        self._pending_hidden, self._pending_next = [], []
        drafted = []
        row = rows[-1:]
        for step in range(depth):
            token = int(head_logits(row, self._head).argmax())
            drafted.append(token)
            position = self.length + step
            if step + 1 == depth or position >= self.capacity:
                break
            row = self._mtp_forward(mtp, row, [token], position)
        return drafted

    def round_bytes(self, rows: int, drafted: int) -> int:
        return self._bytes.round_bytes(rows, drafted, self.length)

    @torch.inference_mode()
    def suspect_layer(self) -> str:
        for index, layer in enumerate(self._weights.layers):
            for field in fields(layer):
                value = getattr(layer, field.name)
                values = value.weight if isinstance(value, Dense) else value
                if not values.isfinite().all():
                    return f"layer {index}, weight {field.name}"
        for index, recurrent in self._recurrent.items():
            if not recurrent.state.isfinite().all():
                return f"layer {index}, recurrent state"
        return "the output head"

    def kernel_table(self) -> KernelTable:
        return KernelTable((), 0, 0.0, 0.0, "the PyTorch operations are not timed one by one")

    def reset_kernel_table(self) -> None:
        """Nothing is timed, so there is nothing to reset."""

    def close(self) -> None:
        self._kv.clear()
        self._recurrent.clear()

    def _check_room(self, rows: int) -> None:
        if rows < 1 or self.length + rows > self.capacity:
            raise ValueError(
                f"{rows} rows after {self.length} do not fit a context of {self.capacity}"
            )

    def _advance(self, ids: Sequence[int]) -> Tensor:
        """Commit a whole chunk; returns the hidden rows after the final norm."""
        self._check_room(len(ids))
        hidden = self._forward(ids, None)
        self.length += len(ids)
        self._remember(hidden, list(ids))
        return hidden

    def _remember(self, hidden: Tensor, ids: list[int]) -> None:
        """Queue committed hidden rows for the MTP head; flush when many wait."""
        if not self._speculate:
            return
        if self._pending_hidden:
            self._pending_next.append(ids[0])
        self._pending_hidden.append(hidden)
        self._pending_next.extend(ids[1:])
        if len(self._pending_next) >= _PENDING_LIMIT and self._weights.mtp is not None:
            self._mtp_rows(self._weights.mtp, self._pending_next)
            self._mtp_kv.length += len(self._pending_next)
            self._pending_hidden, self._pending_next = [self._pending_hidden[-1][-1:]], []

    def _mtp_rows(self, mtp: MtpWeights, next_ids: list[int]) -> Tensor:
        """The MTP rows of the pending hiddens, paired with the tokens that follow them."""
        hidden = torch.cat(self._pending_hidden)[: len(next_ids)]
        return self._mtp_forward(mtp, hidden, next_ids, self._mtp_kv.length)

    def _result(self, hidden: Tensor) -> Verified:
        logits = head_logits(hidden, self._head)
        best = logits.argmax(-1)
        best[logits.isnan().any(-1)] = -1
        return Verified(best.tolist(), logits.numpy())

    def _forward(self, ids: Sequence[int], trace: _Trace | None) -> Tensor:
        config, weights = self.config, self._weights
        positions = torch.arange(self.length, self.length + len(ids))
        rope = rope_tables(positions, config.rotary_dim, config.rope_theta, self._dtype)
        residual = embed(weights.embed, torch.tensor(ids))
        normed = rms_norm(residual, weights.layers[0].input_norm, config.rms_eps)
        for index, layer in enumerate(weights.layers):
            if isinstance(layer, GdnLayerWeights):
                mixed = self._gdn(layer, self._recurrent[index], normed, trace)
            else:
                mixed = self._attention(layer, self._kv[index], normed, rope, self.length)
            residual, normed = add_rms_norm(residual, mixed, layer.post_norm, config.rms_eps)
            last = index + 1 == len(weights.layers)
            norm = weights.final_norm if last else weights.layers[index + 1].input_norm
            residual, normed = add_rms_norm(residual, _mlp(layer, normed), norm, config.rms_eps)
        return normed

    def _gdn(
        self,
        layer: GdnLayerWeights,
        recurrent: RecurrentState,
        x: Tensor,
        trace: _Trace | None,
    ) -> Tensor:
        config = self.config
        rows = x.shape[0]
        raw = _apply(layer.in_qkv, x)
        mixed, tail = causal_conv(raw, layer.conv, recurrent.tail)
        q, k, v = mixed.split((config.key_width, config.key_width, config.value_width), dim=-1)
        q = q.view(rows, config.key_heads, config.key_dim)
        k = k.view(rows, config.key_heads, config.key_dim)
        v = v.view(rows, config.value_heads, config.value_dim)
        g = decay_log(_apply(layer.in_a, x), layer.a_log, layer.dt_bias)
        strength = beta(_apply(layer.in_b, x))
        if trace is None:
            o, recurrent.state = gated_delta_chunked(recurrent.state, q, k, v, g, strength)
            recurrent.tail = tail.clone()
        else:
            states, outputs, state = [], [], recurrent.state
            for row in range(rows):
                state, out = gated_delta_step(state, q[row], k[row], v[row], g[row], strength[row])
                states.append(state)
                outputs.append(out)
            o = torch.stack(outputs)
            trace.states.append(states)
            trace.raw.append(torch.cat((recurrent.tail, raw)))
        z = _apply(layer.in_z, x).view(rows, config.value_heads, config.value_dim)
        y = gated_rms_norm(o, z, layer.gdn_norm, config.rms_eps)
        return _apply(layer.out, y.reshape(rows, -1))

    def _attention(
        self,
        layer: AttentionLayerWeights,
        cache: KvCache,
        x: Tensor,
        rope: tuple[Tensor, Tensor],
        start: int,
    ) -> Tensor:
        config = self.config
        rows = x.shape[0]
        query_gate = _apply(layer.q, x).view(rows, config.attention_heads, 2 * config.head_dim)
        query, gate = query_gate.chunk(2, dim=-1)
        key = _apply(layer.k, x).view(rows, config.kv_heads, config.head_dim)
        value = _apply(layer.v, x).view(rows, config.kv_heads, config.head_dim)
        query = apply_rope(rms_norm(query, layer.q_norm, config.rms_eps), *rope)
        key = apply_rope(rms_norm(key, layer.k_norm, config.rms_eps), *rope)
        keys, values = cache.write(key, value, start)
        attended = attention(query, keys, values, start, config.head_dim**-0.5)
        gated = output_gate(attended, gate).reshape(rows, -1)
        return _apply(layer.o, gated)

    def _mtp_forward(
        self, mtp: MtpWeights, hidden: Tensor, next_ids: Sequence[int], start: int
    ) -> Tensor:
        """MTP rows [T, hidden] for (hidden of position p, token of position p + 1), p from start."""
        eps = self.config.rms_eps
        embedded = embed(self._weights.embed, torch.tensor(next_ids))
        pair = torch.cat(
            (
                rms_norm(embedded, mtp.norm_embedding, eps),
                rms_norm(hidden, mtp.norm_hidden, eps),
            ),
            dim=-1,
        )
        residual = _apply(mtp.fc, pair)
        positions = torch.arange(start, start + len(next_ids))
        rope = rope_tables(positions, self.config.rotary_dim, self.config.rope_theta, self._dtype)
        normed = rms_norm(residual, mtp.layer.input_norm, eps)
        mixed = self._attention(mtp.layer, self._mtp_kv, normed, rope, start)
        residual, normed = add_rms_norm(residual, mixed, mtp.layer.post_norm, eps)
        return add_rms_norm(residual, _mlp(mtp.layer, normed), mtp.norm, eps)[1]


def _apply(weight: Dense, x: Tensor) -> Tensor:
    return linear(x, weight.weight)


def _mlp(layer: LayerWeights, x: Tensor) -> Tensor:
    return _apply(layer.down, silu_mul(_apply(layer.gate, x), _apply(layer.up, x)))


def _in_dtype(record: ModelWeights, dtype: torch.dtype) -> ModelWeights:
    """The same record with every linear dense and every tensor in dtype; float32 gates stay float32."""
    changes = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, tuple):
            changes[field.name] = tuple(_in_dtype(item, dtype) for item in value)
        elif isinstance(value, Dense | Nvfp4 | Fp8Block | Fp8Row):
            changes[field.name] = Dense(value.dequantise().to(dtype))
        elif isinstance(value, Tensor):
            keep = field.name in ("a_log", "dt_bias", "gdn_norm")
            changes[field.name] = value if keep else value.to(dtype)
        elif value is not None:
            changes[field.name] = _in_dtype(value, dtype)
    return replace(record, **changes)
