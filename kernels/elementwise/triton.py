# SPDX-License-Identifier: MIT OR Apache-2.0
"""Elementwise steps on a GPU.

`silu_mul(gate_up, out, rows)`, `output_gate(attn, gated, out, rows)` and `delta_gates(a, b, a_log, dt_bias, g,
beta, rows)`, the decay's logarithm and the write strength of the delta rule; twins in reference.py and in
gated_delta/reference.py (`decay_log`). Beta stays in float32, as in the native kernels.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_build import Compiled, Variant, launch_options
from kernels.triton_math import sigmoid, silu, softplus, to_bf16
from kernels.triton_operands import power_of_two, require, require_device, require_rows

_BLOCK = 1024


@triton.jit
def _silu_mul(
    gate_up, out, gate_up_stride, out_stride, F: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < F
    at = gate_up + row * gate_up_stride + column
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + F, mask=inside, other=0.0).to(tl.float32)
    y = to_bf16(silu(gate)).to(tl.float32) * up
    tl.store(out + row * out_stride + column, to_bf16(y), mask=inside)


@triton.jit
def _output_gate(
    attn, gated, out, attn_stride, gated_stride, out_stride, D: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    i = tl.arange(0, BLOCK)
    inside = i < D
    value = tl.load(attn + row * attn_stride + head * D + i, mask=inside, other=0.0)
    at = gated + row * gated_stride + head * 2 * D + D + i
    gate = to_bf16(sigmoid(tl.load(at, mask=inside, other=0.0).to(tl.float32)))
    y = value.to(tl.float32) * gate.to(tl.float32)
    tl.store(out + row * out_stride + head * D + i, to_bf16(y), mask=inside)


@triton.jit
def _delta_gates(
    a, b, a_log, dt_bias, g, beta, a_stride, b_stride, HEADS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, BLOCK)
    inside = head < HEADS
    step = tl.load(a + row * a_stride + head, mask=inside, other=0.0).to(tl.float32)
    step += tl.load(dt_bias + head, mask=inside, other=0.0).to(tl.float32)
    rate = tl.exp(tl.load(a_log + head, mask=inside, other=0.0).to(tl.float32))
    strength = tl.load(b + row * b_stride + head, mask=inside, other=0.0).to(tl.float32)
    tl.store(g + row * HEADS + head, -rate * softplus(step), mask=inside)
    tl.store(beta + row * HEADS + head, sigmoid(strength), mask=inside)


GATE = Compiled(
    "elementwise/triton.py",
    Variant(
        "silu_mul_17408",
        _silu_mul,
        {"gate_up": "*bf16", "out": "*bf16", "gate_up_stride": "i32:16", "out_stride": "i32:16"},
        {"F": 17408, "BLOCK": _BLOCK},
    ),
    Variant(
        "output_gate_256",
        _output_gate,
        {"attn": "*bf16", "gated": "*bf16", "out": "*bf16"}
        | {"attn_stride": "i32:16", "gated_stride": "i32:16", "out_stride": "i32:16"},
        {"D": 256, "BLOCK": 256},
        warps=1,
    ),
    Variant(
        "delta_gates_48",
        _delta_gates,
        {"a": "*bf16", "b": "*bf16", "a_log": "*bf16", "dt_bias": "*bf16", "g": "*fp32"}
        | {"beta": "*fp32", "a_stride": "i32:16", "b_stride": "i32:16"},
        {"HEADS": 48, "BLOCK": 64},
        warps=1,
    ),
)
entries, cubins, shared_bytes = GATE.entries, GATE.cubins, GATE.shared_bytes


def silu_mul(gate_up: Tensor, out: Tensor, *, rows: int) -> None:
    """out = round(round(silu(gate)) * up).

    Args:
        gate_up: bf16 [>= rows, 2F], the gate first; out: bf16 [>= rows, F]; unit column strides.

    Raises:
        ValueError: an operand differs from the above; nothing was launched.
    """
    width = out.shape[-1]
    strides = (
        require_rows("gate_up", gate_up, torch.bfloat16, rows, 2 * width),
        require_rows("out", out, torch.bfloat16, rows, width),
    )
    require_device(gate_up=gate_up, out=out)
    grid = (rows, triton.cdiv(width, _BLOCK))
    _silu_mul[grid](gate_up, out, *strides, width, _BLOCK, **launch_options(4))


def output_gate(attn: Tensor, gated: Tensor, out: Tensor, *, rows: int, dim: int) -> None:
    """out = round(attn * round(sigmoid(gate))).

    Args:
        attn, out: bf16 [>= rows, heads * dim], unit column strides; `out` may be `attn`.
        gated: bf16 [>= rows, heads * 2 dim], the query projection with the gate in each head's second half.

    Raises:
        ValueError: an operand differs from the above; nothing was launched.
    """
    width = attn.shape[-1]
    if dim < 1 or width % dim:
        raise ValueError(f"attn has {width} columns, which is no multiple of the head's {dim}")
    strides = (
        require_rows("attn", attn, torch.bfloat16, rows, width),
        require_rows("gated", gated, torch.bfloat16, rows, 2 * width),
        require_rows("out", out, torch.bfloat16, rows, width),
    )
    require_device(attn=attn, gated=gated, out=out)
    grid = (rows, width // dim)
    _output_gate[grid](attn, gated, out, *strides, dim, power_of_two(dim), **launch_options(1))


def delta_gates(
    a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor, g: Tensor, beta: Tensor, *, rows: int
) -> None:
    """g = -exp(a_log) * softplus(a + dt_bias), the decay's logarithm; beta = sigmoid(b); both float32.

    Args:
        a, b: bf16 [>= rows, heads], unit column strides.
        a_log, dt_bias: bf16 or float32 [heads].
        g, beta: float32 [>= rows, heads], contiguous.

    Raises:
        ValueError: an operand differs from the above; nothing was launched.
    """
    (heads,) = a_log.shape
    for name, tensor in (("a_log", a_log), ("dt_bias", dt_bias)):
        dtype = torch.float32 if tensor.dtype == torch.float32 else torch.bfloat16
        require(name, tensor, dtype, (heads,))
    strides = (
        require_rows("a", a, torch.bfloat16, rows, heads),
        require_rows("b", b, torch.bfloat16, rows, heads),
    )
    for name, tensor in (("g", g), ("beta", beta)):
        require(name, tensor, torch.float32, (None, heads))
        if tensor.shape[0] < rows:
            raise ValueError(f"{name} must hold at least {rows} rows, got {tensor.shape[0]}")
    require_device(a=a, b=b, a_log=a_log, dt_bias=dt_bias, g=g, beta=beta)
    block = power_of_two(heads)
    _delta_gates[(rows,)](
        a, b, a_log, dt_bias, g, beta, *strides, heads, block, **launch_options(1)
    )
