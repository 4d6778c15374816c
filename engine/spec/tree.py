# SPDX-License-Identifier: MIT OR Apache-2.0
"""Draft trees: token ids and parents in depth-first pre-order, free of any tensor library."""

from __future__ import annotations

from dataclasses import dataclass

MAX_NODES = 32  # rows of one verify pass, the anchor included


@dataclass(frozen=True, slots=True)
class DraftTree:
    """What a drafter proposes for one verify pass.

    Node 0 is the anchor: the last token of the text, which the model has not read yet (parent -1, score 1).
    Every parent precedes its children and every subtree is contiguous, so any prefix of the nodes is a tree.

    tokens, parents: one entry a node. scores: probability that the whole path to the node is accepted, never
    above the parent's. sources: the drafter that proposed the node ("anchor" for node 0).
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    scores: tuple[float, ...]
    sources: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.tokens)
