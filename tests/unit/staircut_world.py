# SPDX-License-Identifier: MIT OR Apache-2.0
"""A world for routers: texts that a model would write, drafters with known luck, passes with known prices.

All time is virtual. Whether a drafter knows the token at a position depends on the position and the depth
alone, so that every policy meets the same luck.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from engine.spec.drafter import Drafter, RoundOutcome, Routes
from engine.spec.lookup import LookupDrafter
from engine.spec.lookup_rate import LookupRate
from engine.spec.prices import PriceTable
from engine.spec.staircut import StairCut
from engine.spec.staircut_heads import BlockHead, StepHead
from engine.spec.staircut_lookup import LookupArm
from engine.spec.staircut_prices import LivePrices
from engine.spec.tree import DraftTree
from engine.spec.tree_builder import TreeBuilder

VOCAB = 5000
REST_MS = 0.02
LOOKUP_MS = 0.01
STEP_MS = (0.05, 0.12)  # of a draft, and of each of its steps
BLOCK_MS = 0.7
CHAIN = {1: 1.0, 2: 1.05, 4: 1.35, 8: 2.1, 16: 3.6, 32: 6.8}
TREE = {rows: ms * 1.04 for rows, ms in CHAIN.items()}


@dataclass(frozen=True)
class Text:
    """A prompt, what follows it, and for each position the chance that the heads know its token."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    step_luck: float
    block_luck: float
    seed: int

    def knows(self, head: int, position: int, depth: int, luck: float) -> bool:
        key = ((self.seed * 31 + head) * 1000003 + position) * 64 + depth
        return random.Random(key).random() < luck


def copying(seed: int) -> Text:
    """Long copies from the prompt, now and then a token of its own."""
    return _text(seed, copy=(24, 60), own=(1, 3), luck=(0.5, 0.55))


def mixed(seed: int) -> Text:
    """Copies and passages of its own in turn."""
    return _text(seed, copy=(8, 24), own=(12, 40), luck=(0.72, 0.75))


def hopeless(seed: int) -> Text:
    """Nothing repeats and no head knows anything."""
    return _text(seed, copy=(0, 0), own=(50, 60), luck=(0.05, 0.05))


def deep(seed: int) -> Text:
    """The heads nearly always know."""
    return _text(seed, copy=(0, 0), own=(50, 60), luck=(0.94, 0.93))


REGIMES = (copying, mixed, hopeless, deep)


def _text(
    seed: int, *, copy: tuple[int, int], own: tuple[int, int], luck: tuple[float, float]
) -> Text:
    source = random.Random(seed)
    prompt = [source.randrange(VOCAB) for _ in range(300)]
    tokens: list[int] = []
    while len(tokens) < 700:
        if copy[1]:
            length = source.randint(*copy)
            at = source.randrange(len(prompt) - length)
            tokens += prompt[at : at + length]
        tokens += [source.randrange(VOCAB) for _ in range(source.randint(*own))]
    return Text(tuple(prompt), tuple(tokens), *luck, seed)


class World:
    """Decodes one text after another with one drafter and keeps the time."""

    def __init__(self, chain: dict[int, float] | None = None) -> None:
        chain = chain or CHAIN
        tree = {rows: ms * 1.04 for rows, ms in chain.items()}
        self.table = PriceTable({1024: {"chain": chain, "tree": tree}}, "invented")
        self.lookup_ms = LOOKUP_MS
        self.now_ms = 0.0
        self.text = Text((), (), 0.0, 0.0, 0)
        self.at = 0  # the anchor's index in the text

    def clock(self) -> float:
        return self.now_ms / 1e3

    def decode(self, drafter: Drafter, text: Text, tokens: int = 600) -> float:
        """Milliseconds for `tokens` tokens of the text."""
        self.text, self.at = text, 0
        begun = self.now_ms
        drafter.begin(text.prompt)
        while self.at < tokens:
            anchor = text.tokens[self.at]
            before = self.now_ms
            resting = isinstance(drafter, Routes) and drafter.resting
            tree = None if resting else drafter.propose(anchor, 31)
            tree = tree or DraftTree.chain((anchor,), (), "")
            draft_ms = self.now_ms - before
            kind = "chain" if tree.is_chain else "tree"
            verify_ms = self.table.verify_ms(kind, len(tree), len(text.prompt) + self.at)
            self.now_ms += verify_ms + REST_MS
            depths = tree.depths()
            path, new = tree.walk(lambda node, d=depths: text.tokens[self.at + d[node] + 1])
            if resting:
                drafter.pass_by(anchor, new[0], verify_ms)
            else:
                drafter.settle(RoundOutcome(tree, path, new, draft_ms, verify_ms))
            self.at += len(new)
        return self.now_ms - begun

    def stair(self, **options) -> StairCut:
        """A router over all drafters of this world."""
        rate = LookupRate()
        lookup = LookupArm(CheapLookup(self, rate=rate), rate)
        heads = (self.step_head(), BlockHead(Block(self)))
        return StairCut(
            LivePrices(self.table), lookup=lookup, heads=heads, clock=self.clock, **options
        )

    def step_head(self) -> StepHead:
        return StepHead([Steps(self, steps) for steps in range(1, 5)])

    def policies(self) -> dict[str, Drafter]:
        """Every fixed policy by name."""
        fixed: dict[str, Drafter] = {"plain": Fixed(None, 0)}
        for depth in range(1, 5):
            fixed[f"steps {depth}"] = Fixed(Steps(self, depth), 31)
        for nodes in (3, 7, 15):
            fixed[f"lookup {nodes}"] = Fixed(CheapLookup(self, rate=LookupRate()), nodes)
        for nodes in (7, 15):
            fixed[f"block {nodes}"] = Fixed(Block(self), nodes)
        return fixed


class Fixed:
    """Always the same drafter at the same size."""

    name = "fixed"
    read_bytes = 0

    def __init__(self, drafter: Drafter | None, nodes: int) -> None:
        self._drafter, self._nodes = drafter, nodes

    def begin(self, prompt: Sequence[int]) -> None:
        if self._drafter:
            self._drafter.begin(prompt)

    def propose(self, anchor: int, limit: int) -> DraftTree | None:
        return self._drafter.propose(anchor, min(limit, self._nodes)) if self._drafter else None

    def settle(self, outcome: RoundOutcome) -> None:
        if self._drafter:
            self._drafter.settle(outcome)


class CheapLookup(LookupDrafter):
    """The product's lookup drafter; a look takes a little time."""

    def __init__(self, world: World, **options) -> None:
        super().__init__(**options)
        self._world = world

    def look(self, anchor: int, limit: int):
        self._world.now_ms += self._world.lookup_ms
        return super().look(anchor, limit)


class Steps:
    """A head that drafts token by token, with scores that are right on the mean."""

    name = "steps"
    read_bytes = 0

    def __init__(self, world: World, steps: int) -> None:
        self._world = world
        self._steps = steps

    def begin(self, prompt: Sequence[int]) -> None:
        pass

    def propose(self, anchor: int, limit: int) -> DraftTree | None:
        world, text = self._world, self._world.text
        steps = min(limit, self._steps)
        world.now_ms += STEP_MS[0] + STEP_MS[1] * steps
        tokens, scores, score = [anchor], [], 1.0
        for depth in range(1, steps + 1):
            right = text.knows(1, world.at + depth, depth, text.step_luck)
            score *= text.step_luck
            tokens.append(text.tokens[world.at + depth] if right else VOCAB + depth)
            scores.append(score)
        return DraftTree.chain(tokens, scores, self.name)

    def settle(self, outcome: RoundOutcome) -> None:
        pass


class Block:
    """A head that drafts 15 nodes at one cost: a line of ten and a second choice at five of its nodes."""

    name = "block"
    read_bytes = 0

    def __init__(self, world: World) -> None:
        self._world = world

    def begin(self, prompt: Sequence[int]) -> None:
        pass

    def propose(self, anchor: int, limit: int) -> DraftTree:
        world, text = self._world, self._world.text
        world.now_ms += BLOCK_MS
        builder = TreeBuilder(anchor)
        parent, score = 0, 1.0
        luck = text.block_luck
        for depth in range(1, 11):
            wanted = text.tokens[world.at + depth]
            right = text.knows(2, world.at + depth, depth, luck)
            second = text.knows(3, world.at + depth, depth, 0.5)
            if depth <= 5:
                other = wanted if second and not right else 2 * VOCAB + depth
                builder.add(parent, other, score * (1 - luck) * 0.5, self.name)
            score *= luck
            parent = builder.add(parent, wanted if right else VOCAB + depth, score, self.name)
        return builder.build().prune(min(limit, 15) + 1)

    def settle(self, outcome: RoundOutcome) -> None:
        pass
