# SPDX-License-Identifier: MIT OR Apache-2.0
"""The lookup drafter: what followed the same last tokens before, in this text, a corpus or earlier answers.

It reads no weights. The longest match wins; all places where it stood vote for what followed there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.spec.drafter import RoundOutcome
from engine.spec.lookup_index import MAX_ORDER, LocalIndex
from engine.spec.lookup_rate import LookupRate
from engine.spec.lookup_votes import Decay, Line, count_votes, top_line, vote_chain, vote_tree
from engine.spec.tree import MAX_NODES, DraftTree

SOURCE = "lookup"
_WIDE_ROWS = 8
_DEEP_LINE = 16  # tokens that at least half of the votes must agree on before a chain goes deep
_LINE = MAX_NODES - 1  # tokens of a continuation that are looked at


class Continuations(Protocol):
    """Something that knows what followed an n-gram: a corpus or a suffix store."""

    def continuations(self, gram: Sequence[int], length: int) -> list[Line]:
        """The continuations of `gram`, up to `length` tokens each."""


@dataclass(frozen=True, slots=True)
class LookupOptions:
    """How far to look and how much to propose.

    min_order, min_corpus_order: least tokens of a match, up to 8. max_depth, node_budget, branch_top_k: size
    of the tree. alpha: doubt added to the votes of every node, in votes. corpus_weight: a vote from the
    corpus; one from the text weighs 1. min_expected: accepted tokens below which nothing is proposed. deep:
    rows of a deep chain, 0 for none. deep_after: wide rounds in a row that must have committed all their rows
    before it. rho_min_match: least match for which a learned rate is used in place of alpha.
    """

    min_order: int = 3
    max_depth: int = 16
    node_budget: int = 15
    branch_top_k: int = 3
    min_expected: float = 0.2
    alpha: float = 0.6
    corpus_weight: float = 0.5
    min_corpus_order: int = MAX_ORDER
    deep: int = MAX_NODES
    deep_after: int = 2
    rho_min_match: int = MAX_ORDER

    def __post_init__(self) -> None:
        for name in ("min_order", "min_corpus_order"):
            if not 2 <= getattr(self, name) <= MAX_ORDER:
                raise ValueError(f"{name} is from 2 to {MAX_ORDER}, not {getattr(self, name)}")
        for name in ("max_depth", "node_budget", "branch_top_k"):
            if not 1 <= getattr(self, name) < MAX_NODES:
                raise ValueError(f"{name} is from 1 to {MAX_NODES - 1}, not {getattr(self, name)}")
        if not 0 <= self.deep <= MAX_NODES:
            raise ValueError(f"deep is from 0 to {MAX_NODES}, not {self.deep}")
        if not (self.alpha > 0 and self.corpus_weight > 0):
            raise ValueError("alpha and corpus_weight are above 0")


@dataclass(frozen=True, slots=True)
class LookupProposal:
    """What one look brought.

    tree: at least one node besides the anchor. source: local, corpus or both. match_length: tokens that
    matched. top_line: the line the most votes follow, up to 31 tokens. expected: drafted tokens that the tree's
    scores promise. rho: the rate the scores rest on; None when they rest on alpha. deep: a deep chain.
    """

    tree: DraftTree
    source: str
    match_length: int
    top_line: Line
    expected: float
    rho: float | None
    deep: bool


class LookupDrafter:
    """Proposals from earlier text; implements Drafter.

    stores: searched besides the text, by name, for the last `min_corpus_order` tokens or more. rate: learned
    continuation rates; they may be shared and outlive a request. counts: gets the verified tokens by where they
    came from, and the deep chains.
    """

    name = SOURCE
    read_bytes = 0  # no weights

    def __init__(
        self,
        options: LookupOptions | None = None,
        *,
        stores: Mapping[str, Continuations] | None = None,
        rate: LookupRate | None = None,
        counts: Counter[str] | None = None,
    ) -> None:
        self.options = options or LookupOptions()
        self._stores = tuple((stores or {}).items())
        self._rate = rate
        self._counts = Counter() if counts is None else counts
        self._index = LocalIndex(self.options.min_order)
        self._begin()

    def _begin(self) -> None:
        self._anchored = False  # whether the index ends in the anchor
        self._full_rounds = 0
        self._copy_run = 0
        self._looked: LookupProposal | None = None  # this round's
        self._voting: list[str] = []  # stores with votes in it

    @property
    def copy_run(self) -> int:
        """Tokens of top lines that the text followed since it last left one."""
        return self._copy_run

    def begin(self, prompt: Sequence[int]) -> None:
        """A new sequence; what it shares with the last one at the front is not indexed again."""
        self._index.restart(prompt)
        self._begin()

    def propose(self, anchor: int, limit: int) -> DraftTree | None:
        """The tree of `look`, where it promises `min_expected` tokens or more."""
        proposal = self.look(anchor, limit)
        return proposal.tree if proposal is not None and self.worthwhile(proposal) else None

    def worthwhile(self, proposal: LookupProposal) -> bool:
        """Whether a proposal promises enough to be verified at all."""
        return proposal.deep or proposal.expected >= self.options.min_expected

    def look(self, anchor: int, limit: int) -> LookupProposal | None:
        """What stood behind the last tokens, as a tree of at most `limit` nodes besides the anchor.

        None without a match or room. A deep chain, once the conditions hold, comes in place of the tree.
        """
        self._reach(anchor)
        self._looked = None
        options = self.options
        source, match, votes = self._votes()
        if not votes or limit < 1:
            return None
        line, held = top_line(votes)
        rho = None
        if self._rate is not None and match >= options.rho_min_match:
            rho = self._rate.rho(source, match, self._copy_run)
        decay = Decay(options.alpha, rho)
        deep = (
            options.deep > _WIDE_ROWS
            and self._full_rounds >= options.deep_after
            and match >= MAX_ORDER
            and source != "corpus"
            and held >= _DEEP_LINE
        )
        if deep:
            chain = line[: min(held, limit, options.deep - 1)]
            tree = vote_chain(anchor, votes, chain, decay, SOURCE)
        else:
            tree = vote_tree(
                anchor,
                votes,
                decay,
                SOURCE,
                nodes=min(limit, options.node_budget),
                depth=options.max_depth,
                top_k=options.branch_top_k,
            )
        expected = tree.expected_tokens - 1.0
        self._looked = LookupProposal(tree, source, match, line, expected, rho, deep)
        return self._looked

    def settle(self, outcome: RoundOutcome) -> None:
        """Index what was committed; learn how far the line held and whether the rounds were full."""
        tree, tokens = outcome.tree, outcome.tokens
        self._reach(tree.tokens[0])
        self._index.extend(tokens)
        rows = len(tree)
        self._full_rounds = self._full_rounds + 1 if _WIDE_ROWS <= rows == len(tokens) else 0
        looked, self._looked = self._looked, None
        if looked is None:
            self._copy_run = 0
            return
        self._count(looked, tree)
        source, match, line = looked.source, looked.match_length, looked.top_line
        known = min(len(line), len(tokens))
        followed = 0
        while followed < known and line[followed] == tokens[followed]:
            followed += 1
        missed = followed < known
        if self._rate is not None:
            self._rate.learn(source, match, self._copy_run, followed=followed, missed=missed)
        self._copy_run = 0 if missed else self._copy_run + followed

    @property
    def stirs(self) -> bool:
        """Whether a look behind the newest token could find something; far cheaper than one."""
        return self._index.repeats() or self._is_stored()

    @property
    def sure(self) -> bool:
        """Whether as many of the last tokens stood before as are ever compared, or a store knows them."""
        return self._index.match()[0] == MAX_ORDER or self._is_stored()

    def follow(self, anchor: int, tokens: Sequence[int]) -> None:
        """Index what a round committed that was not looked up for."""
        self._reach(anchor)
        self._index.extend(tokens)
        self._copy_run = self._full_rounds = 0

    def _is_stored(self) -> bool:
        """Whether some store knows what follows the last tokens, as few of them as are asked for."""
        if not self._stores:
            return False
        gram = self._index.tokens[-self.options.min_corpus_order :]
        enough = len(gram) == self.options.min_corpus_order
        return enough and any(store.continuations(gram, 1) for _, store in self._stores)

    def _count(self, looked: LookupProposal, verified: DraftTree) -> None:
        drafted = verified.sources.count(SOURCE)
        if not drafted:
            return
        self._counts[f"tokens drafted by {SOURCE}"] += drafted
        for name in self._voting:
            self._counts[f"tokens drafted from {name}"] += drafted
        if looked.deep:
            self._counts["deep lookup rounds"] += 1

    def _reach(self, anchor: int) -> None:
        """The first anchor of a sequence comes with no outcome of its own."""
        if not self._anchored:
            self._index.extend((anchor,))
            self._anchored = True

    def _votes(self) -> tuple[str, int, dict[Line, float]]:
        """(source, match length, votes by continuation) of the longest match."""
        options, text = self.options, self._index.tokens
        match, positions = self._index.match()
        self._voting = []
        if not (positions or self._stores):
            return "local", 0, {}
        local = [(tuple(text[at : at + _LINE]), 1.0) for at in positions]
        if not self._stores:
            return "local", match, count_votes(local)
        for order in range(min(MAX_ORDER, len(text)), max(options.min_corpus_order, match) - 1, -1):
            gram = text[-order:]
            stored: list[tuple[Line, float]] = []
            for name, store in self._stores:
                lines = store.continuations(gram, _LINE)
                if lines:
                    self._voting.append(name)
                    stored += [(line, options.corpus_weight) for line in lines]
            if stored and order > match:
                return "corpus", order, count_votes(stored)
            if stored:
                return "both", order, count_votes(local + stored)
        return "local", match, count_votes(local)
