# SPDX-License-Identifier: MIT OR Apache-2.0
"""The native gated delta layer: one arithmetic on every route, and what it refuses."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.build import NativeLibrary
from kernels.causal_conv.reference import causal_conv
from kernels.checks import same_bits
from kernels.gated_delta.buffers import (
    DeltaRecord,
    DeltaShape,
    DeltaState,
    DeltaWork,
    Pending,
    state_from_tiles,
    state_to_tiles,
    tree_depths,
)
from kernels.gated_delta.check import check
from kernels.gated_delta.check_layer import EPS, DeltaInputs, DeltaLayer, random_inputs
from kernels.gated_delta.native import gated_delta, gated_norm_weight
from kernels.gated_delta.reference import decay_log, gated_delta_chain
from kernels.rms_norm.reference import gated_rms_norm
from kernels.tape import Pool, Tape

# The library does not change between examples.
_shared = settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
_kinds = st.sampled_from(["gaussian", "correlated", "outliers", "denormal", "zeros"])


@st.composite
def _shapes(draw: st.DrawFn) -> DeltaShape:
    key_heads = draw(st.integers(1, 3))
    return DeltaShape(
        key_heads,
        key_heads * draw(st.integers(1, 3)),
        4 * draw(st.integers(1, 32)),
        16 * draw(st.integers(1, 5)),
    )


@st.composite
def _trees(draw: st.DrawFn, nodes: int) -> list[int]:
    """Parents in depth-first pre-order: each node hangs below some node of the current path."""
    parents: list[int] = []
    path: list[int] = []
    for node in range(nodes):
        depth = draw(st.integers(0, len(path)))
        parents.append(path[depth - 1] if depth else -1)
        path[depth:] = [node]
    return parents


def _decode(
    library: NativeLibrary, shape: DeltaShape, inputs: DeltaInputs, rows: list[int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    with closing(DeltaLayer(library, shape, inputs)) as layer:
        y = [layer.advance([row]) for row in rows]
        return torch.cat(y), layer.recurrent(), layer.state.tail


def _relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Root mean square of the difference over that of the wanted values."""
    difference = got.double() - wanted.double()
    return float(difference.square().mean().sqrt() / wanted.double().square().mean().sqrt())


def test_check_passes(library: NativeLibrary) -> None:
    failed = [result.reason for result in check(library) if not result.ok]
    assert not failed


@_shared
@given(
    shape=_shapes(),
    kind=_kinds,
    passes=st.lists(st.tuples(st.integers(1, 32), st.integers(0, 32)), min_size=1, max_size=6),
    threads=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_verify_and_commit_equal_decoding(
    fastest: NativeLibrary,
    shape: DeltaShape,
    kind: str,
    passes: list[tuple[int, int]],
    threads: int,
    seed: int,
) -> None:
    inputs = random_inputs(shape, 240, seed, kind)
    outputs, rows, at = [], [], 0
    with closing(DeltaLayer(fastest, shape, inputs, threads)) as layer:
        for width, wish in passes:
            kept = min(width, wish)
            y = layer.verify(list(range(at, at + width)))
            layer.commit(list(range(kept)))
            outputs.append(y[:kept])
            rows += range(at, at + kept)
            at += kept
        # An advance pass commits what the last verify left, then its own rows.
        outputs.append(layer.advance([at, at + 1]))
        rows += [at, at + 1]
        recurrent, tail = layer.recurrent(), layer.state.tail
    wanted, state, wanted_tail = _decode(fastest, shape, inputs, rows)
    assert same_bits(torch.cat(outputs), wanted)
    assert same_bits(recurrent, state)
    assert same_bits(tail, wanted_tail)


@_shared
@given(
    shape=_shapes(),
    kind=_kinds,
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    threads=st.integers(1, 3),
)
def test_any_chunking_equals_single_rows(
    fastest: NativeLibrary, shape: DeltaShape, kind: str, sizes: list[int], threads: int
) -> None:
    inputs = random_inputs(shape, sum(sizes), 3, kind)
    outputs, at = [], 0
    with closing(DeltaLayer(fastest, shape, inputs, threads)) as layer:
        for size in sizes:
            outputs.append(layer.advance(list(range(at, at + size))))
            at += size
        recurrent, tail = layer.recurrent(), layer.state.tail
    wanted, state, wanted_tail = _decode(fastest, shape, inputs, list(range(at)))
    assert same_bits(torch.cat(outputs), wanted)
    assert same_bits(recurrent, state)
    assert same_bits(tail, wanted_tail)


@_shared
@given(data=st.data(), shape=_shapes(), nodes=st.integers(1, 32), threads=st.integers(1, 3))
def test_tree_nodes_equal_their_paths(
    fastest: NativeLibrary, data: st.DataObject, shape: DeltaShape, nodes: int, threads: int
) -> None:
    parents = data.draw(_trees(nodes))
    assert len(tree_depths(parents)) == nodes
    inputs = random_inputs(shape, nodes + 4, 5)
    chosen = data.draw(st.integers(0, nodes - 1))
    path = [chosen]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    with closing(DeltaLayer(fastest, shape, inputs, threads)) as layer:
        layer.advance([nodes, nodes + 1])
        y = layer.verify(list(range(nodes)), parents)
        layer.commit(path)
        after = layer.verify([nodes + 2])
        recurrent = layer.recurrent()
    before = [nodes, nodes + 1]
    wanted, state, _ = _decode(fastest, shape, inputs, before + path)
    assert same_bits(y[path], wanted[2:])
    assert same_bits(recurrent, state)
    wanted, _, _ = _decode(fastest, shape, inputs, [*before, *path, nodes + 2])
    assert same_bits(after[0], wanted[-1])


def test_a_layer_agrees_with_the_reference(library: NativeLibrary) -> None:
    shape = DeltaShape(2, 6, 64, 64)
    inputs = random_inputs(shape, 50, 1)
    with closing(DeltaLayer(library, shape, inputs)) as layer:
        y = layer.advance(list(range(50)))
        recurrent, tail = layer.recurrent(), layer.state.tail
    conv, wanted_tail = causal_conv(inputs.raw, inputs.conv, inputs.tail)
    q, k, v = conv.split([128, 128, 384], dim=1)
    o, state = gated_delta_chain(
        inputs.state,
        q.view(50, 2, 64),
        k.view(50, 2, 64),
        v.view(50, 6, 64),
        decay_log(inputs.a, inputs.a_log, inputs.dt_bias),
        torch.sigmoid(inputs.b.float()),
    )
    wanted = gated_rms_norm(o, inputs.z.view(50, 6, 64), inputs.norm, EPS).flatten(1)
    assert same_bits(tail, wanted_tail)
    # The reference rounds the convolution once more, half a bf16 ulp of every operand.
    assert _relative(y, wanted) < 1e-2
    assert _relative(recurrent, state) < 6e-3


@pytest.mark.parametrize("nodes", [[], [0], [0, 1, 2]])
def test_pending_rows_commit_without_a_pass(library: NativeLibrary, nodes: list[int]) -> None:
    shape = DeltaShape(1, 3, 32, 48)
    inputs = random_inputs(shape, 8, 2)
    with closing(DeltaLayer(library, shape, inputs)) as layer:
        layer.verify([0, 1, 2, 3])
        layer.commit(nodes)
        assert layer.advance([]).shape[0] == 0
        recurrent, tail = layer.recurrent(), layer.state.tail
    if nodes:
        _, state, wanted_tail = _decode(library, shape, inputs, nodes)
    else:
        state, wanted_tail = inputs.state, inputs.tail
    assert same_bits(recurrent, state)
    assert same_bits(tail, wanted_tail)


def test_a_commit_of_the_wrong_row_is_seen(fastest: NativeLibrary) -> None:
    shape = DeltaShape(1, 3, 32, 32)
    inputs = random_inputs(shape, 8, 2)
    states = []
    for node in (0, 1):
        with closing(DeltaLayer(fastest, shape, inputs)) as layer:
            layer.verify([0, 1, 2])
            layer.commit([node])
            layer.verify([3])
            states.append(layer.recurrent())
    assert not torch.equal(*states)


@pytest.mark.parametrize("parents", [[-1, 1], [-1, 0, 0, 1], [-1, -1, 0], [0], [-2]])
def test_an_impossible_tree_gives_nan(fastest: NativeLibrary, parents: list[int]) -> None:
    shape = DeltaShape(1, 2, 16, 16)
    inputs = random_inputs(shape, 4, 0)
    with pytest.raises(ValueError, match="pre-order"):
        tree_depths(parents)
    with closing(DeltaLayer(fastest, shape, inputs)) as layer:
        y = layer.verify(list(range(len(parents))), parents)
    assert bool(y.isnan().all())


def test_tiles_and_back() -> None:
    state = torch.randn(3, 20, 48)
    assert same_bits(state_from_tiles(state_to_tiles(state)), state)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((2, 3, 64, 64), "do not divide"),
        ((1, 1, 132, 64), "key_dim"),
        ((1, 1, 30, 64), "key_dim"),
        ((1, 1, 64, 40), "value_dim"),
    ],
)
def test_shapes_are_refused(sizes: tuple[int, int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DeltaShape(*sizes)


def test_operands_are_refused(fastest: NativeLibrary) -> None:
    shape = DeltaShape(1, 2, 16, 16)
    state, work, record = DeltaState.zeros(shape), DeltaWork.zeros(shape, 8), None
    given = {
        "shape": shape,
        "state": state,
        "work": work,
        "z": torch.zeros(8, 32, dtype=torch.bfloat16),
        "norm_weight": gated_norm_weight(torch.ones(16)),
        "out": torch.zeros(8, 32, dtype=torch.bfloat16),
        "eps": EPS,
        "rows": 8,
    }
    record = DeltaRecord.zeros(shape, 8)
    wrong = [
        ({"rows": 9}, "rows must lie in 0..8"),
        ({"rows": -1}, "rows must lie in 0..8"),
        ({"rows": 0, "record": record}, "rows must lie in 1..8"),
        ({"z": torch.zeros(8, 32)}, "z must be torch.bfloat16"),
        ({"out": torch.zeros(8, 31, dtype=torch.bfloat16)}, "out must have shape"),
        ({"record": DeltaRecord.zeros(shape, 4)}, "same rows"),
        ({"pending": Pending.none()}, "come together"),
        ({"parents": torch.zeros(32, dtype=torch.int32)}, "needs a record"),
        (
            {"record": record, "pending": Pending.none(), "pending_record": record},
            "other parity",
        ),
        ({"work": replace(work, qk=work.qk.double())}, "work.qk must be torch.float32"),
    ]
    with Pool(fastest, 1) as pool:
        for change, message in wrong:
            with pytest.raises(ValueError, match=message):
                gated_delta(Tape(pool), **{**given, **change})


def test_pending_rows_must_ascend() -> None:
    pending = Pending.none()
    with pytest.raises(ValueError, match="ascend"):
        pending.set([2, 1])
    pending.set([0, 3])
    assert int(pending.count) == 2
    assert pending.rows[:2].tolist() == [0, 3]
