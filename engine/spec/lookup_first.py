# SPDX-License-Identifier: MIT OR Apache-2.0
"""Lookup before another drafter: the one that promises more, judged by what both lately kept."""

from __future__ import annotations

from collections.abc import Sequence

from engine.spec.drafter import Drafter, RoundOutcome
from engine.spec.lookup import LookupDrafter, LookupProposal
from engine.spec.tree import DraftTree

_WEIGHT = 0.15  # of the newest round in the means
_FIRST_YIELD = 2.0  # accepted tokens of the other drafter before it drafted once
_PROBE_ROUNDS = 16  # after so many rounds by lookup in a row the other drafts again


class LookupFirst:
    """Proposes the lookup tree where it is worth more than the other drafter's rounds; implements Drafter.

    A lookup tree is worth its expected tokens times what such trees brought for each expected one; that is
    learned in every round, also where the tree was not verified. The other drafter runs only when it is
    chosen, as it costs time. No prices: every row counts the same.
    """

    name = "lookup first"

    def __init__(self, lookup: LookupDrafter, other: Drafter) -> None:
        self._lookup = lookup
        self._other = other
        self.read_bytes = 0  # of the last proposal
        self._begin()

    def _begin(self) -> None:
        self._realised = 1.0  # tokens brought for each expected one
        self._yield = _FIRST_YIELD
        self._rounds = 0
        self._found: LookupProposal | None = None
        self._asked_other = False

    def begin(self, prompt: Sequence[int]) -> None:
        """A new sequence; what was learned belongs to the text and starts anew."""
        self._lookup.begin(prompt)
        self._other.begin(prompt)
        self._begin()

    def propose(self, anchor: int, limit: int) -> DraftTree | None:
        """The lookup tree or the other drafter's; the lookup tree also where the other has none."""
        found = self._found = self._lookup.look(anchor, limit)
        self._asked_other = False
        self.read_bytes = 0
        if found is not None and found.deep:
            return found.tree
        better = found is not None and found.expected * self._realised > self._yield
        if better and self._rounds < _PROBE_ROUNDS:
            self._rounds += 1
            return found.tree
        self._rounds = 0
        tree = self._other.propose(anchor, limit)
        self._asked_other = tree is not None
        self.read_bytes = self._other.read_bytes
        if tree is None and found is not None and self._lookup.worthwhile(found):
            return found.tree
        return tree

    def settle(self, outcome: RoundOutcome) -> None:
        """Both learn from the round, and so does the choice between them."""
        self._lookup.settle(outcome)
        self._other.settle(outcome)
        if self._asked_other:
            self._yield += _WEIGHT * (len(outcome.path) - 1 - self._yield)
        if self._found is not None:
            brought = _followed(self._found.tree, outcome.tokens)
            if brought is not None:
                self._realised += _WEIGHT * (brought / self._found.expected - self._realised)
        self._found = None
        self._asked_other = False


def _followed(tree: DraftTree, tokens: Sequence[int]) -> int | None:
    """How many of `tokens` the tree held; None where they all agree with it and its path goes on: not known."""
    node = count = 0
    for token in tokens:
        below = next((child for child in tree.children(node) if tree.tokens[child] == token), None)
        if below is None:
            return count
        node, count = below, count + 1
    return None if tree.children(node) else count
