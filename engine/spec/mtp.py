# SPDX-License-Identifier: MIT OR Apache-2.0
"""Drafters on the checkpoint's own MTP head: its greedy chain, alone or with side branches."""

from __future__ import annotations

from collections.abc import Sequence

from engine.model.backend import MAX_DRAFT, MAX_WIDTH, Backend
from engine.spec.drafter import RoundOutcome
from engine.spec.tree import ANCHOR, DraftTree

SOURCE = "mtp"


class _Mtp:
    """The backend keeps the head's cache in step with every commit, so there is nothing to learn here."""

    name = SOURCE

    def __init__(self, backend: Backend, depth: int) -> None:
        if not 1 <= depth <= MAX_DRAFT:
            raise ValueError(f"the MTP head drafts 1 to {MAX_DRAFT} tokens, got {depth}")
        self._backend = backend
        self._depth = depth
        self.read_bytes = 0

    def begin(self, prompt: Sequence[int]) -> None:
        """Nothing: the backend has followed the prompt."""

    def settle(self, outcome: RoundOutcome) -> None:
        """Nothing: the backend has followed the commit."""


class MtpChain(_Mtp):
    """The likeliest token of each step; a node's score is the product of the head's probabilities."""

    def propose(self, anchor: int, limit: int) -> DraftTree | None:
        """A chain of at most `limit` tokens."""
        steps = self._backend.draft_steps(anchor, min(self._depth, limit), 1)
        self.read_bytes = self._backend.draft_bytes(len(steps))
        tokens, scores = [anchor], []
        score = 1.0
        for step in steps:
            if step.tokens[0] < 0:  # the head computed no number
                break
            score *= step.probabilities[0]
            tokens.append(step.tokens[0])
            scores.append(score)
        return DraftTree.chain(tokens, scores, SOURCE) if scores else None


class MtpTree(_Mtp):
    """The same chain with the next likeliest tokens of each step as side branches of one node each."""

    def __init__(self, backend: Backend, depth: int, width: int) -> None:
        """`width`: side branches at each step, 1 to 4."""
        super().__init__(backend, depth)
        if not 1 <= width < MAX_WIDTH:
            raise ValueError(f"a step has 1 to {MAX_WIDTH - 1} side branches, got {width}")
        self._width = width

    def propose(self, anchor: int, limit: int) -> DraftTree | None:
        """The chain with its branches, cut to the `limit` nodes of the highest scores."""
        steps = self._backend.draft_steps(anchor, min(self._depth, limit), 1 + self._width)
        self.read_bytes = self._backend.draft_bytes(len(steps))
        tokens, parents, scores = [anchor], [-1], [1.0]
        for step in steps:
            if step.tokens[0] < 0:
                break
            parents.append(len(tokens) - 1)
            scores.append(scores[-1] * step.probabilities[0])
            tokens.append(step.tokens[0])
        # Depth-first: the branches follow the chain's end, the deepest first.
        for parent in reversed(range(len(tokens) - 1)):
            step = steps[parent]
            for token, chance in zip(step.tokens[1:], step.probabilities[1:], strict=True):
                tokens.append(token)
                parents.append(parent)
                scores.append(scores[parent] * chance)
        if len(tokens) == 1:
            return None
        sources = (ANCHOR,) + (SOURCE,) * (len(tokens) - 1)
        return DraftTree(tuple(tokens), tuple(parents), tuple(scores), sources).prune(limit + 1)
