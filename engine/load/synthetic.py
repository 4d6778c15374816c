# SPDX-License-Identifier: MIT OR Apache-2.0
"""Random weights of a given shape, made directly in their stored form: for measuring, never for text.

Matrices are drawn as random codes, so no wider copy of a big one ever exists. Scales are set so that rows keep
a magnitude of about one through the layers and logits are of order one.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from engine.errors import UsageError
from engine.load.stored import FP8_BLOCK, NVFP4_GROUP, Dense, Fp8Block, Fp8Row, Nvfp4, StoredLinear
from engine.load.weights import (
    AttentionLayerWeights,
    ExpertWeights,
    GdnLayerWeights,
    LayerWeights,
    ModelWeights,
    MoeWeights,
    MtpWeights,
)
from engine.model.config import FULL, ModelConfig

WEIGHT_FORMATS = ("nvfp4", "fp8", "bf16")
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_ROUTER_GAIN = 2.0  # so that a token's experts are not weighted all alike
_RESIDUAL_GAIN = 0.5  # of the projections that add to the residual stream, so that it grows slowly


def synthetic_weights(
    config: ModelConfig, weight_format: str = "nvfp4", seed: int = 0
) -> ModelWeights:
    """Random weights for `config`; the MTP head is there when config.mtp_layers says so.

    Args:
        weight_format: "nvfp4" (NVFP4 linears, FP8 head), "fp8" (128x128 blocks, FP8 head) or "bf16". Beta and
            decay projections, routers, embedding and norms are BF16 in all of them. Only "bf16" honours a tied
            head: the others store an FP8 head of their own, as the quantiser does.
        seed: equal seeds give equal weights.

    Raises:
        UsageError: an unknown format, or a shape whose columns the format cannot hold.
    """
    if weight_format not in WEIGHT_FORMATS:
        raise UsageError(
            f"There is no weight format {weight_format!r}.",
            next_step=f"Use one of {', '.join(WEIGHT_FORMATS)}.",
        )
    draw = _Draw(weight_format, seed)
    hidden, vocab = config.hidden_size, config.vocab_size
    embed = draw.matrix(vocab, hidden, 1.0)
    head: StoredLinear | None = draw.head(vocab, hidden)
    if weight_format == "bf16":
        head = None if config.tied else Dense(draw.matrix(vocab, hidden, hidden**-0.5))
        if config.tied:
            embed.mul_(hidden**-0.5)
    return ModelWeights(
        embed=embed,
        final_norm=draw.norm(hidden),
        head=head,
        layers=tuple(_layer(draw, config, kind) for kind in config.layer_types),
        mtp=_mtp(draw, config) if config.mtp_layers else None,
    )


def synthetic_head(config: ModelConfig, seed: int = 0) -> Fp8Row:
    """The output head alone, as NVFP4 and FP8 weights store it."""
    return _Draw("fp8", seed).head(config.vocab_size, config.hidden_size)


def _layer(draw: _Draw, config: ModelConfig, kind: str) -> LayerWeights:
    return _attention(draw, config) if kind == FULL else _gdn(draw, config)


def _gdn(draw: _Draw, config: ModelConfig) -> GdnLayerWeights:
    hidden, heads = config.hidden_size, config.value_heads
    small = hidden**-0.5
    return GdnLayerWeights(
        input_norm=draw.norm(hidden),
        in_qkv=draw.linear(config.qkv_rows, hidden),
        in_z=draw.linear(config.value_width, hidden),
        in_b=Dense(draw.matrix(heads, hidden, small)),
        in_a=Dense(draw.matrix(heads, hidden, small)),
        conv=draw.matrix(config.qkv_rows, config.conv_width, 0.5),
        dt_bias=draw.uniform(heads, -4.0, 0.0),
        a_log=draw.uniform(heads, -3.0, 2.0),
        gdn_norm=torch.ones(config.value_dim),
        out=draw.linear(hidden, config.value_width, _RESIDUAL_GAIN),
        post_norm=draw.norm(hidden),
        gate=draw.linear(config.intermediate_size, hidden),
        up=draw.linear(config.intermediate_size, hidden),
        down=draw.linear(hidden, config.intermediate_size, _RESIDUAL_GAIN),
        moe=_moe(draw, config),
    )


def _attention(draw: _Draw, config: ModelConfig) -> AttentionLayerWeights:
    hidden = config.hidden_size
    return AttentionLayerWeights(
        input_norm=draw.norm(hidden),
        q=draw.linear(config.q_rows, hidden),
        k=draw.linear(config.kv_rows, hidden),
        v=draw.linear(config.kv_rows, hidden),
        o=draw.linear(hidden, config.attention_width, _RESIDUAL_GAIN),
        q_norm=draw.norm(config.head_dim),
        k_norm=draw.norm(config.head_dim),
        post_norm=draw.norm(hidden),
        gate=draw.linear(config.intermediate_size, hidden),
        up=draw.linear(config.intermediate_size, hidden),
        down=draw.linear(hidden, config.intermediate_size, _RESIDUAL_GAIN),
        moe=_moe(draw, config),
    )


def _moe(draw: _Draw, config: ModelConfig) -> MoeWeights | None:
    hidden, size = config.hidden_size, config.expert_size
    if not config.experts:
        return None
    return MoeWeights(
        router=Dense(draw.matrix(config.experts, hidden, _ROUTER_GAIN * hidden**-0.5)),
        shared_gate=Dense(draw.matrix(1, hidden, hidden**-0.5)),
        experts=tuple(
            ExpertWeights(
                gate=draw.linear(size, hidden),
                up=draw.linear(size, hidden),
                down=draw.linear(hidden, size, _RESIDUAL_GAIN),
            )
            for _ in range(config.experts)
        ),
    )


def _mtp(draw: _Draw, config: ModelConfig) -> MtpWeights:
    hidden = config.hidden_size
    return MtpWeights(
        fc=draw.linear(hidden, 2 * hidden),
        norm_embedding=draw.norm(hidden),
        norm_hidden=draw.norm(hidden),
        norm=draw.norm(hidden),
        layer=_attention(draw, config),
    )


class _Draw:
    """Random tensors in stored form from one seeded stream."""

    def __init__(self, weight_format: str, seed: int) -> None:
        self._format = weight_format
        self._random = np.random.Generator(np.random.SFC64(seed))

    def linear(self, rows: int, columns: int, gain: float = 1.0) -> StoredLinear:
        """A matrix [rows, columns] whose elements have standard deviation gain / sqrt(columns)."""
        deviation = gain * columns**-0.5
        if self._format == "nvfp4":
            return self._nvfp4(rows, columns, deviation)
        if self._format == "fp8":
            blocks = -(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK)
            scale = torch.full(blocks, deviation / _octaves_rms(8))
            return Fp8Block(self._e4m3(rows, columns, 0x8F), scale)
        return Dense(self.matrix(rows, columns, deviation))

    def head(self, rows: int, columns: int) -> Fp8Row:
        """An output head with one scale a row; logits of a normed row have deviation about one."""
        scale = torch.full((rows,), columns**-0.5 / _octaves_rms(8))
        return Fp8Row(self._e4m3(rows, columns, 0x8F), scale)

    def matrix(self, rows: int, columns: int, deviation: float) -> Tensor:
        """A bf16 matrix [rows, columns]."""
        # Random sign, exponent -1 or 0 and mantissa: magnitudes from 0.5 to 2.
        bits = self._bytes(2 * rows * columns).view(np.uint16)
        bits &= 0x80FF
        bits |= 0x3F00
        values = _tensor(bits.view(np.int16), torch.bfloat16, rows, columns)
        return values.mul_(deviation / _octaves_rms(128))

    def norm(self, size: int) -> Tensor:
        """A zero-centred bf16 norm weight."""
        return self.uniform(size, -0.1, 0.1).to(torch.bfloat16)

    def uniform(self, size: int, low: float, high: float) -> Tensor:
        """float32 [size] between low and high."""
        return torch.from_numpy(self._random.uniform(low, high, size).astype(np.float32))

    def _nvfp4(self, rows: int, columns: int, deviation: float) -> Nvfp4:
        if columns % NVFP4_GROUP:
            raise UsageError(
                f"NVFP4 holds columns in groups of {NVFP4_GROUP}; this shape has {columns}.",
                next_step="Measure this shape in fp8 or bf16.",
            )
        codes = _tensor(self._bytes(rows * columns // 2), torch.uint8, rows, columns // 2)
        code_rms = math.sqrt(sum(value * value for value in _E2M1) / len(_E2M1))
        scales = self._e4m3(rows, columns // NVFP4_GROUP, 0x0F)
        return Nvfp4(codes, scales, deviation / (code_rms * _octaves_rms(8)))

    def _e4m3(self, rows: int, columns: int, random_bits: int) -> Tensor:
        """E4M3 [rows, columns] of magnitude 0.5 to 1.875; 0x8F draws the sign, 0x0F leaves it positive."""
        codes = self._bytes(rows * columns)
        codes &= random_bits
        codes |= 0x30
        return _tensor(codes, torch.float8_e4m3fn, rows, columns)

    def _bytes(self, count: int) -> np.ndarray:
        words = self._random.integers(0, 1 << 64, -(-count // 8), dtype=np.uint64)
        return words.view(np.uint8)[:count]


def _tensor(values: np.ndarray, dtype: torch.dtype, rows: int, columns: int) -> Tensor:
    """The bits of `values` as [rows, columns] of `dtype`: no view, which would keep the memory when emptied."""
    return torch.from_numpy(values).view(dtype).view(rows, columns).detach()


def _octaves_rms(steps: int) -> float:
    """Root mean square of the numbers 0.5 to 2 with `steps` equal steps an octave, all equally likely."""
    octave = [1 + step / steps for step in range(steps)]
    mean = sum(value * value for value in octave) / steps
    return math.sqrt(mean * (1 + 0.25) / 2)
