# SPDX-License-Identifier: MIT OR Apache-2.0
"""Two candidate trees as one: what that could bring, told before the merged tree is built."""

from __future__ import annotations

from collections.abc import Sequence

from engine.spec.staircut_cut import Terms
from engine.spec.tree import DraftTree


def shared_line(first: DraftTree, second: DraftTree) -> int:
    """How many nodes of the two trees' first lines agree, from the anchor down."""
    shared = 0
    for node in range(1, min(len(first), len(second))):
        if first.parents[node] != node - 1 or second.parents[node] != node - 1:
            break
        if first.tokens[node] != second.tokens[node]:
            break
        shared = node
    return shared


def joint_chances(
    first: Sequence[float], second: Sequence[float], shared: int
) -> tuple[list[float], float]:
    """(chances of the nodes of both trees, likeliest first, by which factor each tree's are scaled).

    Of `shared` nodes the higher chance counts once. Where the first tokens differ only one of them can be
    right: if their chances sum to more than 1, both trees are scaled down to it.
    """
    scale = 1.0
    if not shared:
        scale = min(1.0, 1.0 / (first[1] + second[1]))
    both = [max(pair) for pair in zip(first[1 : shared + 1], second[1 : shared + 1], strict=True)]
    both += first[shared + 1 :]
    both += second[shared + 1 :]
    both.sort(reverse=True)
    return ([chance * scale for chance in both] if scale < 1.0 else both), scale


def best_value(chances: Sequence[float], terms: Terms) -> float:
    """The highest tokens a millisecond of the n first of these chances in a tree, over n."""
    tree_ms, spent_ms = terms.prices[1], terms.spent_ms
    best, expected = 0.0, 1.0
    for rows, chance in enumerate(chances[: terms.limit], 2):
        expected += chance
        value = expected / (tree_ms[rows] + spent_ms)
        if value > best:
            best = value
    return best
