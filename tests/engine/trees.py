# SPDX-License-Identifier: MIT OR Apache-2.0
"""Random trees of rows for tests of a verify pass."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Rows:
    """Nodes of one verify pass in depth-first pre-order; tokens are ids, siblings differ."""

    ids: list[int]
    parents: list[int]

    def path(self, node: int) -> list[int]:
        """Nodes from row 0 to `node`."""
        found = [node]
        while self.parents[found[0]] >= 0:
            found.insert(0, self.parents[found[0]])
        return found

    def leaves(self) -> list[int]:
        """Nodes without a child."""
        return [node for node in range(len(self.ids)) if node not in self.parents]


def random_rows(
    chance: random.Random,
    nodes: int,
    vocabulary: int,
    *,
    line: Sequence[int] = (),
    wide: float = 0.5,
) -> Rows:
    """A tree of `nodes` nodes, of which `line` is a path from row 0.

    `wide`: how often a further node hangs anywhere instead of below the one before it.
    """
    tokens = list(line[:nodes]) or [chance.randrange(vocabulary)]
    children: list[list[int]] = [[node + 1] for node in range(len(tokens) - 1)] + [[]]
    while len(tokens) < nodes:
        parent = chance.randrange(len(tokens)) if chance.random() < wide else len(tokens) - 1
        taken = {tokens[child] for child in children[parent]}
        token = chance.randrange(vocabulary)
        while token in taken:
            token = (token + 1) % vocabulary
        children[parent].append(len(tokens))
        children.append([])
        tokens.append(token)
    order: list[int] = []
    parents: list[int] = []
    waiting = [(0, -1)]
    while waiting:
        node, parent = waiting.pop()
        waiting += [
            (child, len(order)) for child in chance.sample(children[node], len(children[node]))
        ]
        order.append(node)
        parents.append(parent)
    return Rows([tokens[node] for node in order], parents)
