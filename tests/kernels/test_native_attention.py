# SPDX-License-Identifier: MIT OR Apache-2.0
"""Native attention: a row's bits depend on its own past alone, and what is refused."""

from __future__ import annotations

from contextlib import closing

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.attention.check import check
from kernels.attention.check_layer import (
    EPS,
    AttentionInputs,
    AttentionLayer,
    AttentionShape,
    random_inputs,
)
from kernels.attention.native import attention
from kernels.attention.reference import attention as reference_attention
from kernels.build import NativeLibrary
from kernels.checks import same_bits
from kernels.elementwise.reference import output_gate
from kernels.kv_cache.native import KvCache
from kernels.rms_norm.native import norm_scale
from kernels.rope.native import attention_prepare, rope_table
from kernels.tape import Pool, Tape

# The library does not change between examples.
_shared = settings(
    max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
_kinds = st.sampled_from(["gaussian", "sharp", "outliers", "denormal", "zeros"])


@st.composite
def _shapes(draw: st.DrawFn) -> AttentionShape:
    key_heads = draw(st.integers(1, 3))
    dim = 16 * draw(st.integers(4, 16))
    return AttentionShape(
        key_heads * draw(st.integers(1, 8)), key_heads, dim, 2 * draw(st.integers(1, dim // 2))
    )


def _single_rows(
    library: NativeLibrary,
    shape: AttentionShape,
    inputs: AttentionInputs,
    rows: list[int],
    *,
    scaled: bool = False,
) -> torch.Tensor:
    outputs = []
    with closing(AttentionLayer(library, shape, inputs, len(rows), scaled=scaled)) as layer:
        for row in rows:
            outputs.append(layer.run([row]))
            layer.start += 1
    return torch.cat(outputs)


def test_check_passes(library: NativeLibrary) -> None:
    failed = [result.reason for result in check(library) if not result.ok]
    assert not failed


@_shared
@given(
    shape=_shapes(),
    kind=_kinds,
    sizes=st.lists(st.integers(1, 45), min_size=1, max_size=4),
    threads=st.integers(1, 3),
    scaled=st.booleans(),
)
def test_any_chunking_equals_single_rows(
    fastest: NativeLibrary,
    shape: AttentionShape,
    kind: str,
    sizes: list[int],
    threads: int,
    scaled: bool,
) -> None:
    inputs = random_inputs(shape, sum(sizes), 1, kind)
    outputs, at = [], 0
    layer = AttentionLayer(fastest, shape, inputs, sum(sizes), threads, scaled=scaled)
    with closing(layer):
        for size in sizes:
            outputs.append(layer.run(list(range(at, at + size))))
            layer.start += size
            at += size
    wanted = _single_rows(fastest, shape, inputs, list(range(at)), scaled=scaled)
    assert same_bits(torch.cat(outputs), wanted)


@_shared
@given(
    data=st.data(),
    shape=_shapes(),
    committed=st.integers(0, 70),
    nodes=st.integers(1, 32),
    threads=st.integers(1, 3),
    scaled=st.booleans(),
)
def test_tree_nodes_equal_their_paths(
    fastest: NativeLibrary,
    data: st.DataObject,
    shape: AttentionShape,
    committed: int,
    nodes: int,
    threads: int,
    scaled: bool,
) -> None:
    parents: list[int] = []
    path: list[int] = []
    for node in range(nodes):
        depth = data.draw(st.integers(0, len(path)))
        parents.append(path[depth - 1] if depth else -1)
        path[depth:] = [node]
    chosen = [data.draw(st.integers(0, nodes - 1))]
    while parents[chosen[0]] >= 0:
        chosen.insert(0, parents[chosen[0]])
    inputs = random_inputs(shape, committed + nodes + 1, 2)
    prompt = list(range(committed))
    tree = list(range(committed, committed + nodes))
    last = committed + nodes
    layer = AttentionLayer(fastest, shape, inputs, committed + nodes + 33, threads, scaled=scaled)
    with closing(layer):
        if prompt:
            layer.run(prompt)
            layer.start += committed
        y = layer.run(tree, parents)
        layer.accept(chosen)
        after = layer.run([last])
    rows = [*prompt, *(tree[i] for i in chosen), last]
    with closing(AttentionLayer(fastest, shape, inputs, len(rows), scaled=scaled)) as layer:
        wanted = layer.run(rows)
    assert same_bits(y[chosen], wanted[committed:-1])
    assert same_bits(after[0], wanted[-1])


@pytest.mark.parametrize("scaled", [False, True])
def test_rejected_rows_leave_no_trace(fastest: NativeLibrary, scaled: bool) -> None:
    shape = AttentionShape(4, 1, 64, 16)
    inputs = random_inputs(shape, 20, 3)
    inputs.v[6:9] = float("inf")
    with closing(AttentionLayer(fastest, shape, inputs, 20, scaled=scaled)) as layer:
        layer.run(list(range(5)))
        layer.start += 5
        first = layer.run([5, 6, 7, 8])[0]
        layer.start += 1
        second = layer.run([10])[0]
    wanted = _single_rows(fastest, shape, inputs, [0, 1, 2, 3, 4, 5, 10], scaled=scaled)
    assert same_bits(torch.stack((first, second)), wanted[-2:])


def test_a_layer_agrees_with_the_reference(library: NativeLibrary) -> None:
    shape = AttentionShape(6, 2, 64, 16)
    inputs = random_inputs(shape, 90, 4)
    with closing(AttentionLayer(library, shape, inputs, 96)) as layer:
        y = layer.run(list(range(90)))
        q = layer.q_out
        k, v = layer.cache.read(90)
    gate = inputs.q.view(90, 6, 2, 64)[:, :, 1]
    wanted = output_gate(reference_attention(q, k, v, 0, 64**-0.5), gate).flatten(1)
    torch.testing.assert_close(y, wanted, rtol=2e-2, atol=2e-3)


def test_a_cache_reads_back_what_was_written() -> None:
    cache = KvCache.zeros(70, 3, 48)
    assert cache.capacity == 96
    k, v = torch.randn(40, 3, 48).bfloat16(), torch.randn(40, 3, 48).bfloat16()
    cache.write(25, k, v)
    read_k, read_v = cache.read(65)
    assert same_bits(read_k[25:], k)
    assert same_bits(read_v[25:], v)
    assert not read_k[:25].any()
    with pytest.raises(ValueError, match="beyond 96"):
        cache.write(60, k, v)


def test_rows_past_the_cache_become_nan(fastest: NativeLibrary) -> None:
    shape = AttentionShape(2, 1, 64, 16)
    inputs = random_inputs(shape, 40, 5)
    with closing(AttentionLayer(fastest, shape, inputs, 32)) as layer:
        layer.run(list(range(30)))
        layer.start += 30
        kept = layer.cache.values.clone()
        y = layer.run([30, 31, 32])
        assert bool(y.isnan().all())
        assert same_bits(layer.cache.values[:, :30], kept[:, :30])
        layer.start.fill_(-1)
        assert bool(layer.run([0]).isnan().all())


def test_operands_are_refused(fastest: NativeLibrary) -> None:
    with pytest.raises(ValueError, match="head_dim"):
        KvCache.zeros(32, 1, 72)
    cache = KvCache.zeros(32, 2, 64)
    bf16 = torch.bfloat16
    given = {
        "q": torch.zeros(4, 4, 64, dtype=bf16),
        "cache": cache,
        "start": torch.zeros(1, dtype=torch.int32),
        "out": torch.zeros(4, 256, dtype=bf16),
        "scale": 0.125,
        "rows": 4,
    }
    prepare = {
        "q": torch.zeros(4, 512, dtype=bf16),
        "k": torch.zeros(4, 128, dtype=bf16),
        "v": torch.zeros(4, 128, dtype=bf16),
        "q_scale": norm_scale(torch.zeros(64)),
        "k_scale": norm_scale(torch.zeros(64)),
        "table": rope_table(32, 16, 1e4),
        "cache": cache,
        "start": torch.zeros(1, dtype=torch.int32),
        "q_out": torch.zeros(4, 4, 64, dtype=bf16),
        "eps": EPS,
        "rows": 4,
    }
    tree = torch.zeros(32, dtype=torch.int32)
    with Pool(fastest, 1) as pool:
        for change, message in (
            ({"rows": 5}, "q must hold"),
            ({"rows": 33}, "rows must lie"),
            ({"q": torch.zeros(4, 3, 64, dtype=bf16)}, "do not divide"),
            ({"out": torch.zeros(4, 192, dtype=bf16)}, "out must have shape"),
            ({"gated": torch.zeros(4, 256, dtype=bf16)}, "gated must have shape"),
            ({"start": torch.zeros(1)}, "start must be torch.int32"),
            ({"parents": tree[:4]}, "parents must have shape"),
        ):
            with pytest.raises(ValueError, match=message):
                attention(Tape(pool), **{**given, **change})
        for change, message in (
            ({"table": rope_table(32, 66, 1e4)}, "rotary_dim"),
            ({"k": torch.zeros(4, 64, dtype=bf16)}, "k must have shape"),
            ({"q_scale": torch.zeros(32)}, "q_scale must have shape"),
            ({"q_out": torch.zeros(3, 4, 64, dtype=bf16)}, "q_out must hold"),
            ({"rows": 33}, "rows must lie in 0..32"),
        ):
            with pytest.raises(ValueError, match=message):
                attention_prepare(Tape(pool), **{**prepare, **change})
