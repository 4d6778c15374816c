# SPDX-License-Identifier: MIT OR Apache-2.0
"""Draft trees against naive definitions on sets of paths."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.spec.tree import DraftTree, check_order, is_chain
from engine.spec.tree_builder import TreeBuilder, merge
from kernels.gated_delta.buffers import tree_depths

Path = tuple[int, ...]


@st.composite
def trees(draw: st.DrawFn, most: int = 32, vocabulary: int = 4) -> DraftTree:
    """Built in any order of nodes, few tokens so that paths are shared, scores with ties."""
    builder = TreeBuilder(7)
    scores = [1.0]
    for _ in range(draw(st.integers(0, most - 1))):
        parent = draw(st.integers(0, len(builder) - 1))
        score = scores[parent] * draw(st.sampled_from((1.0, 0.5, 0.25, 0.7)))
        node = builder.add(parent, draw(st.integers(0, vocabulary - 1)), score, "test")
        if node == len(scores):
            scores.append(score)
        scores[node] = max(scores[node], score)
    return builder.build()


def paths(tree: DraftTree) -> dict[Path, float]:
    """Every node as the tokens on its path, with its score."""
    found: dict[Path, float] = {}
    for node in range(len(tree)):
        tokens: list[int] = []
        at = node
        while at >= 0:
            tokens.insert(0, tree.tokens[at])
            at = tree.parents[at]
        found[tuple(tokens)] = tree.scores[node]
    return found


@given(trees())
def test_nodes_are_in_depth_first_pre_order_with_children_by_score(tree: DraftTree) -> None:
    def visit(node: int) -> list[int]:
        children = [n for n in range(len(tree)) if tree.parents[n] == node]
        assert tree.children(node) == tuple(children)
        scores = [tree.scores[child] for child in children]
        assert scores == sorted(scores, reverse=True)
        return [node, *(each for child in children for each in visit(child))]

    assert visit(0) == list(range(len(tree)))
    assert len(paths(tree)) == len(tree), "no path stands twice"


@given(trees())
def test_depths_follow_the_paths(tree: DraftTree) -> None:
    assert list(tree.depths()) == tree_depths(list(tree.parents))
    for node in range(len(tree)):
        path = [node]
        while path[0]:
            path.insert(0, tree.parents[path[0]])
        assert tree.path(node) == tuple(path)
        assert tree.depths()[node] == len(path) - 1


@given(trees(), st.integers(1, 40))
def test_a_truncated_tree_is_its_prefix(tree: DraftTree, nodes: int) -> None:
    cut = tree.truncate(nodes)
    assert cut.tokens == tree.tokens[:nodes]
    assert cut.parents == tree.parents[:nodes]
    assert paths(cut).items() <= paths(tree).items()


@given(trees(), st.data())
def test_a_subset_keeps_paths_and_refuses_orphans(tree: DraftTree, data: st.DataObject) -> None:
    keep = data.draw(st.sets(st.integers(0, len(tree) - 1)))
    closed = all(tree.parents[node] in keep | {0, -1} for node in keep)
    if not closed:
        with pytest.raises(ValueError, match="without its parent"):
            tree.subset(keep)
        return
    every = list(paths(tree))
    assert set(paths(tree.subset(keep))) == {every[node] for node in keep | {0}}


@given(trees(), st.integers(1, 40))
def test_pruning_admits_by_score_with_missing_ancestors(tree: DraftTree, nodes: int) -> None:
    admitted: list[int] = []
    for node in sorted(range(len(tree)), key=lambda node: -tree.scores[node]):
        missing = [each for each in tree.path(node) if each not in admitted]
        if len(admitted) + len(missing) > nodes:
            break
        admitted += missing
    pruned = tree.prune(nodes)
    assert len(pruned) == min(nodes, len(tree))
    assert set(paths(pruned)) == {list(paths(tree))[node] for node in admitted}


@given(trees(), trees())
def test_a_merged_tree_holds_the_paths_of_both(first: DraftTree, second: DraftTree) -> None:
    both = merge(first, second)
    wanted = dict(paths(first))
    for path, score in paths(second).items():
        wanted[path] = max(score, wanted.get(path, 0.0))
    assert paths(both) == wanted
    assert paths(merge(second, first)) == wanted
    assert merge(first, first) == first


@given(trees(), st.data())
def test_the_walk_follows_the_chosen_tokens(tree: DraftTree, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, 4), min_size=len(tree), max_size=len(tree)))
    node, path = 0, [0]
    while True:
        hits = [
            n
            for n in range(len(tree))
            if tree.parents[n] == node and tree.tokens[n] == chosen[node]
        ]
        if not hits:
            break
        (node,) = hits
        path.append(node)
    assert tree.walk(chosen.__getitem__)[0] == tuple(path)
    asked: list[int] = []

    def choose(node: int) -> int:
        asked.append(node)
        return chosen[node]

    stop = data.draw(st.sets(st.integers(0, 4), max_size=2))
    walked, tokens = tree.walk(choose, stop)
    wanted = [chosen[node] for node in path]
    ends = [at for at, token in enumerate(wanted) if token in stop]
    length = ends[0] + 1 if ends else len(wanted)
    assert tokens == tuple(wanted[:length])
    assert walked == tuple(path[:length])
    assert asked == list(walked), "only nodes on the path are asked"


@given(st.lists(st.integers(-2, 34), min_size=1, max_size=34))
def test_the_order_is_checked_as_the_kernels_check_it(parents: list[int]) -> None:
    one_root = parents[0] == -1 and -1 not in parents[1:]
    try:
        tree_depths(parents[:32])
        sound = one_root
    except ValueError:
        sound = False
    if sound and len(parents) <= 32:
        check_order(parents)
    elif len(parents) <= 32:
        with pytest.raises(ValueError, match="breaks depth-first pre-order"):
            check_order(parents)


def test_a_chain_is_a_line_of_nodes() -> None:
    chain = DraftTree.chain([9, 4, 4], [0.5, 0.25], "mtp")
    assert chain == DraftTree((9, 4, 4), (-1, 0, 1), (1.0, 0.5, 0.25), ("anchor", "mtp", "mtp"))
    assert chain.is_chain
    assert chain.expected_tokens == 1.75
    assert is_chain([-1])
    assert not is_chain([-1, 0, 0])
    assert len(DraftTree.chain([9], [], "mtp")) == 1


def test_a_shared_node_keeps_the_higher_score_and_its_source() -> None:
    builder = TreeBuilder(1)
    low = builder.add(0, 5, 0.25, "lookup")
    assert builder.add(0, 5, 0.5, "mtp") == low
    assert builder.add(0, 5, 0.125, "block") == low
    builder.add(0, 6, 0.75, "block")
    tree = builder.build()
    assert tree.tokens == (1, 6, 5)
    assert tree.scores == (1.0, 0.75, 0.5)
    assert tree.sources == ("anchor", "block", "mtp")


@pytest.mark.parametrize(
    ("tokens", "parents", "scores", "reason"),
    [
        ((), (), (), "node 0 is the anchor"),
        ((1,), (0,), (1.0,), "node 0 is the anchor"),
        ((1,), (-1,), (0.5,), "node 0 is the anchor"),
        ((1, 2), (-1,), (1.0, 0.5), "2 tokens, 1 parents"),
        ((1, 2), (-1, -1), (1.0, 0.5), "node 1 with parent -1"),
        ((1, 2), (-1, 1), (1.0, 0.5), "node 1 with parent 1"),
        ((1, 2, 3, 4), (-1, 0, 0, 1), (1.0, 0.5, 0.5, 0.5), "node 3 with parent 1"),
        ((1, 2, 2), (-1, 0, 0), (1.0, 0.5, 0.5), "the same token"),
        ((1, 2, 3), (-1, 0, 1), (1.0, 0.5, 0.75), "node 2 has score 0.75"),
        ((1, 2), (-1, 0), (1.0, -0.5), "node 1 has score -0.5"),
        ((1, 2), (-1, 0), (1.0, math.nan), "node 1 has score nan"),
    ],
)
def test_a_broken_tree_is_refused(
    tokens: Path, parents: Path, scores: tuple[float, ...], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        DraftTree(tokens, parents, scores, ("x",) * len(tokens))


def test_unknown_nodes_and_empty_cuts_are_refused() -> None:
    chain = DraftTree.chain([1, 2], [0.5], "mtp")
    with pytest.raises(ValueError, match="node 2 is not one of 2"):
        chain.subset([1, 2])
    for cut in (chain.truncate, chain.prune):
        with pytest.raises(ValueError, match="at least its anchor"):
            cut(0)
    builder = TreeBuilder(1)
    with pytest.raises(ValueError, match="parent 1 is not one of 1"):
        builder.add(1, 5, 0.5, "mtp")
    with pytest.raises(ValueError, match="anchors 1 and 3 differ"):
        merge(chain, DraftTree.chain([3], [], "mtp"))
