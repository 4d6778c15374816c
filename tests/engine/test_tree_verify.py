# SPDX-License-Identifier: MIT OR Apache-2.0
"""A verify pass over a tree: every node has the bits of plain decoding of its path, and so has the state."""

from __future__ import annotations

import random

import pytest
import torch
from backends import BackendKind, Loaded
from oracle import STATE_CASE
from state_checks import (
    assert_same,
    check_abandoned_trees,
    check_committed_paths,
    check_nodes_of_a_tree,
    check_refused_trees,
    decode,
    prefilled,
)
from trees import Rows, random_rows

from engine.model.backend import accepted_path

pytestmark = pytest.mark.usefixtures("one_thread")

# (nodes, how wide): bushes, brooms and long lines with side shoots.
SHAPES = [(2, 1.0), (3, 1.0), (5, 0.5), (9, 1.0), (17, 0.2), (32, 0.9), (32, 0.1)]


@pytest.mark.usefixtures("nan_poison")
@pytest.mark.parametrize(("nodes", "wide"), SHAPES)
def test_every_node_has_the_bits_of_decoding_its_path(
    backend_factory: BackendKind, loaded: Loaded, nodes: int, wide: float
) -> None:
    check_nodes_of_a_tree(backend_factory, loaded, nodes, wide)


@pytest.mark.parametrize("seed", range(4))
def test_a_committed_path_leaves_the_state_of_decoding_it(
    backend_factory: BackendKind, loaded: Loaded, seed: int
) -> None:
    check_committed_paths(backend_factory, loaded, seed)


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
    check_abandoned_trees(backend_factory, loaded)


def test_what_is_no_tree_or_no_path_is_refused(
    backend_factory: BackendKind, loaded: Loaded
) -> None:
    check_refused_trees(backend_factory, loaded)


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
