# SPDX-License-Identifier: MIT OR Apache-2.0
"""The trees that a round may verify, each at its best size, and the choice among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine.spec.drafter import RouteChoice
from engine.spec.staircut_cut import Cut, Terms, best_cut, chances_of, likeliest_line
from engine.spec.staircut_heads import Head
from engine.spec.staircut_merge import best_value, joint_chances, shared_line
from engine.spec.tree import DraftTree
from engine.spec.tree_builder import merge

PLAIN = "plain"
LOOKUP = "lookup"
_MERGE_GAIN = 1.02  # what a merged tree must promise before it is built

Looked = tuple[DraftTree, Sequence[float]]  # the lookup's tree and the chances of its nodes


class Candidate(NamedTuple):
    """A tree at its best size."""

    cut: Cut
    name: str
    tree: DraftTree


def candidate(
    name: str, tree: DraftTree, chances: Sequence[float], terms: Terms, *, whole: bool
) -> Candidate:
    """A tree cut by the chances of its nodes; `whole`: at its largest size."""
    return Candidate(best_cut(chances, tree.parents, *terms, whole=whole), name, tree)


def of_head(
    head: Head,
    drafted: DraftTree,
    looked: Looked | None,
    look_factor: float,
    found: tuple[Candidate, ...],
    terms: Terms,
    *,
    whole: bool,
) -> tuple[Candidate, ...]:
    """A head's candidates: its tree, the line in a tree with branches, the merge with what was looked up.

    found: the lookup's candidate, empty without one. look_factor: what its scores were multiplied by.
    """
    chances = head.chances
    tree = candidate(head.name, drafted, chances, terms, whole=whole)
    made: tuple[Candidate, ...] = (tree,)
    if whole:
        return made
    if not drafted.is_chain:
        line = likeliest_line(chances, drafted.parents)
        of_line = [1.0, *(chances[node] for node in line)]
        chain = drafted.subset(line)
        made += (candidate(f"{head.name} line", chain, of_line, terms, whole=False),)
    if looked is None or not tree.cut.nodes or not found[0].cut.nodes:
        return made
    other, other_chances = looked
    joint, scale = joint_chances(chances, other_chances, shared_line(drafted, other))
    at_hand = max(each.cut.value for each in (*found, *made))
    if best_value(joint, terms) <= at_hand * _MERGE_GAIN:
        return made
    factors = {
        drafted.sources[-1]: head.calibration.factor * scale,
        other.sources[-1]: look_factor * scale,
    }
    merged = merge(drafted, other)
    name = f"{head.name}+{LOOKUP}"
    return (*made, candidate(name, merged, chances_of(merged, factors), terms, whole=False))


def choose(
    found: tuple[Candidate, ...],
    plain_value: float,
    *,
    per_ms: float,
    source: str,
    least: float = 0.0,
    skipped: str = "",
    probe: bool = False,
) -> tuple[RouteChoice, DraftTree | None]:
    """The candidate that promises most at its size, and what is left of its tree; None for a plain round.

    plain_value: what a plain round promises, as candidates do. per_ms: what makes tokens a millisecond of such
    values. source: of the prices. least: what this round promises without a draft, now that it was decided
    anew. skipped, probe: as in RouteChoice.
    """
    best: Candidate | None = None
    for each in found:
        if each.cut.nodes and each.cut.value > (least if best is None else best.cut.value):
            best = each
    if best is None:
        (value, nodes, expected), name, tree, left_out = (plain_value, 0, 1.0), PLAIN, None, 0
    else:
        (value, nodes, expected, order), name, tree = best
        left_out = len(tree) - 1 - nodes
    choice = RouteChoice(
        name,
        nodes,
        expected,
        value * per_ms,
        source,
        skipped,
        probe,
        left_out,
        value / plain_value,
    )
    return choice, tree.subset(order[:nodes]) if left_out else tree
