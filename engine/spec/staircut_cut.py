# SPDX-License-Identifier: MIT OR Apache-2.0
"""Where to cut a candidate tree so that its round brings the most tokens a millisecond."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from engine.spec.prices import Curve
from engine.spec.tree import MAX_NODES, DraftTree, is_chain

# Rows that a cut may have. Every row count is recorded on its first use, which takes as long as several rounds.
ADMISSIBLE = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
_SIZES = [rows in ADMISSIBLE for rows in range(MAX_NODES + 1)]


class Terms(NamedTuple):
    """What every cut of a round is judged by.

    prices: (chain, tree) milliseconds by rows. spent_ms: what the round costs beside its verify pass. limit:
    the most nodes besides the anchor.
    """

    prices: tuple[Curve, Curve]
    spent_ms: float
    limit: int


class Cut(NamedTuple):
    """A candidate cut to the nodes that pay: `order[:nodes]`, the anchor not counted; 0 nodes is a plain round.

    `value` is in tokens a millisecond, `expected` the tokens the round adds.
    """

    value: float
    nodes: int
    expected: float
    order: Sequence[int]


def best_cut(
    chances: Sequence[float],
    parents: Sequence[int],
    prices: tuple[Curve, Curve],
    spent_ms: float,
    limit: int,
    *,
    whole: bool = False,
) -> Cut:
    """The admissible n that maximises (sum of the n largest chances + 1) / (price of n + 1 rows + spent_ms).

    Args:
        chances: by node, probability that its whole path is accepted; never above the parent's. So the n
            likeliest nodes hold every ancestor of theirs, and no other tree of n nodes expects more.
        prices: (chain, tree) milliseconds by rows.
        spent_ms: what the round costs beside its verify pass.
        limit: the most nodes besides the anchor.
        whole: consider only the largest size.
    """
    chain_ms, tree_ms = prices
    if is_chain(parents):
        order: Sequence[int] = range(1, len(chances))
    else:
        order = sorted(range(1, len(chances)), key=chances.__getitem__, reverse=True)
    expected = best_expected = 1.0
    best_value, best_nodes = 1.0 / (chain_ms[1] + spent_ms), 0
    last = 0
    price = chain_ms
    largest = min(limit, len(order))
    for rows, node in enumerate(order[:largest], 2):
        if parents[node] != last:
            price = tree_ms
        last = node
        expected += chances[node]
        if not _SIZES[rows] and not whole:
            continue
        value = expected / (price[rows] + spent_ms)
        if value > best_value or (whole and rows > largest):
            best_value, best_nodes, best_expected = value, rows - 1, expected
    return Cut(best_value, best_nodes, best_expected, order)


def chances_of(tree: DraftTree, factors: Mapping[str, float]) -> Sequence[float]:
    """Each node's score times the factor of its source (1 without one), at most its parent's chance."""
    scores, parents, sources = tree.scores, tree.parents, tree.sources
    first = factors.get(sources[-1], 1.0)
    if len(tree) > 1 and sources.count(sources[-1]) == len(tree) - 1:
        if first == 1.0:
            return scores
        return [1.0, *(min(1.0, score * first) for score in scores[1:])]
    chances = [1.0]
    for node in range(1, len(tree)):
        chance = scores[node] * factors.get(sources[node], 1.0)
        above = chances[parents[node]]
        chances.append(chance if chance < above else above)
    return chances


def likeliest_line(chances: Sequence[float], parents: Sequence[int]) -> list[int]:
    """The nodes of the path that always takes the likeliest child, the anchor left out."""
    line: list[int] = []
    at = 0
    while True:
        best = -1
        for node in range(at + 1, len(parents)):
            if parents[node] < at:
                break
            if parents[node] == at and (best < 0 or chances[node] > chances[best]):
                best = node
        if best < 0:
            return line
        line.append(best)
        at = best
