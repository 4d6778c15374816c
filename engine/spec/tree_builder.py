# SPDX-License-Identifier: MIT OR Apache-2.0
"""Growing draft trees node by node, and grafting one onto another."""

from __future__ import annotations

from engine.spec.tree import ANCHOR, DraftTree


class TreeBuilder:
    """Nodes in any order; `build` puts them into depth-first pre-order."""

    def __init__(self, anchor: int) -> None:
        self._tokens = [anchor]
        self._scores = [1.0]
        self._sources = [ANCHOR]
        self._children: list[dict[int, int]] = [{}]  # of each node, by token

    def __len__(self) -> int:
        return len(self._tokens)

    def score(self, node: int) -> float:
        """The score of a node, by the number that `add` gave it."""
        return self._scores[node]

    def add(self, parent: int, token: int, score: float, source: str) -> int:
        """The number of the child of `parent` with this token, to add to; 0 is the anchor.

        A token that is there already shares its node: the higher score and its source stay. Raises ValueError
        for a parent that does not exist.
        """
        if not 0 <= parent < len(self._tokens):
            raise ValueError(f"parent {parent} is not one of {len(self._tokens)} nodes")
        known = self._children[parent].get(token)
        if known is None:
            known = self._children[parent][token] = len(self._tokens)
            self._tokens.append(token)
            self._scores.append(score)
            self._sources.append(source)
            self._children.append({})
        elif score > self._scores[known]:
            self._scores[known] = score
            self._sources[known] = source
        return known

    def graft(self, tree: DraftTree) -> None:
        """Add every node of a tree with the same anchor, sharing the paths that are there.

        Raises ValueError for another anchor.
        """
        if tree.tokens[0] != self._tokens[0]:
            raise ValueError(f"anchors {self._tokens[0]} and {tree.tokens[0]} differ")
        number = [0]
        for node in range(1, len(tree)):
            number.append(
                self.add(
                    number[tree.parents[node]],
                    tree.tokens[node],
                    tree.scores[node],
                    tree.sources[node],
                )
            )

    def build(self) -> DraftTree:
        """The tree, the children of each node in descending score and then as they were added.

        Raises ValueError where a score lies outside 0..1 or above its parent's.
        """
        tokens, parents, scores, sources = [], [], [], []
        waiting = [(0, -1)]
        while waiting:
            node, parent = waiting.pop()
            at = len(tokens)
            tokens.append(self._tokens[node])
            parents.append(parent)
            scores.append(self._scores[node])
            sources.append(self._sources[node])
            children = sorted(self._children[node].values(), key=lambda child: -self._scores[child])
            waiting.extend((child, at) for child in reversed(children))
        return DraftTree(tuple(tokens), tuple(parents), tuple(scores), tuple(sources))


def merge(first: DraftTree, second: DraftTree) -> DraftTree:
    """Both trees as one, shared paths once. Raises ValueError when their anchors differ."""
    builder = TreeBuilder(first.tokens[0])
    builder.graft(first)
    builder.graft(second)
    return builder.build()
