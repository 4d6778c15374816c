# SPDX-License-Identifier: MIT OR Apache-2.0
"""Drafters that know the text to come and use it against the verify pass: for gates, never for speed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from engine.spec.drafter import RoundOutcome
from engine.spec.tree import MAX_NODES, DraftTree
from engine.spec.tree_builder import TreeBuilder

SOURCE = "adversary"
_LINE = 6  # drafted tokens of the chains
_DEEPEST = 12


class Adversary:
    """Follows the round's place in a known text; `draft` builds the proposal.

    `draft(chance, line, limit)` gets the anchor with the true tokens behind it, as far as they are known.
    """

    name = SOURCE

    def __init__(
        self,
        text: Sequence[int],
        draft: Callable[[random.Random, Sequence[int], int], DraftTree | None],
    ) -> None:
        self._text = text
        self._draft = draft
        self._at = 0
        self._chance = random.Random(len(text))
        self.read_bytes = 0

    def begin(self, prompt: Sequence[int]) -> None:
        """The anchor is the text's first token."""
        self._at = 0

    def propose(self, anchor: int, limit: int) -> DraftTree | None:
        """What `draft` makes of the text from here."""
        line = self._text[self._at : self._at + MAX_NODES]
        if not line or line[0] != anchor:  # the texts have parted: that is the finding
            return None
        return self._draft(self._chance, line, limit)

    def settle(self, outcome: RoundOutcome) -> None:
        """The text went on."""
        self._at += len(outcome.tokens)


def always_wrong(text: Sequence[int], vocabulary: int) -> Adversary:
    """Chains whose first token is wrong and whose others would be right."""

    def draft(chance: random.Random, line: Sequence[int], limit: int) -> DraftTree:
        return _line(line, 0, min(_LINE, limit), vocabulary, chance)

    return Adversary(text, draft)


def half_right(text: Sequence[int], vocabulary: int) -> Adversary:
    """Chains whose first half is true."""

    def draft(chance: random.Random, line: Sequence[int], limit: int) -> DraftTree:
        count = min(_LINE, limit)
        return _line(line, count // 2, count, vocabulary, chance)

    return Adversary(text, draft)


def rejecting(text: Sequence[int], vocabulary: int) -> Adversary:
    """Trees that hold the truth to one depth after the other, then wrong branches alone."""
    rounds = 0

    def draft(chance: random.Random, line: Sequence[int], limit: int) -> DraftTree:
        nonlocal rounds
        depth = rounds % _DEEPEST
        rounds += 1
        builder, node = TreeBuilder(line[0]), 0
        for token in line[1 : 1 + min(depth, limit)]:
            node = builder.add(node, token, 1.0, SOURCE)
        known = len(builder)
        true = line[known] if known < len(line) else -1
        for _ in range(min(limit - known + 1, 4)):
            wrong = _other(chance, vocabulary, true)
            builder.add(builder.add(node, wrong, 0.5, SOURCE), wrong, 0.25, SOURCE)
        return builder.build()

    return Adversary(text, draft)


def random_trees(text: Sequence[int], vocabulary: int) -> Adversary:
    """Trees of every size and shape, some part of the true line somewhere in them, sometimes none at all."""

    def draft(chance: random.Random, line: Sequence[int], limit: int) -> DraftTree | None:
        nodes = chance.randint(0, limit)
        wide = chance.choice((0.1, 0.5, 1.0))
        builder, scores = TreeBuilder(line[0]), [1.0]
        true = [0]
        while len(builder) <= nodes:
            if len(true) < len(line) and chance.random() < 0.4:
                parent, token = true[-1], line[len(true)]
            else:
                parent = (
                    chance.randrange(len(scores)) if chance.random() < wide else len(scores) - 1
                )
                token = chance.randrange(vocabulary)
            node = builder.add(parent, token, scores[parent] * chance.random(), SOURCE)
            if node < len(scores):
                continue  # a token that was there already
            scores.append(builder.score(node))
            if parent == true[-1] and len(true) < len(line) and token == line[len(true)]:
                true.append(node)
        return builder.build() if nodes else None

    return Adversary(text, draft)


def alternating(text: Sequence[int], vocabulary: int) -> Adversary:
    """The true line in every second round, nothing in between."""
    rounds = 0

    def draft(chance: random.Random, line: Sequence[int], limit: int) -> DraftTree | None:
        nonlocal rounds
        rounds += 1
        count = min(_LINE, limit, len(line) - 1)
        return None if rounds % 2 or count < 1 else _line(line, count, count, vocabulary, chance)

    return Adversary(text, draft)


def _line(
    line: Sequence[int], true: int, count: int, vocabulary: int, chance: random.Random
) -> DraftTree:
    """A chain of `count` tokens, `true` of them right and the next one wrong."""
    tokens = list(line[: count + 1])
    tokens += [chance.randrange(vocabulary) for _ in range(count + 1 - len(tokens))]
    if true < count:
        tokens[true + 1] = _other(chance, vocabulary, tokens[true + 1])
    return DraftTree.chain(tokens, [0.5] * count, SOURCE)


def _other(chance: random.Random, vocabulary: int, token: int) -> int:
    """A token that is not `token`."""
    drawn = chance.randrange(vocabulary)
    return drawn if drawn != token else (drawn + 1) % vocabulary
