# SPDX-License-Identifier: MIT OR Apache-2.0
"""The lattice's walks and trees against definitions that enumerate every path."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from engine.model.block_forward import BlockRows
from engine.spec.lattice import Lattice

SLOTS, WIDTH, RANK, VOCAB, ANCHOR = 4, 3, 5, 40, 7


def bf16(values: np.ndarray) -> np.ndarray:
    """The bits of bf16 numbers, cut off."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def wide(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


class Drawn:
    """A random draft and codebooks."""

    def __init__(self, seed: int, scale: float = 1.0) -> None:
        rng = np.random.default_rng(seed)
        tokens = np.stack([rng.choice(VOCAB, WIDTH, replace=False) for _ in range(SLOTS)])
        logits = -np.sort(-rng.normal(size=(SLOTS, WIDTH)).astype(np.float32) * scale)
        projected = rng.normal(size=(SLOTS, RANK)).astype(np.float32)
        self.rows = BlockRows(tokens.astype(np.int32), logits, projected)
        self.books = tuple(bf16(rng.normal(size=(VOCAB, RANK)) * scale) for _ in range(2))

    def score(self, slot: int, previous: int, candidate: int) -> float:
        """Straight from the definition; `candidate` counts within the slot, `previous` is a token."""
        before, behind = (wide(book).astype(np.float64) for book in self.books)
        token = self.rows.tokens[slot, candidate]
        inner = before[previous] * self.rows.projected[slot].astype(np.float64)
        return float(self.rows.logits[slot, candidate]) + float(inner @ behind[token])

    def chances(self, slot: int, previous: int, temperature: float) -> list[float]:
        scores = [self.score(slot, previous, c) / temperature for c in range(WIDTH)]
        total = sum(math.exp(s) for s in scores)
        return [math.exp(s) / total for s in scores]

    def paths(self, temperature: float) -> dict[tuple[int, ...], float]:
        """The probability of every path of candidates, of any length."""
        found = {}
        for length in range(1, SLOTS + 1):
            for path in itertools.product(range(WIDTH), repeat=length):
                previous, chance = ANCHOR, 1.0
                for slot, candidate in enumerate(path):
                    chance *= self.chances(slot, previous, temperature)[candidate]
                    previous = int(self.rows.tokens[slot, candidate])
                found[path] = chance
        return found

    def tokens(self, path: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(int(self.rows.tokens[slot, c]) for slot, c in enumerate(path))

    def lattice(self, temperature: float = 1.0) -> Lattice:
        found = Lattice.of(self.rows, ANCHOR, self.books, temperature)
        assert found is not None
        return found

    def greedy(self) -> tuple[int, ...]:
        path, previous = [], ANCHOR
        for slot in range(SLOTS):
            path.append(max(range(WIDTH), key=lambda c: self.score(slot, previous, c)))
            previous = int(self.rows.tokens[slot, path[-1]])
        return tuple(path)


def walk_of(lattice: Lattice) -> list[tuple[int, float]]:
    """(token, score) of each node of a tree that has room for the greedy walk alone."""
    tree = lattice.tree(len(lattice.tokens), "nodes", "block")
    assert tree.is_chain
    return list(zip(tree.tokens[1:], tree.scores[1:], strict=True))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.4])
def test_the_greedy_walk_takes_the_best_candidate_behind_each_choice(
    seed: int, temperature: float
) -> None:
    drawn = Drawn(seed)
    walk = walk_of(drawn.lattice(temperature))
    path, chances = drawn.greedy(), drawn.paths(temperature)
    assert tuple(token for token, _ in walk) == drawn.tokens(path)
    for length, (_, score) in enumerate(walk, 1):
        assert score == pytest.approx(chances[path[:length]], rel=1e-5)


def tree_paths(drawn: Drawn, limit: int, mode: str) -> dict[tuple[int, ...], float]:
    """Every path of a tree, as tokens, with its score."""
    tree = drawn.lattice().tree(limit, mode, "block")
    assert len(tree) <= limit + 1
    assert tree.sources[1:] == ("block",) * (len(tree) - 1)
    return {
        tuple(tree.tokens[n] for n in tree.path(node)[1:]): tree.scores[node]
        for node in range(1, len(tree))
    }


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("limit", [2, SLOTS, 9, 31])
def test_nodes_are_the_greedy_walk_then_the_likeliest_paths(seed: int, limit: int) -> None:
    drawn = Drawn(seed)
    chances = drawn.paths(1.0)
    greedy = drawn.greedy()
    wanted = {greedy[:length] for length in range(1, min(limit, SLOTS) + 1)}
    # Best first: of all paths whose parents are in, always the likeliest.
    while len(wanted) < limit:
        ready = [p for p in chances if p not in wanted and (len(p) == 1 or p[:-1] in wanted)]
        wanted.add(max(ready, key=chances.__getitem__))
    got = tree_paths(drawn, limit, "nodes")
    assert set(got) == {drawn.tokens(path) for path in wanted}
    for path in wanted:
        assert got[drawn.tokens(path)] == pytest.approx(chances[path], rel=1e-5)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("limit", [3, 9, 20])
def test_paths_follow_each_sibling_to_the_end(seed: int, limit: int) -> None:
    drawn = Drawn(seed)
    chances = drawn.paths(1.0)

    def on(path: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The path and its greedy continuations."""
        grown = [path]
        while len(path) < SLOTS:
            previous = int(drawn.rows.tokens[len(path) - 1, path[-1]]) if path else ANCHOR
            best = max(range(WIDTH), key=lambda c: drawn.score(len(path), previous, c))
            path = (*path, best)
            grown.append(path)
        return grown

    wanted: list[tuple[int, ...]] = []
    for path in on(())[1:]:
        wanted.append(path)
    while len(wanted) < limit:
        ready = [p for p in chances if p not in wanted and (len(p) == 1 or p[:-1] in wanted)]
        wanted += on(max(ready, key=chances.__getitem__))
    wanted = wanted[:limit]
    assert set(tree_paths(drawn, limit, "paths")) == {drawn.tokens(path) for path in wanted}


def test_the_selector_changes_the_walk() -> None:
    """Without it each slot would take its own likeliest token; some walk must differ."""
    plain = [tuple(int(t) for t in Drawn(seed).rows.tokens[:, 0]) for seed in range(5)]
    walks = [tuple(t for t, _ in walk_of(Drawn(seed).lattice())) for seed in range(5)]
    assert plain != walks


def test_a_slot_without_numbers_ends_the_lattice() -> None:
    drawn = Drawn(3)
    drawn.rows.tokens[2] = -1
    assert len(drawn.lattice().tokens) == 2
    drawn.rows.tokens[2] = 0
    drawn.rows.projected[1, 0] = np.nan
    assert len(drawn.lattice().tokens) == 1
    drawn.rows.tokens[0] = -1
    assert Lattice.of(drawn.rows, ANCHOR, drawn.books, 1.0) is None


def test_sharp_scores_do_not_overflow() -> None:
    drawn = Drawn(1, scale=60.0)
    tree = drawn.lattice(0.02).tree(12, "nodes", "block")
    assert all(0.0 <= score <= 1.0 for score in tree.scores)
