# SPDX-License-Identifier: MIT OR Apache-2.0
"""A verify pass over a tree: every node has the bits of plain decoding of its path, and so has the state."""

from __future__ import annotations

import random

import pytest
import torch
from backends import BackendKind, Loaded
from oracle import STATE_CASE, token_ids
from trees import Rows, random_rows

from engine.model.backend import VERIFY_ROWS, Backend, accepted_path

pytestmark = pytest.mark.usefixtures("one_thread")

CAPACITY = 96
# (nodes, how wide): bushes, brooms and long lines with side shoots.
SHAPES = [(2, 1.0), (3, 1.0), (5, 0.5), (9, 1.0), (17, 0.2), (32, 0.9), (32, 0.1)]


def prefilled(kind: BackendKind, loaded: Loaded, prompt: int) -> tuple[Backend, list[int]]:
    ids = token_ids(STATE_CASE, CAPACITY, seed=51)
    backend = kind.make(loaded.config, loaded.weights, CAPACITY)
    backend.reset(speculate=True)
    backend.prefill(ids[:prompt])
    return backend, ids


def decode(backend: Backend, ids: list[int]) -> torch.Tensor:
    """Plain decoding; logits [tokens, vocabulary]."""
    rows = []
    for token in ids:
        rows.append(torch.from_numpy(backend.verify([token]).logits[0].copy()))
        backend.commit(1)
    return torch.stack(rows)


def assert_same(kind: BackendKind, got: Backend, wanted: Backend) -> None:
    parts = kind.snapshot(wanted)
    for name, part in kind.snapshot(got).items():
        assert torch.equal(part, parts[name]), name


@pytest.mark.usefixtures("nan_poison")
@pytest.mark.parametrize(("nodes", "wide"), SHAPES)
def test_every_node_has_the_bits_of_decoding_its_path(
    backend_factory: BackendKind, loaded: Loaded, nodes: int, wide: float
) -> None:
    chance = random.Random(nodes)
    rows = random_rows(chance, nodes, STATE_CASE.vocab, wide=wide)
    prompt = chance.randint(1, 40)
    tree, ids = prefilled(backend_factory, loaded, prompt)
    plain, _ = prefilled(backend_factory, loaded, prompt)
    verified = tree.verify(rows.ids, rows.parents)
    logits = torch.from_numpy(verified.logits.copy())
    assert verified.best == logits.argmax(-1).tolist()
    leaves = rows.leaves()
    for leaf in chance.sample(leaves, min(len(leaves), 5)):
        path = rows.path(leaf)
        plain.reset(speculate=True)
        plain.prefill(ids[:prompt])
        assert torch.equal(logits[path], decode(plain, [rows.ids[node] for node in path]))


@pytest.mark.parametrize("seed", range(4))
def test_a_committed_path_leaves_the_state_of_decoding_it(
    backend_factory: BackendKind, loaded: Loaded, seed: int
) -> None:
    """Rounds over trees, each with a random path kept: state, tail, KV and MTP cache, then drafts."""
    chance = random.Random(seed)
    tree, _ = prefilled(backend_factory, loaded, 7)
    plain, _ = prefilled(backend_factory, loaded, 7)
    while tree.length < 55:
        nodes = chance.randint(1, 32)
        rows = random_rows(chance, nodes, STATE_CASE.vocab, wide=chance.choice((0.1, 0.5, 1.0)))
        if chance.random() < 0.5:
            tree.draft_steps(rows.ids[0], chance.randint(1, 4), chance.randint(1, 3))
        verified = tree.verify(rows.ids, rows.parents)
        path = rows.path(chance.randrange(nodes))
        logits = torch.from_numpy(verified.logits[path].copy())
        tree.commit(chance.choice((list, tuple))(path))
        assert torch.equal(logits, decode(plain, [rows.ids[node] for node in path]))
        if chance.random() < 0.3:
            assert_same(backend_factory, tree, plain)
        if chance.random() < 0.3:
            token = chance.randrange(STATE_CASE.vocab)
            assert tree.prefill([token]).best == plain.prefill([token]).best
    assert tree.draft(3, 4) == plain.draft(3, 4)
    assert_same(backend_factory, tree, plain)


@pytest.mark.parametrize("depth", range(6))
def test_a_rejection_at_every_depth_leaves_no_trace(
    backend_factory: BackendKind, loaded: Loaded, depth: int
) -> None:
    """The tree holds the true line to `depth`, then only wrong branches."""
    chance = random.Random(depth)
    tree, ids = prefilled(backend_factory, loaded, 11)
    plain, _ = prefilled(backend_factory, loaded, 11)
    line = ids[11 : 12 + depth]
    rows = random_rows(chance, 20, STATE_CASE.vocab, line=line)
    path = next(
        rows.path(node)
        for node in range(20)
        if [rows.ids[each] for each in rows.path(node)] == line
    )
    tree.verify(rows.ids, rows.parents)
    tree.commit(path)
    decode(plain, line)
    following = ids[12 + depth]
    assert torch.equal(decode(tree, [following]), decode(plain, [following]))
    assert_same(backend_factory, tree, plain)


def test_a_tree_in_a_line_is_a_chain(backend_factory: BackendKind, loaded: Loaded) -> None:
    tree, ids = prefilled(backend_factory, loaded, 9)
    chain, _ = prefilled(backend_factory, loaded, 9)
    one = tree.verify(ids[9:14], [-1, 0, 1, 2, 3])
    two = chain.verify(ids[9:14])
    assert one.best == two.best
    assert (one.logits == two.logits).all()
    tree.commit([0, 1, 2])
    chain.commit(3)
    assert_same(backend_factory, tree, chain)


def test_an_abandoned_tree_leaves_no_trace(backend_factory: BackendKind, loaded: Loaded) -> None:
    tree, ids = prefilled(backend_factory, loaded, 9)
    plain, _ = prefilled(backend_factory, loaded, 9)
    rows = random_rows(random.Random(1), 12, STATE_CASE.vocab)
    for ending in ("none", "prefill", "verify"):
        tree.verify(rows.ids, rows.parents)
        tree.commit(rows.path(7))
        decode(plain, [rows.ids[node] for node in rows.path(7)])
        tree.verify(rows.ids, rows.parents)
        if ending == "prefill":
            assert tree.prefill(ids[:2]).best == plain.prefill(ids[:2]).best
        elif ending == "verify":
            assert torch.equal(decode(tree, ids[:2]), decode(plain, ids[:2]))
        assert_same(backend_factory, tree, plain)


def test_what_is_no_tree_or_no_path_is_refused(
    backend_factory: BackendKind, loaded: Loaded
) -> None:
    backend, ids = prefilled(backend_factory, loaded, 9)
    before = backend_factory.snapshot(backend)
    for parents, reason in (
        ([-1, 0], "one parent a row, got 2 for 4 rows"),
        ([-1, 0, 0, 1], "node 3 with parent 1"),
        ([-1, -1, 0, 0], "node 1 with parent -1"),
        ([0, 0, 0, 0], "node 0 with parent 0"),
        ([-1, 0, 4, 0], "node 2 with parent 4"),
    ):
        with pytest.raises(ValueError, match=reason):
            backend.verify(ids[9:13], parents)
    with pytest.raises(ValueError, match=f"at most {VERIFY_ROWS} rows, got 33"):
        backend.verify(ids[:33], [-1, *[0] * 32])
    backend.verify(ids[9:13], [-1, 0, 1, 0])
    for path in ([], [1], [0, 2], [0, 1, 3], [0, 0], [0, 1, 2, 4], [-1], 4, 0, -1):
        with pytest.raises(ValueError, match="commit keeps"):
            backend.commit(path)
    for name, part in backend_factory.snapshot(backend).items():
        assert torch.equal(part, before[name]), name
    backend.commit([0, 3])
    assert backend.length == 11


def test_a_number_of_rows_counts_from_the_first() -> None:
    assert list(accepted_path(3, 4, [-1, 0, 1, 0])) == [0, 1, 2]
    assert list(accepted_path(2, 2, None)) == [0, 1]
    with pytest.raises(ValueError, match=r"a path from row 0, got \[0, 1, 2, 3\]"):
        accepted_path(4, 4, [-1, 0, 1, 0])


def test_random_rows_are_trees_of_all_shapes() -> None:
    """The generator these tests stand on: sizes, order, distinct siblings, and the line in it."""
    chance = random.Random(0)
    bushy = 0
    for _ in range(50):
        rows: Rows = random_rows(chance, 20, 12, line=[1, 2, 3])
        assert len(rows.ids) == len(set(zip(rows.parents, rows.ids, strict=True))) == 20
        paths = [[rows.ids[each] for each in rows.path(node)] for node in range(20)]
        assert [1, 2, 3] in paths
        bushy += len(rows.leaves()) > 5
    assert 10 < bushy < 50
