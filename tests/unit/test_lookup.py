# SPDX-License-Identifier: MIT OR Apache-2.0
"""The lookup drafter: votes and scores by hand and by definition, sources, the deep chain, what it learns."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.spec.drafter import RoundOutcome
from engine.spec.lookup import LookupDrafter, LookupOptions
from engine.spec.lookup_rate import LookupRate
from engine.spec.lookup_votes import Decay, count_votes, top_line, vote_chain, vote_tree
from engine.spec.tree import ANCHOR, DraftTree

Line = tuple[int, ...]
PLAIN = Decay(alpha=0.6)
LINES = st.lists(
    st.tuples(st.lists(st.integers(0, 2), max_size=6).map(tuple), st.sampled_from([0.5, 1.0])),
    min_size=1,
    max_size=24,
)


class Store:
    """What followed, by n-gram; notes what it is asked."""

    def __init__(self, known: dict[Line, list[Line]]) -> None:
        self.known = known
        self.asked: list[Line] = []

    def continuations(self, gram: Sequence[int], length: int) -> list[Line]:
        self.asked.append(tuple(gram))
        return [line[:length] for line in self.known.get(tuple(gram), [])]


def plain_round(anchor: int, *tokens: int) -> RoundOutcome:
    return RoundOutcome(DraftTree((anchor,), (-1,), (1.0,), (ANCHOR,)), (0,), tokens, 0.0, 0.0)


def verified(tree: DraftTree, *tokens: int) -> RoundOutcome:
    """The outcome when the text goes on with these tokens."""
    depths = tree.depths()
    path, chosen = tree.walk(lambda node: tokens[depths[node]])
    return RoundOutcome(tree, path, chosen, 0.0, 0.0)


def paths(tree: DraftTree) -> dict[Line, float]:
    """The score of every drafted path."""
    return {
        tuple(tree.tokens[each] for each in tree.path(node))[1:]: tree.scores[node]
        for node in range(1, len(tree))
    }


def all_paths(votes: dict[Line, float], decay: Decay, depth: int) -> dict[Line, float]:
    """Scores of all paths by definition: masses of prefixes, multiplied along each."""
    mass: dict[Line, float] = {}
    for line, weight in votes.items():
        for end in range(min(len(line), depth) + 1):
            mass[line[:end]] = mass.get(line[:end], 0.0) + weight
    scores = {(): 1.0}
    for path in sorted(mass, key=len):
        if path:
            above = mass[path[:-1]]
            step = (
                mass[path] / (above + decay.alpha)
                if decay.rho is None
                else mass[path] / above * decay.rho
            )
            scores[path] = scores[path[:-1]] * step
    del scores[()]
    return scores


def test_scores_of_a_split_vote_worked_by_hand() -> None:
    votes = count_votes([((1, 2, 3), 1.0), ((1, 2, 4), 1.0), ((1, 2, 3), 1.0), ((5,), 0.5)])
    assert votes == {(1, 2, 3): 2.0, (1, 2, 4): 1.0, (5,): 0.5}
    tree = vote_tree(9, votes, PLAIN, "lookup", nodes=15, depth=16, top_k=3)
    one = 3.0 / (3.5 + 0.6)
    two = one * 3.0 / 3.6
    assert tree.tokens == (9, 1, 2, 3, 4, 5)
    assert tree.parents == (-1, 0, 1, 2, 2, 0)
    expected = (1.0, one, two, two * 2.0 / 3.6, two * 1.0 / 3.6, 0.5 / 4.1)
    assert tree.scores == pytest.approx(expected, rel=1e-12)
    assert tree.sources == (ANCHOR,) + ("lookup",) * 5


def test_a_known_rate_takes_the_place_of_alpha() -> None:
    votes = {(1, 2): 3.0, (4,): 1.0}
    tree = vote_tree(9, votes, Decay(0.6, rho=0.9), "lookup", nodes=15, depth=16, top_k=3)
    assert tree.tokens == (9, 1, 2, 4)
    assert tree.scores == pytest.approx((1.0, 0.75 * 0.9, 0.75 * 0.81, 0.25 * 0.9), rel=1e-12)


@given(LINES, st.integers(1, 31), st.integers(1, 6), st.sampled_from([None, 0.5, 1.0]))
def test_a_tree_is_the_likeliest_part_of_all_continuations(
    entries: list[tuple[Line, float]], nodes: int, depth: int, rho: float | None
) -> None:
    votes = count_votes(entries)
    if not votes:
        return
    decay = Decay(0.6, rho)
    tree = vote_tree(9, votes, decay, "lookup", nodes=nodes, depth=depth, top_k=3)
    every = all_paths(votes, decay, depth)  # three tokens: top_k leaves none out
    found = paths(tree)
    assert len(found) == len(tree) - 1 == min(nodes, len(every))
    for path, score in found.items():
        assert score == pytest.approx(every[path], rel=1e-12)
    left = [score for path, score in every.items() if path not in found]
    assert not left or max(left) <= min(found.values()) * (1 + 1e-12)
    for node in range(len(tree)):
        scores = [tree.scores[child] for child in tree.children(node)]
        assert scores == sorted(scores, reverse=True)


def test_a_node_has_the_heaviest_three_children() -> None:
    votes = {(token,): weight for token, weight in ((1, 1.0), (2, 4.0), (3, 2.0), (4, 3.0))}
    tree = vote_tree(9, votes, PLAIN, "lookup", nodes=15, depth=16, top_k=3)
    assert tree.tokens == (9, 2, 4, 3)


@given(LINES)
def test_the_top_line_follows_the_most_votes_and_tells_how_far_half_of_them_go(
    entries: list[tuple[Line, float]],
) -> None:
    votes = count_votes(entries)
    if not votes:
        return
    line, held = top_line(votes)
    total = sum(votes.values())
    support = [
        sum(w for each, w in votes.items() if each[:end] == line[:end])
        for end in range(1, len(line) + 1)
    ]
    for depth in range(len(line)):
        rivals: dict[int, float] = {}
        for each, weight in votes.items():
            if each[:depth] == line[:depth] and len(each) > depth:
                rivals[each[depth]] = rivals.get(each[depth], 0.0) + weight
        assert support[depth] == max(rivals.values())
    assert not any(each[: len(line)] == line and len(each) > len(line) for each in votes)
    assert held == sum(2 * each >= total for each in support)
    assert paths(vote_chain(9, votes, line, PLAIN, "lookup"))[line] == pytest.approx(
        all_paths(votes, PLAIN, 99)[line], rel=1e-12
    )


def test_a_proposal_from_the_text_and_the_next_one() -> None:
    drafter = LookupDrafter()
    drafter.begin([1, 2, 3, 4, 5, 6, 7, 1, 2])
    found = drafter.look(3, 31)
    assert found is not None
    assert (found.source, found.match_length, found.rho, found.deep) == ("local", 3, None, False)
    assert found.top_line == (4, 5, 6, 7, 1, 2, 3)
    step = 1 / 1.6
    assert found.tree.tokens == (3, 4, 5, 6, 7, 1, 2, 3)
    assert found.tree.scores == pytest.approx([step**each for each in range(8)], rel=1e-12)
    assert found.expected == pytest.approx(sum(step**each for each in range(1, 8)), rel=1e-12)
    drafter.settle(verified(found.tree, 4, 5, 8))
    assert drafter.look(8, 31) is None
    drafter.settle(plain_round(8, 1, 2, 3))
    again = drafter.look(3, 31)
    assert again is not None
    assert again.top_line[:4] == (4, 5, 8, 1)  # the newest place was entered first
    assert set(paths(again.tree)) >= {(4, 5, 6), (4, 5, 8)}


def test_a_plain_first_round_counts_the_anchor_once() -> None:
    drafter = LookupDrafter(LookupOptions(min_order=2))
    drafter.begin([1, 2])
    drafter.settle(plain_round(3, 4, 1, 2))  # the first anchor came with no outcome
    found = drafter.look(2, 31)
    assert found is not None
    assert found.top_line == (3, 4, 1, 2)


@pytest.mark.parametrize(("limit", "nodes"), [(1, 1), (4, 4), (31, 15)])
def test_a_tree_keeps_to_the_limit_and_to_its_budget(limit: int, nodes: int) -> None:
    drafter = LookupDrafter()
    drafter.begin([*range(100, 160), 100, 101])
    tree = drafter.propose(102, limit)
    assert tree is not None
    assert len(tree) == 1 + nodes
    assert drafter.look(102, 0) is None


def test_a_tree_that_promises_too_little_is_kept_back() -> None:
    text = [token for each in range(20) for token in (1, 2, 3, 100 + each)]
    drafter = LookupDrafter()
    drafter.begin([*text, 1, 2])
    assert drafter.propose(3, 2) is None  # two nodes of 1 / 20.6 each
    found = drafter.look(3, 2)
    assert found is not None
    assert found.expected == pytest.approx(2 / 20.6, rel=1e-12)
    eager = LookupDrafter(LookupOptions(min_expected=0.05))
    eager.begin([*text, 1, 2])
    assert eager.propose(3, 2) is not None


def test_sources_and_weights_of_corpus_votes() -> None:
    gram = tuple(range(10, 18))
    store = Store({gram: [(50, 51), (60,), (50, 51)]})
    drafter = LookupDrafter(stores={"the corpus": store, "the store": Store({gram: [(60,)]})})
    drafter.begin(gram[:-1])
    found = drafter.look(gram[-1], 31)
    assert found is not None
    assert (found.source, found.match_length) == ("corpus", 8)
    assert paths(found.tree) == pytest.approx(
        {(50,): 1.0 / 2.6, (60,): 1.0 / 2.6, (50, 51): (1.0 / 2.6) * (1.0 / 1.6)}, rel=1e-12
    )
    drafter.begin([*gram, 60, *gram[:-1]])
    found = drafter.look(gram[-1], 31)
    assert found is not None
    assert (found.source, found.match_length) == ("both", 8)
    # One vote of the text and two halves from the stores for 60, two halves for 50.
    assert paths(found.tree)[(60,)] == pytest.approx(2.0 / 3.6, rel=1e-12)
    assert paths(found.tree)[(50,)] == pytest.approx(1.0 / 3.6, rel=1e-12)
    assert found.top_line[0] == 60
    drafter.begin([*gram[-3:], 70, 71, *gram[-3:-1]])
    found = drafter.look(gram[-1], 31)
    assert found is not None
    assert (found.source, found.match_length) == ("local", 3)


def test_a_longer_match_in_the_text_beats_a_shorter_one_in_the_corpus() -> None:
    store = Store({(3, 4, 5, 6): [(90,)], (5, 6): [(91,)]})
    drafter = LookupDrafter(
        LookupOptions(min_corpus_order=2, min_order=3), stores={"the corpus": store}
    )
    drafter.begin([1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5])
    found = drafter.look(6, 31)
    assert found is not None
    assert (found.source, found.match_length, found.top_line[0]) == ("local", 6, 7)
    assert min(len(gram) for gram in store.asked) == 6
    drafter.begin([8, 3, 4, 5])
    found = drafter.look(6, 31)
    assert found is not None
    assert (found.source, found.match_length, found.top_line) == ("corpus", 4, (90,))


def copying(
    options: LookupOptions | None = None, *, length: int = 400
) -> tuple[LookupDrafter, list[int]]:
    """A drafter whose text begins to repeat `length` distinct tokens; what is still to come of them."""
    drafter = LookupDrafter(options)
    source = list(range(1000, 1000 + length))
    drafter.begin([*source, *source[:9]])
    return drafter, source[9:]


def widths(drafter: LookupDrafter, coming: list[int], rounds: int) -> list[int]:
    """Rows of each round while the text does repeat."""
    found = []
    anchor, coming = coming[0], coming[1:]
    for _ in range(rounds):
        tree = drafter.propose(anchor, 31)
        assert tree is not None
        found.append(len(tree))
        outcome = verified(tree, *coming)
        drafter.settle(outcome)
        anchor, coming = outcome.tokens[-1], coming[len(outcome.tokens) :]
    return found


def test_a_copy_goes_deep_after_two_full_wide_rounds() -> None:
    assert widths(*copying(), 5) == [16, 16, 32, 32, 32]
    assert widths(*copying(LookupOptions(deep_after=0)), 2) == [32, 32]
    assert widths(*copying(LookupOptions(deep=24)), 4) == [16, 16, 24, 24]
    assert widths(*copying(LookupOptions(deep=0)), 4) == [16, 16, 16, 16]


def test_a_round_that_left_the_line_ends_the_deep_chain() -> None:
    drafter, coming = copying()
    widths(drafter, coming, 3)
    at = 1 + 16 + 16 + 32
    anchor, coming = coming[at - 1], coming[at:]
    found = drafter.look(anchor, 31)
    assert found is not None
    assert found.deep
    drafter.settle(verified(found.tree, *coming[:20], 7))  # 7 is no token of the source
    drafter.settle(plain_round(7, *coming[20:28]))
    found = drafter.look(coming[27], 31)
    assert found is not None
    assert not found.deep
    assert len(found.tree) == 16


def test_narrow_rounds_do_not_lead_to_a_deep_chain() -> None:
    drafter, coming = copying()
    anchor, coming = coming[0], coming[1:]
    for _ in range(4):
        tree = drafter.propose(anchor, 6)  # 7 rows
        assert tree is not None
        outcome = verified(tree, *coming)
        assert len(outcome.tokens) == 7
        drafter.settle(outcome)
        anchor, coming = outcome.tokens[-1], coming[7:]
    found = drafter.look(anchor, 31)
    assert found is not None
    assert not found.deep


def test_a_deep_chain_needs_a_long_line_that_half_of_the_votes_follow() -> None:
    options = LookupOptions(deep_after=0)
    shared = list(range(10, 18))

    def look(*branches: list[int]) -> object:
        drafter = LookupDrafter(options)
        drafter.begin([t for branch in branches for t in (*shared, *branch)] + shared[:-1])
        found = drafter.look(shared[-1], 31)
        assert found is not None
        return found.deep, len(found.tree)

    long, other, third = list(range(100, 140)), list(range(200, 240)), list(range(300, 340))
    assert look(long) == (True, 32)
    assert look(long, other) == (True, 32)
    assert look(long, other, third)[0] is False  # a third each
    assert look(long[:16])[0] is True
    assert look(long[:7])[0] is False  # 7 and the 8 shared ones: 15 tokens
    short = LookupDrafter(options)
    short.begin([*shared[1:], *long, *shared[1:-1]])
    found = short.look(shared[-1], 31)
    assert found is not None
    assert (found.match_length, found.deep) == (7, False)


def test_what_a_round_teaches_about_the_rate() -> None:
    rate = LookupRate()
    drafter = LookupDrafter(LookupOptions(deep=0), rate=rate)
    source = list(range(1000, 1020))
    drafter.begin([*source, *source[:7]])
    found = drafter.look(source[7], 31)
    assert found is not None
    assert found.match_length == 8
    # The round ended inside the line: 3 successes and no failure, a copy run of 3.
    drafter.settle(plain_round(source[7], *source[8:11]))
    assert rate.counts() == {"local|8|0": [3.0, 0.0]}
    assert drafter.copy_run == 3
    # The text went past the line's end: still no failure.
    found = drafter.look(source[10], 31)
    assert found is not None
    known = len(found.top_line)
    drafter.settle(plain_round(source[10], *found.top_line, 5, 6))
    assert rate.counts() == {"local|8|0": [3.0, 0.0], "local|8|1": [float(known), 0.0]}
    assert drafter.copy_run == 3 + known
    # The text left the line after one token: one success, one failure, and the run is over.
    drafter.settle(plain_round(6, *source[:8]))
    assert drafter.copy_run == 0  # nobody looked
    found = drafter.look(source[7], 31)
    assert found is not None
    drafter.settle(plain_round(source[7], found.top_line[0], 7, 8))
    assert rate.counts()["local|8|0"] == [4.0, 1.0]
    assert drafter.copy_run == 0


def test_a_learned_rate_scores_only_matches_of_eight() -> None:
    rate = LookupRate({("local", 8, 0): (90.0, 10.0), ("local", 3, 0): (90.0, 10.0)})
    drafter = LookupDrafter(rate=rate)
    source = list(range(1000, 1020))
    drafter.begin([*source, *source[:7]])
    found = drafter.look(source[7], 3)
    assert found is not None
    assert found.rho == pytest.approx(0.9, rel=1e-12)
    assert found.tree.scores == pytest.approx((1.0, 0.9, 0.81, 0.729), rel=1e-12)
    drafter.begin([*source, *source[:2]])
    found = drafter.look(source[2], 3)
    assert found is not None
    assert (found.match_length, found.rho) == (3, None)


def test_a_new_sequence_starts_without_the_old_one() -> None:
    drafter, coming = copying()
    widths(drafter, coming, 2)
    drafter.begin([7, 8, 9])
    assert drafter.look(1000, 31) is None
    assert drafter.copy_run == 0
    drafter.begin([*range(1000, 1040), *range(1000, 1008)])
    found = drafter.look(1008, 31)
    assert found is not None
    assert not found.deep


@pytest.mark.parametrize(
    "wrong",
    [{"min_order": 1}, {"min_corpus_order": 9}, {"node_budget": 32}, {"max_depth": 0},
     {"branch_top_k": 0}, {"deep": 33}, {"alpha": 0.0}, {"corpus_weight": -1.0}],
)  # fmt: skip
def test_options_outside_their_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LookupOptions(**wrong)  # type: ignore[arg-type]
