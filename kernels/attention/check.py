# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks of native attention and its preparation: float64 bounds, equal bits, mutations."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kernels.attention.check_layer import (
    EPS,
    AttentionInputs,
    AttentionLayer,
    AttentionShape,
    random_inputs,
)
from kernels.build import NativeLibrary
from kernels.checks import CheckResult, compare, expect, gamma, half_ulp_bf16, same_bits
from kernels.gated_delta.buffers import tree_depths
from kernels.kv_cache.native import KvCache
from kernels.rope.reference import apply_rope

_U = 2.0**-24
_FIRST = 43  # rows before the pass whose numbers are compared


def exact_attention(
    shape: AttentionShape, inputs: AttentionInputs, layer: AttentionLayer, rows: list[int]
) -> tuple[Tensor, Tensor]:
    """float64 attention over what the cache holds, gated; (out [T, Hq*D], its bound).

    The bound: a score errs by gamma of its dot product, so a probability by e^(2 error) - 1 and
    the few ulp of exp; the weighted sum adds gamma of the positions and of the block rescales.
    Three bf16 roundings follow: the attention, the gate, their product.
    """
    start, count = int(layer.start), len(rows)
    length = start + count
    k, v = stored_numbers(layer.cache, length)
    group = shape.query_heads // shape.key_heads
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    q = layer.q_out.double()
    scale = shape.dim**-0.5
    scores = torch.einsum("thd,lhd->htl", q, k) * scale
    mass = torch.einsum("thd,lhd->htl", q.abs(), k.abs()) * scale
    hidden = torch.arange(length)[None, :] > start + torch.arange(count)[:, None]
    p = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    out = torch.einsum("htl,lhd->thd", p, v)
    # Half the pairs of a dot product a sum; subnormal operands may count as zero.
    score_error = gamma(shape.dim // 2 + 4) * mass + 1e-36
    worst = score_error.masked_fill(hidden, 0).amax(-1, keepdim=True)
    blocks = length // 32 + 1
    spread = torch.expm1(2 * worst) + gamma(length + 6 * blocks + 41)
    # The subtraction of the running maximum rounds at the size of the scores.
    spread = spread + 4 * _U * scores.abs().masked_fill(hidden, 0).amax(-1, keepdim=True)
    error = torch.einsum("htl,lhd->thd", p * spread, v.abs())
    if layer.cache.scaled:  # a probability times a scale may be subnormal
        error = error + length * 448 * 2.0**-149
    gate = inputs.q[rows].double().view(count, shape.query_heads, 2, shape.dim)[:, :, 1]
    factor = torch.sigmoid(gate)
    y = out * factor
    bound = 1.01 * factor * (error + half_ulp_bf16(out.abs() + error))
    gate_error = half_ulp_bf16(factor) + 8 * _U * factor + 2.0**-148
    bound = bound + 1.01 * out.abs() * gate_error + 1.01 * half_ulp_bf16(y.abs() + bound)
    return y.flatten(1), bound.flatten(1)


def stored_numbers(cache: KvCache, length: int) -> tuple[Tensor, Tensor]:
    """Keys and values of the first positions as exact float64, each [length, Hkv, D]."""
    keys, values, *scales = (x.double() for x in cache.stored(torch.arange(length)))
    if scales:
        keys, values = keys * scales[0][:, :, None], values * scales[1][:, :, None]
    return keys, values


def check(library: NativeLibrary, *, seed: int = 0) -> list[CheckResult]:
    """Every check of attention and its preparation on one instruction-set level."""
    results = []
    shapes = {
        "demo": AttentionShape(4, 1, 128, 32),
        "27b": AttentionShape(24, 4, 256, 64),
        "odd": AttentionShape(14, 2, 80, 20),
    }
    for name, shape in shapes.items():
        for kind in ("gaussian", "sharp", "outliers", "denormal", "zeros"):
            inputs = random_inputs(shape, 75, seed, kind)
            results += _check_numbers(library, shape, inputs, f"{name} {kind}")
        inputs = random_inputs(shape, 110, seed + 1)
        for scaled in (False, True):
            what = f"{name} in e4m3" if scaled else name
            results.append(_check_routes(library, shape, inputs, what, scaled))
            results.append(_check_tree(library, shape, inputs, what, scaled))
    for scaled in (False, True):
        results += _check_mutations(library, shapes["odd"], seed, scaled)
    return results


def _check_numbers(
    library: NativeLibrary, shape: AttentionShape, inputs: AttentionInputs, what: str
) -> list[CheckResult]:
    rows = list(range(inputs.q.shape[0]))
    layer, results = _filled(library, shape, inputs, what, scaled=False)
    k, v = layer.cache.read(len(rows))
    scaled, more = _filled(library, shape, inputs, f"{what} in e4m3", scaled=True)
    results += more
    twin = KvCache.zeros(len(rows), shape.key_heads, shape.dim, scaled=True)
    twin.write(0, k, v)
    both = (each.stored(torch.arange(len(rows))) for each in (scaled.cache, twin))
    same = all(same_bits(mine, wanted) for mine, wanted in zip(*both, strict=True))
    reason = f"{what}: a code or a scale differs from the twin's"
    results.append(expect("kv_cache", library.isa, same, reason))
    positions = torch.arange(len(rows))
    second = rows[_FIRST:]
    for name, got, raw, weight, at in (
        ("q", layer.q_out, _queries(shape, inputs)[second], inputs.q_norm, positions[second]),
        ("k", k, inputs.k.view(len(rows), shape.key_heads, -1), inputs.k_norm, positions),
    ):
        exact, limit = _exact_prepare(shape, raw, weight, layer.table[at])
        results.append(
            compare("rope", library.isa, got, exact, limit, what=f"{what} prepared {name}")
        )
    appended = same_bits(v, inputs.v.view(len(rows), shape.key_heads, shape.dim))
    results.append(
        expect("kv_cache", library.isa, appended, f"{what}: a value row differs from its input")
    )
    return results


def _filled(
    library: NativeLibrary,
    shape: AttentionShape,
    inputs: AttentionInputs,
    what: str,
    *,
    scaled: bool,
) -> tuple[AttentionLayer, list[CheckResult]]:
    """A layer that took all rows in three passes, and how its last pass compares with float64."""
    rows = list(range(inputs.q.shape[0]))
    layer = AttentionLayer(library, shape, inputs, len(rows), scaled=scaled)
    layer.run(rows[:_FIRST])
    layer.accept(list(range(32)))  # as many as a pass may accept; the rest is appended again
    layer.run(rows[32:_FIRST])
    layer.accept(list(range(_FIRST - 32)))
    y = layer.run(rows[_FIRST:])
    want, bound = exact_attention(shape, inputs, layer, rows[_FIRST:])
    layer.close()
    return layer, [compare("attention", library.isa, y, want, bound, what=f"{what} output")]


def _queries(shape: AttentionShape, inputs: AttentionInputs) -> Tensor:
    return inputs.q.view(-1, shape.query_heads, 2, shape.dim)[:, :, 0]


def _exact_prepare(
    shape: AttentionShape, raw: Tensor, weight: Tensor, angles: Tensor
) -> tuple[Tensor, Tensor]:
    """float64 norm and rotation of [T, H, D] with the stored cos and sin, and the bound."""
    x = raw.double()
    inverse = torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)
    normed = x * inverse * (1 + weight.double())
    half = shape.rotary_dim // 2
    cos, sin = (part.double().repeat(1, 2) for part in (angles[:, :half], angles[:, half:]))
    exact = apply_rope(normed, cos, sin)
    # The norm rounds once; each product of the rotation and their sum round once more.
    error = half_ulp_bf16(normed) + gamma(shape.dim // 16 + 20) * normed.abs()
    bound = error.clone()
    turned = slice(0, shape.rotary_dim)
    size, slack = normed[..., turned].abs(), error[..., turned]
    swapped, swapped_slack = size.roll(half, -1), slack.roll(half, -1)
    c, s = cos.abs()[:, None], sin.abs()[:, None]
    bound[..., turned] = (
        (slack * c + swapped_slack * s) * 1.02
        + half_ulp_bf16(1.01 * size * c)
        + half_ulp_bf16(1.01 * swapped * s)
        + half_ulp_bf16(1.02 * (size * c + swapped * s))
    )
    return exact, bound + 2.0**-133


def _check_routes(
    library: NativeLibrary, shape: AttentionShape, inputs: AttentionInputs, what: str, scaled: bool
) -> CheckResult:
    """Row by row, in chunks, after rejected rows, on one and two workers: equal bits."""
    rows = list(range(inputs.q.shape[0]))
    wanted = _in_chunks(library, shape, inputs, rows, 1, 1, scaled)
    for size, threads in ((len(rows), 1), (len(rows), 2), (7, 1), (32, 2), (1, 2), (3, 3)):
        got = _in_chunks(library, shape, inputs, rows, size, threads, scaled)
        if not same_bits(got, wanted):
            reason = f"{what}: chunks of {size} on {threads} workers have other bits"
            return replace(expect("attention", library.isa, False, reason), row_invariant=False)
    return replace(expect("attention", library.isa, True, ""), row_invariant=True)


def _in_chunks(
    library: NativeLibrary,
    shape: AttentionShape,
    inputs: AttentionInputs,
    rows: list[int],
    size: int,
    threads: int,
    scaled: bool,
) -> Tensor:
    layer = AttentionLayer(library, shape, inputs, len(rows), threads, scaled=scaled)
    outputs = []
    for at in range(0, len(rows), size):
        outputs.append(layer.run(rows[at : at + size]))
        layer.start += len(rows[at : at + size])
    layer.close()
    return torch.cat(outputs)


def _check_tree(
    library: NativeLibrary, shape: AttentionShape, inputs: AttentionInputs, what: str, scaled: bool
) -> CheckResult:
    """A node has the bits of its path in a chain; a committed path moves to the cache's end."""
    parents = [-1, 0, 1, 1, 3, 4, 0, 6, 6, 8, -1, 10, 11, 11]
    tree_depths(parents)
    committed = 29  # the tree crosses a block of 32
    nodes = list(range(40, 40 + len(parents)))
    chains = []
    for node in range(len(parents)):
        chain = [node]
        while parents[chain[0]] >= 0:
            chain.insert(0, parents[chain[0]])
        chains.append([nodes[i] for i in chain])
    prompt = list(range(committed))
    wanted = [
        _in_chunks(library, shape, inputs, prompt + chain, committed + len(chain), 1, scaled)[-1]
        for chain in chains
    ]
    path = [0, 6, 8, 9]
    whole = [*prompt, *(nodes[i] for i in path), 80]
    after = _in_chunks(library, shape, inputs, whole, 99, 1, scaled)[-1]
    for threads in (1, 2, 3):
        layer = AttentionLayer(library, shape, inputs, 96, threads, scaled=scaled)
        layer.run(prompt)
        layer.start += committed
        y = layer.run(nodes, parents)
        layer.accept(path)
        last = layer.run([80])
        layer.close()
        for node, alone in enumerate(wanted):
            if not same_bits(y[node], alone):
                reason = f"{what}: node {node} on {threads} workers differs from its path alone"
                return expect("attention tree", library.isa, False, reason)
        if not same_bits(last[0], after):
            reason = f"{what}: the row after a committed path differs on {threads} workers"
            return expect("attention tree", library.isa, False, reason)
    return expect("attention tree", library.isa, True, "")


def _check_mutations(
    library: NativeLibrary, shape: AttentionShape, seed: int, scaled: bool
) -> list[CheckResult]:
    """Wrong inputs on the exact side must break the bound."""
    inputs = random_inputs(shape, 70, seed)
    rows = list(range(70))
    layer = AttentionLayer(library, shape, inputs, 96, scaled=scaled)
    y = layer.run(rows)
    results = []

    def judge(what: str, changed: AttentionShape, given: AttentionInputs) -> None:
        want, bound = exact_attention(changed, given, layer, rows)
        caught = not compare("attention", library.isa, y, want, bound).ok
        results.append(expect("attention", library.isa, caught, f"not caught: {what}"))

    # Codes are moved as bytes: float8 tensors have few operations.
    raw = [x.view(torch.uint8) if scaled else x for x in (layer.cache.keys, layer.cache.values)]
    keys, values = raw
    kept_keys, kept = keys.clone(), values.clone()
    values[:, [4, 5]] = kept[:, [5, 4]]
    judge("two value rows swapped", shape, inputs)
    values.copy_(kept.flip(0))
    judge("value heads swapped", shape, inputs)
    values.copy_(kept)
    keys[:, 1] = kept_keys[:, 0]
    judge("a key block read twice", shape, inputs)
    keys.copy_(kept_keys)
    for name, scales in (("key", layer.cache.key_scales), ("value", layer.cache.value_scales)):
        if scales is not None:
            kept_scales = scales.clone()
            scales[0, 40] *= 2
            judge(f"one {name} with twice its scale", shape, inputs)
            scales.copy_(kept_scales.roll(1, 1))
            scales[:, 0] = kept_scales[:, 0]
            judge(f"{name} scales shifted by a position", shape, inputs)
            scales.copy_(kept_scales)
            scales[:, 32:64] = kept_scales[:, :32]
            judge(f"{name} scales of another block", shape, inputs)
            scales.copy_(kept_scales)
    halves = inputs.q.view(70, shape.query_heads, 2, shape.dim)
    judge("gate taken from the query half", shape, replace(inputs, q=halves.flip(2).flatten(1)))
    layer.start -= 1
    layer.q_out = layer.q_out.roll(1, 0)
    judge("a row sees one position less", shape, inputs)
    layer.close()
    return results
