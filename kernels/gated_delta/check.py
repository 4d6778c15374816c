# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks of the native gated delta layer: float64 bounds, equal bits on every route, mutations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.build import NativeLibrary
from kernels.checks import CheckResult, compare, expect, gamma, half_ulp_bf16, same_bits
from kernels.gated_delta.buffers import (
    DeltaShape,
    DeltaWork,
)
from kernels.gated_delta.check_layer import EPS, DeltaInputs, DeltaLayer, random_inputs

_U = 2.0**-24
_BF16_UNIT = 2.0**-8


@dataclass(frozen=True)
class ExactPrepare:
    """float64 operands of the walk: q, k [T, Hk, dk], v [T, Hv, dv], decay, beta [T, Hv]."""

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor
    beta: Tensor


def exact_prepare(shape: DeltaShape, inputs: DeltaInputs) -> ExactPrepare:
    """The preparation in float64, the convolution's output not rounded."""
    rows = torch.cat((inputs.tail, inputs.raw)).double()
    windows = rows.unfold(0, 4, 1)
    conv = (windows * inputs.conv.double()).sum(-1)
    conv = conv * torch.sigmoid(conv)
    width = shape.key_heads * shape.key_dim
    count = inputs.raw.shape[0]
    q, k, v = conv.split([width, width, shape.value_width], dim=1)
    gate = inputs.a.double() + inputs.dt_bias.double()
    soft = torch.maximum(gate, gate.new_zeros(())) + torch.log1p(torch.exp(-gate.abs()))
    return ExactPrepare(
        q.view(count, shape.key_heads, shape.key_dim),
        k.view(count, shape.key_heads, shape.key_dim),
        v.view(count, shape.value_heads, shape.value_dim),
        torch.exp(-torch.exp(inputs.a_log.double()) * soft),
        torch.sigmoid(inputs.b.double()),
    )


def exact_walk(
    shape: DeltaShape, inputs: DeltaInputs, operands: ExactPrepare
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """float64 recurrence and gated norm with running error bounds of the native order of sums.

    Returns:
        (y [T, Hv*dv], its bound, state [Hv, dk, dv], its bound). The bounds follow each fp32
        operation of a step (sums of dk terms in two halves, one fused update) and the three bf16
        roundings of the gated norm.
    """
    group = shape.value_heads // shape.key_heads
    state = inputs.state.double()
    error = torch.zeros_like(state)
    sum_unit = gamma(shape.key_dim // 2 + 2)
    outputs, bounds = [], []
    for t in range(operands.v.shape[0]):
        q = operands.q[t].repeat_interleave(group, 0)
        k = operands.k[t].repeat_interleave(group, 0)
        g, beta = operands.decay[t][:, None], operands.beta[t][:, None]

        def over_keys(tiles: Tensor, vector: Tensor) -> Tensor:
            return torch.einsum("hkv,hk->hv", tiles, vector)

        recalled = over_keys(state, k)
        recalled_error = sum_unit * over_keys(state.abs(), k.abs()) + over_keys(error, k.abs())
        d = (operands.v[t] - g * recalled) * beta
        d_error = (
            beta * (g * recalled_error + 4 * _U * (operands.v[t].abs() + g * recalled.abs()))
            + 2 * _U * d.abs()
        )
        read = over_keys(state, q)
        read_error = sum_unit * over_keys(state.abs(), q.abs()) + over_keys(error, q.abs())
        dot = (q * k).sum(-1, keepdim=True)
        dot_error = gamma(shape.key_dim // 16 + 5) * (q * k).abs().sum(-1, keepdim=True)
        o = g * read + dot * d
        o_error = (
            g * read_error
            + dot.abs() * d_error
            + dot_error * d.abs()
            + 4 * _U * (g * read.abs() + dot.abs() * d.abs())
        )
        step = k[:, :, None] * d[:, None, :]
        new_state = g[:, :, None] * state + step
        error = (
            g[:, :, None] * error
            + k.abs()[:, :, None] * d_error[:, None, :]
            + 3 * _U * (g[:, :, None] * state.abs() + step.abs())
            + 2.0**-148
        )
        state = new_state
        y, y_error = _exact_gate(shape, inputs, t, o, o_error + half_ulp_bf16(o.abs() + o_error))
        outputs.append(y.flatten())
        bounds.append(y_error.flatten())
    return torch.stack(outputs), torch.stack(bounds), state, error


def _exact_gate(
    shape: DeltaShape, inputs: DeltaInputs, row: int, o: Tensor, error: Tensor
) -> tuple[Tensor, Tensor]:
    inverse = torch.rsqrt(o.square().mean(-1, keepdim=True) + EPS)
    z = inputs.z[row].double().view(shape.value_heads, shape.value_dim)
    factor = inputs.norm.double() * z * torch.sigmoid(z)
    y = o * inverse * factor
    # First order in the error of o: directly, and through the root mean square.
    spread = error * inverse + (o * inverse).abs() * (
        error.square().mean(-1, keepdim=True).sqrt() * inverse
    )
    return y, 1.1 * factor.abs() * spread + 3.1 * _BF16_UNIT * y.abs() + 1e-36


def check(library: NativeLibrary, *, seed: int = 0) -> list[CheckResult]:
    """Every check of the preparation and of the walk on one instruction-set level."""
    results = []
    shapes = {
        "demo": DeltaShape(1, 3, 128, 128),
        "grouped": DeltaShape(2, 6, 32, 48),
        "ragged": DeltaShape(3, 3, 20, 16),
    }
    for name, shape in shapes.items():
        for kind in ("gaussian", "correlated", "outliers", "denormal", "zeros"):
            inputs = random_inputs(shape, 12, seed, kind)
            results += _check_numbers(library, shape, inputs, f"{name} {kind}")
        results.append(_check_routes(library, shape, random_inputs(shape, 40, seed + 1), name))
        results.append(_check_tree(library, shape, random_inputs(shape, 40, seed + 2), name))
    results += _check_mutations(library, shapes["grouped"], seed)
    return results


def _check_numbers(
    library: NativeLibrary, shape: DeltaShape, inputs: DeltaInputs, what: str
) -> list[CheckResult]:
    rows = list(range(inputs.raw.shape[0]))
    layer = DeltaLayer(library, shape, inputs)
    y = layer.advance(rows)
    work, recurrent = layer.work, layer.recurrent()
    layer.close()
    exact = exact_prepare(shape, inputs)
    terms = torch.cat((inputs.tail, inputs.raw)).double().unfold(0, 4, 1) * inputs.conv.double()
    # SiLU has a slope of at most 1.1; four fused terms, then 4 ulp of SiLU and one rounding.
    sums = (gamma(4) * 1.1 * terms.abs().sum(-1)).split(
        [
            shape.key_heads * shape.key_dim,
            shape.key_heads * shape.key_dim,
            shape.value_width,
        ],
        dim=1,
    )
    label = ("causal_conv", library.isa)
    results = []
    native_v = work.v.transpose(0, 1)
    bound = sums[2].view_as(exact.v) + half_ulp_bf16(exact.v) + 8 * _U * exact.v.abs() + 2.0**-133
    results.append(compare(*label, native_v, exact.v, bound * 1.01, what=f"{what} v"))
    for name, got, raw, slack in (
        ("q", work.q, exact.q, sums[0]),
        ("k", work.k, exact.k, sums[1]),
    ):
        scale = shape.key_dim**-0.5 if name == "q" else 1.0
        part = slack.view_as(raw) + half_ulp_bf16(raw) + 8 * _U * raw.abs() + 2.0**-133
        inverse = torch.rsqrt(raw.square().sum(-1, keepdim=True) + 1e-6)
        unit = raw * inverse
        total = part.square().sum(-1, keepdim=True).sqrt() * inverse
        bound = scale * (1.1 * (part * inverse + unit.abs() * total) + 40 * _U * unit.abs())
        results.append(
            compare(*label, got.transpose(0, 1), unit * scale, bound + 1e-40, what=f"{what} {name}")
        )
    gate = inputs.a.double() + inputs.dt_bias.double()
    rate = torch.exp(inputs.a_log.double())
    soft = torch.maximum(gate, gate.new_zeros(())) + torch.log1p(torch.exp(-gate.abs()))
    # The exponent carries 8 ulp of its own size into the result.
    decay_bound = exact.decay * (8 * _U + 8 * _U * rate * soft + 2 * _U * rate) + 2.0**-148
    results.append(compare(*label, work.decay, exact.decay, decay_bound, what=f"{what} decay"))
    results.append(
        compare(*label, work.beta, exact.beta, 8 * _U * exact.beta + 1e-44, what=f"{what} beta")
    )
    own = native_operands(work)
    want, bound, state, state_bound = exact_walk(shape, inputs, own)
    label = ("gated_delta", library.isa)
    results.append(compare(*label, y, want, bound, what=f"{what} output"))
    results.append(compare(*label, recurrent, state, state_bound, what=f"{what} state"))
    return results


def native_operands(work: DeltaWork) -> ExactPrepare:
    """The operands the walk read, widened to float64, so that the walk is judged alone."""
    return ExactPrepare(
        work.q.transpose(0, 1).double(),
        work.k.transpose(0, 1).double(),
        work.v.transpose(0, 1).double(),
        work.decay.double(),
        work.beta.double(),
    )


def _check_routes(
    library: NativeLibrary, shape: DeltaShape, inputs: DeltaInputs, what: str
) -> CheckResult:
    """Row by row, in chunks, and by verify and commit, on one and two workers: equal bits."""
    rows = list(range(inputs.raw.shape[0]))
    wanted, final = _plain(library, shape, inputs, rows)

    def routes() -> list[tuple[str, int, Callable[[DeltaLayer], Tensor]]]:
        return [
            ("one chunk", 1, lambda layer: layer.advance(rows)),
            ("one chunk, two workers", 2, lambda layer: layer.advance(rows)),
            ("chunks of 7", 1, lambda layer: _in_chunks(layer, rows, 7)),
            ("verify of 1", 1, lambda layer: _in_passes(layer, rows, 1, 1)),
            ("verify of 6, 2 accepted", 1, lambda layer: _in_passes(layer, rows, 6, 2)),
            ("verify of 32, 5 accepted, two workers", 2, lambda la: _in_passes(la, rows, 32, 5)),
        ]

    for route, threads, drive in routes():
        layer = DeltaLayer(library, shape, inputs, threads)
        y = drive(layer)
        layer.close()
        if not same_bits(y, wanted) or not same_bits(layer.recurrent(), final):
            return replace(
                expect("gated_delta", library.isa, False, f"{what}: {route} has other bits"),
                row_invariant=False,
            )
    return replace(expect("gated_delta", library.isa, True, ""), row_invariant=True)


def _plain(
    library: NativeLibrary, shape: DeltaShape, inputs: DeltaInputs, rows: list[int]
) -> tuple[Tensor, Tensor]:
    layer = DeltaLayer(library, shape, inputs)
    y = torch.cat([layer.advance([row]) for row in rows])
    layer.close()
    return y, layer.recurrent()


def _in_chunks(layer: DeltaLayer, rows: list[int], size: int) -> Tensor:
    return torch.cat([layer.advance(rows[at : at + size]) for at in range(0, len(rows), size)])


def _in_passes(layer: DeltaLayer, rows: list[int], width: int, accepted: int) -> Tensor:
    """Verify `width` rows, keep `accepted` of them, go on behind those; the last pass commits."""
    outputs = []
    at = 0
    while at < len(rows):
        y = layer.verify(rows[at : at + width])
        kept = min(accepted, len(rows) - at)
        layer.commit(list(range(kept)))
        outputs.append(y[:kept])
        at += kept
    layer.verify(rows[-1:])  # applies what the last pass left pending, drops its own row
    return torch.cat(outputs)


def _check_tree(
    library: NativeLibrary, shape: DeltaShape, inputs: DeltaInputs, what: str
) -> CheckResult:
    """A node has the bits of decoding its path; committing a path leaves the path's state."""
    parents = [-1, 0, 1, 1, 3, 4, 0, 6, 6, 8, -1, 10, 11, 11]
    nodes = list(range(4, 4 + len(parents)))
    for threads in (1, 2):
        layer = DeltaLayer(library, shape, inputs, threads)
        layer.verify([0, 1, 2, 3])
        layer.commit([0, 1, 2])
        y = layer.verify(nodes, parents)
        path = [0, 6, 8, 9]
        layer.commit(path)
        after = layer.verify([30])
        layer.close()
        for node in range(len(parents)):
            chain = [node]
            while parents[chain[0]] >= 0:
                chain.insert(0, parents[chain[0]])
            rows = [0, 1, 2] + [nodes[i] for i in chain]
            alone, _ = _plain(library, shape, inputs, rows)
            if not same_bits(y[node], alone[-1]):
                reason = f"{what}: node {node} differs from decoding its path"
                return expect("gated_delta tree", library.isa, False, reason)
        rows = [0, 1, 2] + [nodes[i] for i in path]
        alone, _ = _plain(library, shape, inputs, [*rows, 30])
        _, committed = _plain(library, shape, inputs, rows)
        if not (same_bits(after[0], alone[-1]) and same_bits(layer.recurrent(), committed)):
            reason = f"{what}: a committed path differs from decoding it"
            return expect("gated_delta tree", library.isa, False, reason)
    return expect("gated_delta tree", library.isa, True, "")


def _check_mutations(library: NativeLibrary, shape: DeltaShape, seed: int) -> list[CheckResult]:
    """Wrong arithmetic must break the bounds: each mutation changes the exact side on purpose."""
    inputs = random_inputs(shape, 8, seed)
    layer = DeltaLayer(library, shape, inputs)
    y = layer.advance(list(range(8)))
    own, recurrent = native_operands(layer.work), layer.recurrent()
    layer.close()
    tiled = torch.arange(shape.value_heads) % shape.key_heads
    grouped = torch.arange(shape.value_heads) // (shape.value_heads // shape.key_heads)
    wrong_map = DeltaShape(shape.value_heads, shape.value_heads, shape.key_dim, shape.value_dim)
    assert not torch.equal(tiled, grouped)
    mutations = {
        "value heads mapped to key heads by remainder": (
            wrong_map,
            replace(own, q=own.q[:, tiled], k=own.k[:, tiled]),
        ),
        "decay left out": (shape, replace(own, decay=torch.ones_like(own.decay))),
        "beta rounded to bf16": (shape, replace(own, beta=own.beta.bfloat16().double())),
        "rows swapped": (shape, replace(own, v=own.v.flip(0))),
        "query and key swapped": (shape, replace(own, q=own.k, k=own.q)),
    }
    results = []
    for what, (mutated_shape, operands) in mutations.items():
        want, bound, state, state_bound = exact_walk(mutated_shape, inputs, operands)
        caught = (
            not compare("gated_delta", library.isa, y, want, bound).ok
            or not compare("gated_delta", library.isa, recurrent, state, state_bound).ok
        )
        results.append(expect("gated_delta", library.isa, caught, f"not caught: {what}"))
    return results
