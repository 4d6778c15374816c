# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks of the Triton norms and elementwise steps: twins in float64, row invariance, edges of the range."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from kernels.checks import CheckResult
from kernels.elementwise import reference as elementwise
from kernels.elementwise.triton import delta_gates, output_gate, silu_mul
from kernels.embedding.triton import embed
from kernels.rms_norm import reference
from kernels.rms_norm.triton import add_rms_norm, gated_rms_norm, rms_norm
from kernels.triton_checks import Bench, batched_like_alone

if TYPE_CHECKING:
    from kernels.cuda_build import CudaLibrary

EPS = 1e-6
WIDTHS = (48, 5120)
HEADS = ((3, 16), (48, 128))
# A root in hardware falls to the other side of a rounding here and there, and two more roundings follow.
GATED_ULPS = 4


def check(
    library: CudaLibrary,
    *,
    seed: int = 0,
    widths: tuple[int, ...] = WIDTHS,
    heads: tuple[tuple[int, int], ...] = HEADS,
) -> Iterator[CheckResult]:
    """Every width and head: bounds, equal bits for every number of rows, faults."""
    for width in widths:
        yield from _norms(Bench("rms_norm", library, seed), width)
        yield from _rows(Bench("elementwise", library, seed), width)
    for count, dim in heads:
        yield from _heads(Bench("rms_norm", library, seed), count, dim)


def _norms(bench: Bench, width: int) -> Iterator[CheckResult]:
    weight = bench.random(width, salt=1) * 0.1
    for name, scale in (("normal", 1.0), ("tiny", 1e-30), ("large", 1e17)):
        x = (bench.random(5, width).float() * scale).bfloat16()
        out = bench.empty(5, width)
        rms_norm(x, weight, out, eps=EPS, rows=5)
        wide = x.double()
        exact = wide * (wide.square().mean(-1, keepdim=True) + EPS).rsqrt()
        exact = exact * (1 + weight.double())
        yield bench.near(f"{width} columns, {name}", out, exact)
        yield bench.mostly(f"{width} columns, {name}, one rounding", out, exact.bfloat16())
        yield bench.unnoticed(
            "weight not zero-centred",
            bench.near("", out, exact / (1 + weight.double()) * weight.double()),
        )
    x, residual = bench.random(5, width), bench.random(5, width, salt=2)
    out, total = bench.empty(5, width), residual.clone()
    add_rms_norm(total, x, weight, out, eps=EPS, rows=5)
    two = bench.empty(5, width)
    rms_norm(residual + x, weight, two, eps=EPS, rows=5)
    yield bench.same(f"{width} columns, stored sum", total, residual + x)
    yield bench.same(f"{width} columns, sum and norm in one launch", out, two)

    many, other = bench.random(32, width, salt=3), bench.random(32, width, salt=4)

    def norm(rows: list[int]) -> torch.Tensor:
        out = bench.empty(len(rows), width)
        rms_norm(many[rows], weight, out, eps=EPS, rows=len(rows))
        return out

    def summed(rows: list[int]) -> torch.Tensor:
        out = bench.empty(len(rows), width)
        add_rms_norm(other[rows], many[rows], weight, out, eps=EPS, rows=len(rows))
        return out

    yield batched_like_alone(bench, f"norm of {width} columns", norm)
    yield batched_like_alone(bench, f"sum and norm of {width} columns", summed)


def _heads(bench: Bench, count: int, dim: int) -> Iterator[CheckResult]:
    width = count * dim
    o, z = bench.random(4, width), bench.random(4, width, salt=1) * 4
    weight = bench.random(dim, dtype=torch.float32, salt=2)
    out = bench.empty(4, width)
    gated_rms_norm(o, z, weight, out, eps=EPS, rows=4)
    wanted = reference.gated_rms_norm(o.view(4, count, dim), z.view(4, count, dim), weight, EPS)
    yield bench.near(f"gated norm of {count} heads", out, wanted, ulps=GATED_ULPS)
    yield bench.mostly(f"gated norm of {count} heads, rounding points", out, wanted)
    other = reference.gated_rms_norm(
        o.view(4, count, dim), z.view(4, count, dim), weight.roll(1), EPS
    )
    yield bench.unnoticed("weight shifted", bench.near("", out, other, ulps=GATED_ULPS))
    gated_rms_norm(o, z, weight, o, eps=EPS, rows=4)
    yield bench.same(f"gated norm of {count} heads in place", o, out)
    many, gates = bench.random(32, width, salt=3), bench.random(32, width, salt=4)

    def gated(rows: list[int]) -> torch.Tensor:
        got = bench.empty(len(rows), width)
        gated_rms_norm(many[rows], gates[rows], weight, got, eps=EPS, rows=len(rows))
        return got

    yield batched_like_alone(bench, f"gated norm of {count} heads", gated)


def _rows(bench: Bench, width: int) -> Iterator[CheckResult]:
    both = bench.random(5, 2 * width) * 6
    out = bench.empty(5, width)
    silu_mul(both, out, rows=5)
    twin = elementwise.silu_mul(both[:, :width], both[:, width:])
    yield bench.mostly(f"silu_mul of {width} columns, rounding points", out, twin)
    gate, up = both[:, :width].double(), both[:, width:].double()
    gate = (gate * gate.sigmoid()).bfloat16().double()
    yield bench.near(f"silu_mul of {width} columns", out, gate * up, ulps=1.5)
    yield bench.unnoticed(
        "gate and up swapped", bench.near("", out, up * up.sigmoid() * both[:, :width].double())
    )

    dim = 16
    attn = bench.random(5, width, salt=1)
    output_gate(attn, both, out, rows=5, dim=dim)
    gate = both.view(5, -1, 2, dim)[:, :, 1].reshape(5, width)
    twin = elementwise.output_gate(attn, gate)
    yield bench.mostly(f"output gate of {width} columns, rounding points", out, twin)
    gate = gate.double().sigmoid().bfloat16()
    yield bench.near(
        f"output gate of {width} columns", out, attn.double() * gate.double(), ulps=1.5
    )

    heads = min(width, 48)
    a, b = bench.random(5, heads) * 12, bench.random(5, heads, salt=1) * 8
    a_log, dt_bias = bench.random(heads, dtype=torch.float32), bench.random(heads, salt=2)
    g, beta = (bench.empty(5, heads, dtype=torch.float32) for _ in range(2))
    delta_gates(a, b, a_log, dt_bias, g, beta, rows=5)
    step = a.double() + dt_bias.double()
    exact = -a_log.double().exp() * torch.log1p(step.clamp(max=60).exp())
    yield bench.holds("decay within 2e-6 of it", bool(((g - exact) / exact).abs().max() < 2e-6))
    yield bench.close("write strength", beta, b.double().sigmoid(), relative=1e-6)

    yield from _rows_alone(bench, width, dim, (a_log, dt_bias))

    table, ids = bench.random(7, width), bench.ints(3, 6, -1, 7, 0)
    embed(table, ids, out, rows=5)
    yield bench.same("embedded rows", out[[0, 1, 4]], table[[3, 6, 0]])
    yield bench.holds("an id outside the table gives NaN", bool(out[2:4].isnan().all()))


def _rows_alone(
    bench: Bench, width: int, dim: int, decay: tuple[torch.Tensor, torch.Tensor]
) -> Iterator[CheckResult]:
    heads = len(decay[0])
    both, attn = bench.random(32, 2 * width) * 6, bench.random(32, width, salt=1)
    a, b = bench.random(32, heads) * 12, bench.random(32, heads, salt=1) * 8

    def activation(rows: list[int]) -> torch.Tensor:
        out = bench.empty(len(rows), width)
        silu_mul(both[rows], out, rows=len(rows))
        return out

    def gate(rows: list[int]) -> torch.Tensor:
        out = bench.empty(len(rows), width)
        output_gate(attn[rows], both[rows], out, rows=len(rows), dim=dim)
        return out

    def gates(rows: list[int]) -> torch.Tensor:
        g, beta = (bench.empty(len(rows), heads, dtype=torch.float32) for _ in range(2))
        delta_gates(a[rows], b[rows], *decay, g, beta, rows=len(rows))
        return torch.cat((g, beta), 1)

    yield batched_like_alone(bench, f"silu_mul of {width} columns", activation)
    yield batched_like_alone(bench, f"output gate of {width} columns", gate)
    yield batched_like_alone(bench, f"decay and write strength of {heads} heads", gates)
