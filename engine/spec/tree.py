# SPDX-License-Identifier: MIT OR Apache-2.0
"""Draft trees: token ids and parents in depth-first pre-order, free of any tensor library."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass

MAX_NODES = 32  # rows of one verify pass, the anchor included
ANCHOR = "anchor"

_CHAIN = tuple(range(-1, 255))


@dataclass(frozen=True, slots=True)
class DraftTree:
    """What a drafter proposes for one verify pass.

    Node 0 is the anchor: the last token of the text, which the model has not read yet (parent -1, score 1).
    Every parent precedes its children and every subtree is contiguous, so any prefix of the nodes is a tree.
    The children of a node differ in their tokens. A tree may be larger than a pass while it is merged and cut.

    tokens, parents: one entry a node. scores: probability that the whole path to the node is accepted, never
    above the parent's. sources: the drafter that proposed the node ("anchor" for node 0).

    Raises:
        ValueError: the lists break one of these rules; the message names the node.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    scores: tuple[float, ...]
    sources: tuple[str, ...]

    def __post_init__(self) -> None:
        tokens, parents, scores = self.tokens, self.parents, self.scores
        count = len(tokens)
        if not count == len(parents) == len(scores) == len(self.sources):
            raise ValueError(
                f"a tree has one parent, score and source a token, got {count} tokens, {len(parents)} "
                f"parents, {len(scores)} scores and {len(self.sources)} sources"
            )
        if not count or parents[0] != -1 or scores[0] != 1.0:
            raise ValueError("node 0 is the anchor, with parent -1 and score 1")
        if parents != _CHAIN[:count]:
            check_order(parents)
        for node in range(1, count):
            if not 0.0 <= scores[node] <= scores[parents[node]]:
                raise ValueError(
                    f"node {node} has score {scores[node]}, not one from 0 to its parent's "
                    f"{scores[parents[node]]}"
                )
        if parents != _CHAIN[:count] and len(set(zip(parents, tokens, strict=True))) != count:
            raise ValueError("two children of one node have the same token")

    @staticmethod
    def chain(tokens: Sequence[int], scores: Sequence[float], source: str) -> DraftTree:
        """Tokens in a line: the anchor first, then the drafted ones with their scores (one fewer)."""
        return DraftTree(
            tuple(tokens),
            tuple(range(-1, len(tokens) - 1)),
            (1.0, *scores),
            (ANCHOR,) + (source,) * (len(tokens) - 1),
        )

    @staticmethod
    def plain(anchor: int) -> DraftTree:
        """The anchor alone."""
        return DraftTree((anchor,), (-1,), (1.0,), (ANCHOR,))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        """True when no node has two children."""
        return is_chain(self.parents)

    @property
    def expected_tokens(self) -> float:
        """Tokens a round is expected to add, if the scores are right: the sum of all scores."""
        return sum(self.scores)

    def depths(self) -> tuple[int, ...]:
        """Steps from the anchor to each node: the offsets of their positions in the text."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    def path(self, node: int) -> tuple[int, ...]:
        """Nodes from the anchor to `node`, both included."""
        found = [node]
        while self.parents[found[-1]] >= 0:
            found.append(self.parents[found[-1]])
        return tuple(reversed(found))

    def children(self, node: int) -> tuple[int, ...]:
        """The nodes whose parent is `node`, in order."""
        return tuple(n for n in range(node + 1, len(self)) if self.parents[n] == node)

    def truncate(self, nodes: int) -> DraftTree:
        """The first `nodes` nodes, the anchor included. Raises ValueError below 1."""
        if nodes < 1:
            raise ValueError(f"a tree keeps at least its anchor, got {nodes} nodes")
        if nodes >= len(self):
            return self
        return DraftTree(
            self.tokens[:nodes], self.parents[:nodes], self.scores[:nodes], self.sources[:nodes]
        )

    def subset(self, keep: Iterable[int]) -> DraftTree:
        """The named nodes, in order. Raises ValueError when one is missing or its parent is left out."""
        kept = sorted(set(keep) | {0})
        number = {node: at for at, node in enumerate(kept)}
        for node in kept:
            if not 0 <= node < len(self):
                raise ValueError(f"node {node} is not one of {len(self)}")
            if node and self.parents[node] not in number:
                raise ValueError(f"node {node} is kept without its parent {self.parents[node]}")
        return DraftTree(
            tuple(self.tokens[node] for node in kept),
            tuple(number[self.parents[node]] if node else -1 for node in kept),
            tuple(self.scores[node] for node in kept),
            tuple(self.sources[node] for node in kept),
        )

    def by_score(self) -> list[int]:
        """All nodes in descending score, each after its ancestors: equal scores stay in order."""
        return sorted(range(len(self)), key=lambda node: -self.scores[node])

    def prune(self, nodes: int) -> DraftTree:
        """The `nodes` nodes of the highest scores, the anchor included; with a node always its ancestors.

        Scores never rise along a path, so that no ancestor of an admitted node is missing.
        """
        if nodes < 1:
            raise ValueError(f"a tree keeps at least its anchor, got {nodes} nodes")
        return self if nodes >= len(self) else self.subset(self.by_score()[:nodes])

    def walk(
        self, choose: Callable[[int], int], stop: Container[int] = ()
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(accepted path from 0, ascending; tokens it adds to the text), as many of one as of the other.

        `choose(node)` is the token the model takes behind a node; it is asked along the path only. The walk
        goes to the child with that token and ends where there is none, or at a token of `stop`.
        """
        tokens, parents = self.tokens, self.parents
        path, chosen = [0], [choose(0)]
        at, end = 0, len(tokens)
        node = 1
        while node < end and parents[node] >= at:
            if parents[node] == at and tokens[node] == chosen[-1]:
                if chosen[-1] in stop:
                    break
                path.append(node)
                chosen.append(choose(node))
                at = node
            node += 1
        return tuple(path), tuple(chosen)


def is_chain(parents: Sequence[int]) -> bool:
    """True when every node's parent is the node before it."""
    return tuple(parents) == _CHAIN[: len(parents)]


def check_order(parents: Sequence[int]) -> None:
    """Raise ValueError unless `parents` is one tree in depth-first pre-order, rooted in node 0."""
    path: list[int] = []
    depths: list[int] = []
    for node, parent in enumerate(parents):
        if parent == node - 1:  # also the root
            depth = len(path) if node == 0 else depths[parent] + 1
        else:
            depth = depths[parent] + 1 if 0 <= parent < node else 0
            if not depth or path[depth - 1] != parent:
                raise ValueError(f"node {node} with parent {parent} breaks depth-first pre-order")
        del path[depth:]
        path.append(node)
        depths.append(depth)
