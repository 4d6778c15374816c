# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks of native attention and its preparation: float64 bounds, equal bits, mutations."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.attention.native import attention
from kernels.build import NativeLibrary
from kernels.checks import CheckResult, compare, expect, gamma, half_ulp_bf16, poison, same_bits
from kernels.gated_delta.buffers import MAX_NODES, Pending, tree_depths
from kernels.kv_cache.native import KvCache
from kernels.rms_norm.native import norm_scale
from kernels.rope.native import attention_prepare, rope_table
from kernels.rope.reference import apply_rope
from kernels.tape import Pool, Tape

EPS = 1e-6
THETA = 1e7
_U = 2.0**-24


@dataclass(frozen=True)
class AttentionShape:
    """Heads and dimensions of one attention layer."""

    query_heads: int
    key_heads: int
    dim: int
    rotary_dim: int


@dataclass(frozen=True)
class AttentionInputs:
    """Norm weights and T rows of projections of one layer."""

    q: Tensor  # bf16 [T, Hq * 2D], query and gate per head
    k: Tensor  # bf16 [T, Hkv * D]
    v: Tensor  # bf16 [T, Hkv * D]
    q_norm: Tensor  # bf16 [D]
    k_norm: Tensor  # bf16 [D]


def random_inputs(
    shape: AttentionShape, rows: int, seed: int, kind: str = "gaussian"
) -> AttentionInputs:
    """Random inputs of one class: gaussian, sharp, outliers, denormal or zeros."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    q = normal(rows, shape.query_heads * 2 * shape.dim)
    k = normal(rows, shape.key_heads * shape.dim)
    v = normal(rows, shape.key_heads * shape.dim)
    weight = 0.1
    if kind == "sharp":
        weight = 3.0
    elif kind == "outliers":
        q, k, v = (torch.where(normal(*x.shape) > 2.5, x * 300, x) for x in (q, k, v))
    elif kind == "denormal":
        q, k, v = q * 1e-38, k * 1e-38, v * 1e-38
    elif kind == "zeros":
        q, k, v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    return AttentionInputs(
        q.bfloat16(),
        k.bfloat16(),
        v.bfloat16(),
        (weight * normal(shape.dim)).bfloat16(),
        (weight * normal(shape.dim)).bfloat16(),
    )


class AttentionLayer:
    """One layer driven through the native kernels over a cache poisoned with NaN."""

    def __init__(
        self,
        library: NativeLibrary,
        shape: AttentionShape,
        inputs: AttentionInputs,
        capacity: int,
        threads: int = 1,
    ) -> None:
        """An empty cache of `capacity` positions; close() ends the workers."""
        self.shape, self.inputs = shape, inputs
        self.pool = Pool(library, threads)
        self.cache = KvCache.zeros(capacity, shape.key_heads, shape.dim)
        poison(self.cache.keys), poison(self.cache.values)
        self.table = rope_table(self.cache.capacity, shape.rotary_dim, THETA)
        self.start = torch.zeros(1, dtype=torch.int32)
        self.pending = Pending.none()
        self.q_out = torch.empty(0)

    def close(self) -> None:
        """End the worker threads."""
        self.pool.close()

    def run(self, rows: list[int], parents: list[int] | None = None) -> Tensor:
        """Append the given rows of the inputs at the committed length and attend from them."""
        shape, count = self.shape, len(rows)
        tree = None
        if parents is not None:
            tree = torch.zeros(MAX_NODES, dtype=torch.int32)
            tree[:count] = torch.tensor(parents, dtype=torch.int32)
        self.q_out = poison(torch.empty(count, shape.query_heads, shape.dim, dtype=torch.bfloat16))
        out = poison(torch.empty(count, shape.query_heads * shape.dim, dtype=torch.bfloat16))
        q = self.inputs.q[rows]
        tape = Tape(self.pool)
        attention_prepare(
            tape,
            q=q,
            k=self.inputs.k[rows],
            v=self.inputs.v[rows],
            q_scale=norm_scale(self.inputs.q_norm),
            k_scale=norm_scale(self.inputs.k_norm),
            table=self.table,
            cache=self.cache,
            start=self.start,
            q_out=self.q_out,
            eps=EPS,
            rows=count,
            pending=self.pending,
            parents=tree,
        )
        attention(
            tape,
            q=self.q_out,
            cache=self.cache,
            start=self.start,
            out=out,
            scale=shape.dim**-0.5,
            rows=count,
            gated=q,
            parents=tree,
        )
        tape.run()
        self.pending.set([])
        return out

    def accept(self, nodes: list[int]) -> None:
        """Commit nodes of the latest run: the next run moves them to the end of the cache."""
        self.pending.set(nodes)
        self.start += len(nodes)


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
    k, v = (x.double() for x in layer.cache.read(length))
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
    score_error = gamma(shape.dim // 2 + 3) * mass + 1e-36
    worst = score_error.masked_fill(hidden, 0).amax(-1, keepdim=True)
    blocks = length // 32 + 1
    spread = torch.expm1(2 * worst) + gamma(length + 6 * blocks + 40)
    # The subtraction of the running maximum rounds at the size of the scores.
    spread = spread + 4 * _U * scores.abs().masked_fill(hidden, 0).amax(-1, keepdim=True)
    error = torch.einsum("htl,lhd->thd", p * spread, v.abs())
    gate = inputs.q[rows].double().view(count, shape.query_heads, 2, shape.dim)[:, :, 1]
    factor = torch.sigmoid(gate)
    y = out * factor
    bound = 1.01 * factor * (error + half_ulp_bf16(out.abs() + error))
    gate_error = half_ulp_bf16(factor) + 8 * _U * factor + 2.0**-148
    bound = bound + 1.01 * out.abs() * gate_error + 1.01 * half_ulp_bf16(y.abs() + bound)
    return y.flatten(1), bound.flatten(1)


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
        results.append(_check_routes(library, shape, inputs, name))
        results.append(_check_tree(library, shape, inputs, name))
    results += _check_mutations(library, shapes["odd"], seed)
    return results


def _check_numbers(
    library: NativeLibrary, shape: AttentionShape, inputs: AttentionInputs, what: str
) -> list[CheckResult]:
    rows = list(range(inputs.q.shape[0]))
    layer = AttentionLayer(library, shape, inputs, len(rows))
    first, second = rows[:43], rows[43:]
    layer.run(first)
    layer.accept(list(range(32)))  # as many as a pass may accept; the rest is appended again
    layer.run(rows[32:43])
    layer.accept(list(range(11)))
    y = layer.run(second)
    want, bound = exact_attention(shape, inputs, layer, second)
    k, v = layer.cache.read(len(rows))
    layer.close()
    results = [compare("attention", library.isa, y, want, bound, what=f"{what} output")]
    positions = torch.arange(len(rows))
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
    library: NativeLibrary, shape: AttentionShape, inputs: AttentionInputs, what: str
) -> CheckResult:
    """Row by row, in chunks, after rejected rows, on one and two workers: equal bits."""
    rows = list(range(inputs.q.shape[0]))
    wanted = _in_chunks(library, shape, inputs, rows, 1, 1)
    for size, threads in ((len(rows), 1), (len(rows), 2), (7, 1), (32, 2), (1, 2), (3, 3)):
        got = _in_chunks(library, shape, inputs, rows, size, threads)
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
) -> Tensor:
    layer = AttentionLayer(library, shape, inputs, len(rows), threads)
    outputs = []
    for at in range(0, len(rows), size):
        outputs.append(layer.run(rows[at : at + size]))
        layer.start += len(rows[at : at + size])
    layer.close()
    return torch.cat(outputs)


def _check_tree(
    library: NativeLibrary, shape: AttentionShape, inputs: AttentionInputs, what: str
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
        _in_chunks(library, shape, inputs, prompt + chain, committed + len(chain), 1)[-1]
        for chain in chains
    ]
    path = [0, 6, 8, 9]
    after = _in_chunks(library, shape, inputs, [*prompt, *(nodes[i] for i in path), 80], 99, 1)[-1]
    for threads in (1, 2, 3):
        layer = AttentionLayer(library, shape, inputs, 96, threads)
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


def _check_mutations(library: NativeLibrary, shape: AttentionShape, seed: int) -> list[CheckResult]:
    """Wrong inputs on the exact side must break the bound."""
    inputs = random_inputs(shape, 70, seed)
    rows = list(range(70))
    layer = AttentionLayer(library, shape, inputs, 96)
    y = layer.run(rows)
    results = []

    def judge(what: str, changed: AttentionShape, given: AttentionInputs) -> None:
        want, bound = exact_attention(changed, given, layer, rows)
        caught = not compare("attention", library.isa, y, want, bound).ok
        results.append(expect("attention", library.isa, caught, f"not caught: {what}"))

    kept = layer.cache.values.clone()
    layer.cache.values[:, [4, 5]] = layer.cache.values[:, [5, 4]]
    judge("two value rows swapped", shape, inputs)
    layer.cache.values.copy_(kept)
    layer.cache.values.copy_(kept.flip(0))
    judge("value heads swapped", shape, inputs)
    layer.cache.values.copy_(kept)
    kept_keys = layer.cache.keys.clone()
    layer.cache.keys[:, 1] = kept_keys[:, 0]
    judge("a key block read twice", shape, inputs)
    layer.cache.keys.copy_(kept_keys)
    halves = inputs.q.view(70, shape.query_heads, 2, shape.dim)
    judge("gate taken from the query half", shape, replace(inputs, q=halves.flip(2).flatten(1)))
    layer.start -= 1
    layer.q_out = layer.q_out.roll(1, 0)
    judge("a row sees one position less", shape, inputs)
    layer.close()
    return results
