# SPDX-License-Identifier: MIT OR Apache-2.0
"""The decode loop over a model that is a table: limits, stops, credit, and a text no drafter changes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from engine.errors import NumericsError
from engine.model.backend import Verified, accepted_path, tree_parents
from engine.spec.decode import DecodeLoop, Round, credited
from engine.spec.drafter import RoundOutcome
from engine.spec.sampling import Sampling, probabilities
from engine.spec.tree import DraftTree
from engine.spec.tree_builder import TreeBuilder

VOCABULARY = 8
PROMPT = (1, 2, 3)
GREEDY = Sampling()
_TABLE = (
    2.0 * np.random.default_rng(5).standard_normal((VOCABULARY, VOCABULARY, VOCABULARY))
).astype(np.float32)


class TableModel:
    """Logits from the two tokens before; records what was verified and committed."""

    known: ClassVar[dict[object, Verified]] = {}

    def __init__(self, capacity: int = 10_000) -> None:
        self.capacity = capacity
        self.tokens = list(PROMPT)
        self.passes: list[tuple[int, ...]] = []
        self.broken = False

    @property
    def length(self) -> int:
        return len(self.tokens)

    def row(self, before: Sequence[int]) -> np.ndarray:
        return _TABLE[before[-2], before[-1]]

    def prefilled(self) -> Verified:
        logits = self.row(self.tokens)[None]
        return Verified([int(logits[0].argmax())], logits)

    def verify(self, ids: Sequence[int], parents: Sequence[int] | None = None) -> Verified:
        assert self.length + len(ids) <= self.capacity
        self.ids, self.parents = list(ids), tree_parents(ids, parents)
        self.passes.append(tuple(ids))
        key = (self.tokens[-1], tuple(ids), parents)
        if key not in self.known:
            self.known[key] = self._rows(ids)
        known = self.known[key]
        return replace(known, best=[-1] * len(ids)) if self.broken else known

    def _rows(self, ids: Sequence[int]) -> Verified:
        paths: list[list[int]] = []
        for row, token in enumerate(ids):
            parent = row - 1 if self.parents is None else self.parents[row]
            paths.append([*(paths[parent] if row else self.tokens), token])
        logits = np.stack([self.row(path) for path in paths])
        return Verified(logits.argmax(-1).tolist(), logits)

    def commit(self, rows: Sequence[int] | int) -> None:
        path = accepted_path(rows, len(self.ids), self.parents)
        self.tokens += [self.ids[row] for row in path]

    def round_bytes(self, rows: int, drafted: int) -> int:
        return 1000

    def written_bytes(self) -> int:
        return 10

    def suspect_layer(self) -> str:
        return "layer 3"


class Scripted:
    """A drafter that calls a function; keeps the outcomes."""

    name = "scripted"
    read_bytes = 7

    def __init__(self, propose: Callable[[int, int], DraftTree | None]) -> None:
        self.propose = propose
        self.outcomes: list[RoundOutcome] = []
        self.prompts: list[tuple[int, ...]] = []

    def begin(self, prompt: Sequence[int]) -> None:
        self.prompts.append(tuple(prompt))

    def settle(self, outcome: RoundOutcome) -> None:
        self.outcomes.append(outcome)


def random_drafter(seed: int, most: int = 40) -> Scripted:
    """Trees of random tokens, sometimes none, sometimes too large for the limit."""
    chance = random.Random(seed)

    def propose(anchor: int, limit: int) -> DraftTree | None:
        if chance.random() < 0.1:
            return None
        builder = TreeBuilder(anchor)
        for _ in range(chance.randrange(most)):
            parent = chance.randrange(len(builder))
            builder.add(parent, chance.randrange(VOCABULARY), 0.5 ** len(builder), "scripted")
        return _with_falling_scores(builder.build())

    return Scripted(propose)


def _with_falling_scores(tree: DraftTree) -> DraftTree:
    scores = [1.0]
    for parent in tree.parents[1:]:
        scores.append(0.5 * scores[parent])
    return DraftTree(tree.tokens, tree.parents, tuple(scores), tree.sources)


def run(
    model: TableModel,
    drafter: Scripted | None,
    *,
    tokens: int,
    sampling: Sampling = GREEDY,
    stop: frozenset[int] = frozenset(),
    rows: int = 32,
) -> tuple[list[int], list[Round]]:
    loop = DecodeLoop(model, sampling, stop, drafter)
    loop.limit(rows, rows)
    text = [loop.begin(model.prefilled(), PROMPT)]
    rounds = []
    while len(text) < tokens and text[-1] not in stop and loop.room() > 0:
        done = loop.round(tokens - len(text))
        rounds.append(done)
        text += done.tokens
    return text, rounds


@settings(max_examples=40)
@given(
    seed=st.integers(0, 999),
    temperature=st.sampled_from((0.0, 0.7)),
    tokens=st.integers(2, 60),
    stop=st.sets(st.integers(0, VOCABULARY - 1), max_size=1),
    capacity=st.integers(8, 70),
    rows=st.integers(1, 32),
)
def test_no_drafter_changes_the_text_or_oversteps_a_limit(
    seed: int, temperature: float, tokens: int, stop: set[int], capacity: int, rows: int
) -> None:
    sampling = Sampling(temperature=temperature, seed=seed)
    stops = frozenset(stop)
    plain, _ = run(TableModel(capacity), None, tokens=tokens, sampling=sampling, stop=stops)
    model, drafter = TableModel(capacity), random_drafter(seed)
    text, rounds = run(model, drafter, tokens=tokens, sampling=sampling, stop=stops, rows=rows)
    assert text == plain
    assert len(text) <= tokens
    assert not stops & set(text[:-1])
    assert model.tokens == [*PROMPT, *text[:-1]], "the last token is not read yet"
    assert all(done.rows <= rows for done in rounds)
    assert drafter.prompts == [PROMPT]
    assert [token for each in drafter.outcomes for token in each.tokens] == text[1:]
    for done, outcome, ids in zip(rounds, drafter.outcomes, model.passes, strict=True):
        assert outcome.tree.tokens == ids
        assert [outcome.tree.tokens[node] for node in outcome.path[1:]] == list(done.tokens[:-1])
        assert (done.drafted, done.accepted) == (len(ids) - 1, len(outcome.path) - 1)


def test_a_true_branch_is_followed_and_credited() -> None:
    plain, _ = run(TableModel(), None, tokens=12)
    wrong = [(token + 1) % VOCABULARY for token in plain]

    def propose(anchor: int, limit: int) -> DraftTree:
        at = 1 + sum(len(each.tokens) for each in drafter.outcomes)
        builder = TreeBuilder(anchor)
        builder.add(0, wrong[at], 0.9, "lookup")
        node = builder.add(0, plain[at], 0.5, "mtp")
        builder.add(node, plain[at + 1], 0.5, "block")
        return builder.build()

    drafter = Scripted(propose)
    text, rounds = run(TableModel(), drafter, tokens=11)
    assert text == plain[:11]
    assert [done.accepted for done in rounds] == [2, 2, 2, 0]
    first = rounds[0]
    assert (first.rows, first.tree, first.drafter) == (4, True, "mtp")
    assert (first.bytes_read, first.bytes_written) == (1007, 10)
    # One token is wanted in the last round: nothing is drafted.
    assert (rounds[3].rows, rounds[3].drafter, rounds[3].bytes_read) == (1, "none", 1000)


def test_credit_goes_to_most_accepted_nodes_and_else_to_most_nodes() -> None:
    sources = ("anchor", "mtp", "lookup", "lookup", "mtp", "mtp")
    tree = DraftTree((0, 1, 2, 3, 4, 5), (-1, 0, 1, 2, 3, 0), (1.0,) + (0.5,) * 5, sources)
    assert credited(tree, (0,)) == "mtp"
    assert credited(tree, (0, 1, 2, 3)) == "lookup"
    assert credited(tree, (0, 5)) == "mtp"


def test_a_flip_between_rounds_starts_the_new_drafter_from_the_text() -> None:
    model = TableModel()
    loop = DecodeLoop(model, Sampling(), frozenset())
    text = [loop.begin(model.prefilled(), PROMPT), *loop.round(10).tokens]
    late = random_drafter(1)
    loop.use(late, [*PROMPT, *text[:-1]])
    for _ in range(5):
        text += loop.round(10).tokens
    assert late.prompts == [tuple(model.tokens[:4])]
    assert len(late.outcomes) == 5
    assert text == run(TableModel(), None, tokens=len(text))[0]


def test_a_given_text_is_followed_whatever_the_model_would_choose() -> None:
    given_text = [5, 0, 5, 0, 7, 7, 1, 2, 3, 4, 5, 6]
    model = TableModel()
    loop = DecodeLoop(model, Sampling(), frozenset(), random_drafter(3), follow=given_text)
    text = [loop.begin(model.prefilled(), PROMPT)]
    while len(text) < 12:
        text += loop.round(12 - len(text)).tokens
    assert text == given_text


def test_a_draft_behind_another_token_is_refused() -> None:
    drafter = Scripted(lambda anchor, limit: DraftTree.chain([anchor + 1, 2], [0.5], "scripted"))
    with pytest.raises(ValueError, match="scripted drafted behind"):
        run(TableModel(), drafter, tokens=5)


def test_invalid_numbers_on_the_path_end_the_round_with_their_place() -> None:
    model = TableModel()
    loop = DecodeLoop(model, Sampling(), frozenset())
    loop.begin(model.prefilled(), PROMPT)
    model.broken = True
    with pytest.raises(NumericsError, match="layer 3"):
        loop.round(5)


DRAWS = 20_000


@pytest.mark.parametrize("drafts", ["none", "likely"])
def test_sampled_tokens_have_the_models_distribution(drafts: str) -> None:
    """Chi-square over all pairs of the second and third token, without drafts and with trees."""
    sampling = Sampling(temperature=0.9)
    start = _TABLE[PROMPT[-2], PROMPT[-1]]
    first = int(start.argmax())
    rows = [_TABLE[PROMPT[-1], first], *_TABLE[first]]
    ranks = np.argsort(-rows[0])
    picked = ranks[:3]
    builder = TreeBuilder(first)
    for token in picked.tolist():
        node = builder.add(0, token, 0.5, "scripted")
        for behind in (0, 3, 6):
            builder.add(node, behind, 0.25, "scripted")
    tree = builder.build()
    drafter = None if drafts == "none" else Scripted(lambda anchor, limit: tree.truncate(limit + 1))
    counts = np.zeros((VOCABULARY, VOCABULARY))
    accepted = 0
    for seed in range(DRAWS):
        model = TableModel()
        loop = DecodeLoop(model, Sampling(0.9, seed=seed), frozenset(), drafter)
        loop.anchor = first
        done = loop.round(13)
        accepted += done.accepted
        text = list(done.tokens)
        while len(text) < 2:
            text += loop.round(1).tokens
        counts[text[0], text[1]] += 1
    chances = probabilities(rows[0], sampling)
    expected = np.stack(
        [chances[token] * probabilities(rows[1 + token], sampling) for token in range(VOCABULARY)]
    )
    assert counts.sum() == DRAWS
    # Cells too small for the test's approximation are counted together.
    seen, wanted = counts.ravel(), DRAWS * expected.ravel()
    small = wanted < 5
    seen = np.append(seen[~small], seen[small].sum())
    wanted = np.append(wanted[~small], wanted[small].sum())
    assert chisquare(seen, wanted).pvalue > 0.001
    if drafts == "likely":
        assert accepted > 0.5 * DRAWS
    # A distribution that is a little off would be found.
    tilted = wanted * np.where(np.arange(len(wanted)) % 2, 1.15, 1.0)
    assert chisquare(seen, tilted * DRAWS / tilted.sum()).pvalue < 0.001
