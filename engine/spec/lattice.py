# SPDX-License-Identifier: MIT OR Apache-2.0
"""The lattice of a block drafter: candidates of every slot, scored by their predecessor, and trees from it.

score(slot, previous, candidate) = logit(candidate) + <predecessor[previous] * projected[slot],
successor[candidate]>; its softmax over a slot's candidates, at a temperature, is the probability of a candidate
behind a previous one.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from engine.model.block_forward import BlockRows
from engine.spec.tree import DraftTree
from engine.spec.tree_builder import TreeBuilder

MODES = ("nodes", "paths")


@dataclass(frozen=True, slots=True)
class Lattice:
    """Conditional probabilities of the candidates, and which are likeliest.

    Attributes:
        tokens: candidates of each slot, [slots][K].
        first: float64 [K], probabilities behind the anchor.
        step: float64 [slots - 1, K, K], of a slot's candidates behind each candidate of the slot before.
    """

    anchor: int
    tokens: list[list[int]]
    first: np.ndarray
    step: np.ndarray

    @staticmethod
    def of(
        rows: BlockRows, anchor: int, codebooks: tuple[np.ndarray, np.ndarray], temperature: float
    ) -> Lattice | None:
        """The lattice of one draft; None when not even the first slot is a number.

        Args:
            codebooks: predecessor and successor, the bits of bf16 as uint16 [vocab, rank].
            temperature: above 0; 1 takes the scores as they are.
        """
        valid = (rows.tokens[:, 0] >= 0) & np.isfinite(rows.projected).all(-1)
        slots = int(np.cumprod(valid).sum())
        if not slots:
            return None
        tokens = rows.tokens[:slots]
        logits, projected = rows.logits[:slots], rows.projected[:slots]
        predecessor, successor = codebooks
        right = _widened(successor[tokens])
        first = logits[0] + right[0] @ (_widened(predecessor[anchor]) * projected[0])
        left = _widened(predecessor[tokens[:-1]]) * projected[1:, None]
        step = logits[1:, None] + left @ right[1:].transpose(0, 2, 1)
        return Lattice(
            anchor, tokens.tolist(), _softmax(first, temperature), _softmax(step, temperature)
        )

    def behind(self, slot: int, candidate: int) -> np.ndarray:
        """Probabilities of `slot`'s candidates behind a candidate of the slot before (any, for slot 0)."""
        return self.first if slot == 0 else self.step[slot - 1, candidate]

    def tree(self, limit: int, mode: str, source: str) -> DraftTree:
        """A tree of at most `limit` (1 or more) nodes: the greedy walk, then the best of what is left.

        "nodes" adds single nodes, "paths" whole greedy walks from a node on; both take the likeliest first.
        """
        growth = _Growth(self, source)
        growth.walk(0, 0, 0, 1.0, limit)
        while len(growth.builder) <= limit and growth.waiting:
            node, slot, candidate, score = growth.take()
            if mode == "paths":
                growth.walk(node, slot + 1, candidate, score, limit)
            else:
                growth.offer(node, slot + 1, candidate, score, 0)
        return growth.builder.build()


class _Growth:
    """A tree under construction and a heap of nodes that may come next, the likeliest first.

    Of the candidates behind one node only the best that is not yet taken waits.
    """

    def __init__(self, lattice: Lattice, source: str) -> None:
        self.lattice, self.source = lattice, source
        self.builder = TreeBuilder(lattice.anchor)
        self.waiting: list[tuple[float, int, int, int, int, float, int]] = []
        self._made = 0

    def walk(self, node: int, slot: int, candidate: int, score: float, limit: int) -> None:
        """Add greedy candidates from `slot` on behind a node, until the lattice or the budget ends."""
        while slot < len(self.lattice.tokens) and len(self.builder) <= limit:
            chances = self.lattice.behind(slot, candidate)
            best = int(chances.argmax())
            self.offer(node, slot, candidate, score, 1)
            score *= float(chances[best])
            node = self.builder.add(node, self.lattice.tokens[slot][best], score, self.source)
            candidate = best
            slot += 1

    def offer(self, node: int, slot: int, candidate: int, score: float, rank: int) -> None:
        """Let the candidate of `slot` that comes `rank`-th behind a node of this score wait."""
        if slot >= len(self.lattice.tokens) or rank >= len(self.lattice.tokens[slot]):
            return
        chances = self.lattice.behind(slot, candidate)
        chosen = int(np.argsort(-chances, kind="stable")[rank])
        self._made += 1
        reached = score * float(chances[chosen])
        heapq.heappush(self.waiting, (-reached, self._made, node, slot, candidate, score, rank))

    def take(self) -> tuple[int, int, int, float]:
        """Add the likeliest waiting node: (its number, slot, candidate, score)."""
        _, _, parent, slot, previous, before, rank = heapq.heappop(self.waiting)
        self.offer(parent, slot, previous, before, rank + 1)
        chances = self.lattice.behind(slot, previous)
        candidate = int(np.argsort(-chances, kind="stable")[rank])
        score = before * float(chances[candidate])
        node = self.builder.add(parent, self.lattice.tokens[slot][candidate], score, self.source)
        return node, slot, candidate, score


def _widened(bits: np.ndarray) -> np.ndarray:
    """float32 of bf16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _softmax(scores: np.ndarray, temperature: float) -> np.ndarray:
    scaled = scores.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)
