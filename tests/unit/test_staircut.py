# SPDX-License-Identifier: MIT OR Apache-2.0
"""StairCut: cuts against brute force, what it learns, and what it reaches in worlds with known prices."""

from __future__ import annotations

import itertools
import random

import pytest
from staircut_world import (
    CHAIN,
    REGIMES,
    REST_MS,
    Block,
    Fixed,
    Steps,
    Text,
    World,
    copying,
    deep,
    hopeless,
    mixed,
)

from engine.spec.drafter import RoundOutcome
from engine.spec.prices import PriceTable
from engine.spec.staircut import DOZING, StairCut
from engine.spec.staircut_cut import ADMISSIBLE, best_cut, chances_of, likeliest_line
from engine.spec.staircut_heads import BlockHead, StepHead
from engine.spec.staircut_merge import joint_chances, shared_line
from engine.spec.staircut_prices import LivePrices
from engine.spec.tree import DraftTree
from engine.spec.tree_builder import TreeBuilder, merge

STEPS = tuple([0.0] + [1.0 + 0.1 * rows for rows in range(1, 33)])
DEAR_TREES = tuple(2.0 * ms for ms in STEPS)


def random_tree(source: random.Random, nodes: int) -> DraftTree:
    builder = TreeBuilder(1)
    scores = [1.0]
    for token in range(2, 2 + nodes):
        parent = source.randrange(len(builder))
        scores.append(scores[parent] * source.choice((0.2, 0.5, 0.9, 1.0)))
        builder.add(parent, token, scores[-1], "block")
    return builder.build()


def brute_force(tree: DraftTree, chain: tuple, of_tree: tuple, spent_ms: float) -> float:
    """The best value over every set of nodes of an admissible size that holds the ancestors of its nodes."""
    best = 0.0
    nodes = range(1, len(tree))
    for size in range(len(tree)):
        if size + 1 not in ADMISSIBLE:
            continue
        for kept in itertools.combinations(nodes, size):
            if not all(tree.parents[node] in (0, *kept) for node in kept):
                continue
            cut = tree.subset(kept)
            price = (chain if cut.is_chain else of_tree)[len(cut)]
            best = max(best, cut.expected_tokens / (price + spent_ms))
    return best


@pytest.mark.parametrize("spent_ms", [0.0, 0.7])
def test_a_cut_is_the_best_of_all_subtrees(spent_ms: float) -> None:
    source = random.Random(3)
    for _ in range(60):
        tree = random_tree(source, source.randint(1, 9))
        start = source.uniform(0.5, 3.0)
        chain = tuple([0.0] + [start + source.uniform(0.0, 0.3) * rows for rows in range(1, 33)])
        cut = best_cut(tree.scores, tree.parents, (chain, chain), spent_ms, 31)
        assert cut.value == pytest.approx(brute_force(tree, chain, chain, spent_ms))
        kept = tree.subset(cut.order[: cut.nodes])
        assert kept.expected_tokens == pytest.approx(cut.expected)
        assert cut.value == pytest.approx(cut.expected / (chain[1 + cut.nodes] + spent_ms))


def test_a_cut_of_a_small_tree_by_hand() -> None:
    tree = DraftTree((1, 2, 3, 4), (-1, 0, 1, 0), (1.0, 0.6, 0.3, 0.2), ("anchor",) + ("mtp",) * 3)
    # 1/1.1 = 0.909, 1.6/1.2 = 1.333, 1.9/1.3 = 1.462, 2.1/1.4 = 1.5
    cut = best_cut(tree.scores, tree.parents, (STEPS, STEPS), 0.0, 31)
    assert (cut.nodes, cut.value) == (3, pytest.approx(1.5))
    # The third node makes it a tree, at twice the price.
    cut = best_cut(tree.scores, tree.parents, (STEPS, DEAR_TREES), 0.0, 31)
    assert (cut.nodes, cut.value, cut.order[:2]) == (2, pytest.approx(1.9 / 1.3), [1, 2])
    assert best_cut(tree.scores, tree.parents, (STEPS, STEPS), 0.0, 1).nodes == 1
    assert best_cut(tree.scores, tree.parents, (STEPS, DEAR_TREES), 0.0, 31, whole=True).nodes == 3


def test_nothing_is_verified_where_no_row_pays() -> None:
    tree = DraftTree.chain((1, 2, 3), (0.04, 0.03), "mtp")
    cut = best_cut(tree.scores, tree.parents, (STEPS, STEPS), 0.0, 31)
    assert (cut.nodes, cut.value, cut.expected) == (0, pytest.approx(1 / 1.1), 1.0)


def test_chances_never_rise_along_a_path() -> None:
    tree = DraftTree((1, 2, 3, 4), (-1, 0, 1, 0), (1.0, 0.5, 0.4, 0.3), ("anchor", "a", "b", "b"))
    assert chances_of(tree, {"a": 0.5, "b": 1.0}) == [1.0, 0.25, 0.25, 0.3]
    one = DraftTree.chain((1, 2, 3), (0.8, 0.6), "a")
    assert chances_of(one, {"a": 1.5}) == [1.0, 1.0, pytest.approx(0.9)]
    assert chances_of(one, {}) == one.scores


def test_the_likeliest_line_follows_the_best_child() -> None:
    parents = (-1, 0, 1, 0, 3, 3, 5)
    chances = (1.0, 0.4, 0.4, 0.5, 0.1, 0.3, 0.3)
    assert likeliest_line(chances, parents) == [3, 5, 6]
    assert likeliest_line((1.0,), (-1,)) == []


def test_the_promise_of_a_merge_is_what_the_merged_tree_keeps() -> None:
    source = random.Random(5)
    for _ in range(30):
        first, second = random_tree(source, 6), random_tree(source, 6)
        second = DraftTree(
            (1, *(token + 100 * source.randint(0, 1) for token in second.tokens[1:])),
            second.parents,
            second.scores,
            second.sources,
        )
        joint, scale = joint_chances(first.scores, second.scores, shared_line(first, second))
        merged = merge(first, second)
        kept = sum(chances_of(merged, {"block": scale})) - 1.0
        assert sum(joint) >= kept - 1e-9  # equal unless they share more than their first lines
    one = DraftTree.chain((1, 2, 3), (0.9, 0.8), "a")
    other = DraftTree.chain((1, 2, 4), (0.7, 0.6), "b")
    assert shared_line(one, other) == 1
    assert joint_chances(one.scores, other.scores, 1) == ([0.9, 0.8, 0.6], 1.0)
    # Two first tokens exclude each other.
    joint, scale = joint_chances((1.0, 0.9), (1.0, 0.6), 0)
    assert scale == pytest.approx(1 / 1.5)
    assert sum(joint) == pytest.approx(1.0)


def of_world(text, tokens: int = 600) -> tuple[World, StairCut]:
    world = World()
    stair = world.stair()
    world.decode(stair, text, tokens)
    return world, stair


@pytest.mark.parametrize("regime", [mixed, hopeless, deep], ids=lambda each: each.__name__)
def test_nothing_is_added_twice(regime) -> None:
    """The time a round is taken to need is what it takes: pass, draft, look and rest, each once."""
    world = World()
    stair = world.stair()
    taken_ms, predicted_ms = [], []
    propose, settle, pass_by = stair.propose, stair.settle, stair.pass_by

    def begin(anchor: int, limit: int) -> DraftTree | None:
        taken_ms.append(-world.now_ms)
        return propose(anchor, limit)

    def end(done: RoundOutcome) -> None:
        taken_ms[-1] += world.now_ms
        predicted_ms.append(stair.choice.expected_tokens / stair.choice.tokens_per_ms)
        settle(done)

    def let_pass(anchor: int, token: int, verify_ms: float) -> None:
        pass_by(anchor, token, verify_ms)

    stair.propose, stair.settle, stair.pass_by = begin, end, let_pass
    world.decode(stair, regime(1))
    after = 20  # rounds in which costs are learned
    for taken, predicted in zip(taken_ms[after:], predicted_ms[after:], strict=True):
        assert predicted == pytest.approx(taken, rel=0.02)


@pytest.mark.parametrize("regime", REGIMES, ids=lambda each: each.__name__)
def test_it_reaches_the_best_fixed_policy_of_every_regime(regime) -> None:
    world = World()
    fixed = {
        name: sum(world.decode(policy, regime(seed)) for seed in range(2))
        for name, policy in world.policies().items()
    }
    stair = world.stair()
    taken = sum(world.decode(stair, regime(seed)) for seed in range(2))
    best = min(fixed, key=fixed.__getitem__)
    assert fixed[best] / taken >= 0.97, (best, fixed[best], taken)
    assert fixed["plain"] / taken >= 0.97


def test_over_all_regimes_it_beats_every_fixed_policy() -> None:
    world = World()
    texts = [regime(7) for regime in REGIMES]
    fixed = {
        name: sum(world.decode(policy, text) for text in texts)
        for name, policy in world.policies().items()
    }
    stair = world.stair()
    taken = sum(world.decode(stair, text) for text in texts)
    assert min(fixed.values()) / taken >= 1.05


def test_probing_a_hopeless_head_stays_within_two_percent() -> None:
    world = World()
    table = LivePrices(world.table)
    stair = StairCut(table, heads=(world.step_head(),), clock=world.clock)
    world.decode(stair, hopeless(0))  # what the model is like is learned here
    plain = Fixed(None, 0)
    probes = 0
    settle = stair.settle

    def watch(done: RoundOutcome) -> None:
        nonlocal probes
        probes += not stair.choice.skipped
        settle(done)

    stair.settle = watch
    taken = sum(world.decode(stair, hopeless(seed)) for seed in range(1, 4))
    assert probes >= 3  # one a text at least: a head that got better is found
    assert taken / sum(world.decode(plain, hopeless(seed)) for seed in range(1, 4)) <= 1.02


def test_where_nothing_pays_even_looking_is_rare() -> None:
    world = World()
    world.lookup_ms = 0.2  # a fifth of a plain round
    stair = world.stair()
    world.decode(stair, hopeless(0))
    taken = sum(world.decode(stair, hopeless(seed)) for seed in range(1, 4))
    plain = sum(world.decode(Fixed(None, 0), hopeless(seed)) for seed in range(1, 4))
    assert plain / taken >= 0.97
    assert stair.choice.skipped == DOZING
    assert stair.choice.tokens_per_ms == pytest.approx(1 / (CHAIN[1] + REST_MS), rel=0.25)
    # A copy is still found, and what was dozed through is in the index by then.
    assert world.decode(Fixed(None, 0), copying(1)) / world.decode(stair, copying(1)) > 1.8


def test_rounds_that_no_match_woke_speak_against_no_match() -> None:
    world = World()
    stair = world.stair()
    stair._heads = ()
    copied = copying(5)
    quiet = hopeless(5).tokens * 2
    kept = Text(copied.prompt, copied.prompt[100:140] + quiet, 0.05, 0.05, 5)
    world.decode(stair, kept, 660)
    assert stair.choice.skipped == DOZING
    assert stair._wakes.worth(sure=False)
    assert stair._wakes.worth(sure=True)


def test_rounds_without_room_for_a_draft_teach_nothing_of_its_own_cost() -> None:
    _, router = of_world(mixed(3))
    before = router._own.ms
    assert before > 0.0
    plain = RoundOutcome(DraftTree.chain((1,), (), ""), (0,), (2,), draft_ms=0.0, verify_ms=1.0)
    for _ in range(200):  # each the last round of a text, which is not asked for a draft
        router.begin((1, 2, 3))
        router.settle(plain)
    assert router._own.ms == before


def test_what_was_dozed_through_at_the_end_of_a_text_counts_with_the_next() -> None:
    world = World()
    stair = world.stair()
    world.lookup_ms = 0.2
    for seed in range(3):
        world.decode(stair, hopeless(seed))
    stair.begin((1, 2, 3))
    assert stair._doze.end(own_ms=0.1, plain_ms=1.0)
    stair.resting = True
    before_ms = stair._prices.curves(3)[0][1] * stair._prices.level
    waited = [head._waited for head in stair._heads]
    for token in range(1000, 1040):
        assert stair.resting
        stair.pass_by(token, token + 1, 2.0 * CHAIN[1])
    stair.begin((1, 2, 3))
    assert [head._waited for head in stair._heads] == [was + 40 for was in waited]
    assert stair._prices.curves(3)[0][1] * stair._prices.level > 1.1 * before_ms


def test_a_head_that_becomes_good_is_found() -> None:
    world = World()
    stair = StairCut(LivePrices(world.table), heads=(world.step_head(),), clock=world.clock)
    for seed in range(3):
        world.decode(stair, hopeless(seed))
    plain = world.decode(Fixed(None, 0), deep(1))
    assert plain / world.decode(stair, deep(1)) > 1.6


def test_frozen_decisions_depend_on_the_text_alone() -> None:
    world, stair = of_world(mixed(1))
    stair.freeze()
    level = stair._prices.level
    runs = []
    for slower in (1.0, 3.0):
        world.table = PriceTable(
            {
                1024: {
                    kind: {rows: ms * slower for rows, ms in CHAIN.items()}
                    for kind in ("chain", "tree")
                }
            },
            "another load",
        )
        choices = []
        settle = stair.settle

        def watch(done: RoundOutcome, kept=choices, settle=settle) -> None:
            kept.append(stair.choice)
            settle(done)

        stair.settle = watch
        world.decode(stair, mixed(2), 300)
        stair.settle = settle
        runs.append(choices)
    assert runs[0] == runs[1]
    assert len({choice.candidate for choice in runs[0]}) > 1
    assert stair._prices.level == level
    stair.freeze(frozen=False)
    world.decode(stair, mixed(2), 300)
    assert stair._prices.level > 2 * level  # every pass takes three times as long by now


def test_a_running_copy_spares_the_head_where_that_is_allowed() -> None:
    drafts = []
    for skip in (True, False):
        world = World()
        stair = world.stair(skip=skip)
        count = 0
        settle = stair.settle

        def watch(done: RoundOutcome, stair=stair, settle=settle) -> None:
            nonlocal count
            count += stair.choice.skipped == "a copy runs"
            settle(done)

        stair.settle = watch
        world.decode(stair, copying(1))
        drafts.append(count)
    assert drafts[0] > 20
    assert drafts[1] == 0


def test_sizes_are_limited_by_the_room_and_by_the_switch() -> None:
    world = World()
    world.text = deep(1)
    stair = world.stair(nodes=3)
    stair.begin(world.text.prompt)
    anchor = world.text.tokens[0]
    assert stair.propose(anchor, 0) is None
    assert stair.choice.skipped == "no room"
    for limit in (1, 2, 31):
        tree = stair.propose(anchor, limit)
        assert tree is not None
        assert len(tree) - 1 <= min(limit, 3)
    whole = world.stair(whole=True)
    whole.begin(world.text.prompt)
    tree = whole.propose(anchor, 31)
    assert tree is not None
    assert len(tree) in (5, 16)  # all that the head drafts


def test_the_choice_says_what_it_promises() -> None:
    world = World()
    stair = StairCut(LivePrices(world.table), heads=(BlockHead(Block(world)),), clock=world.clock)
    world.decode(stair, deep(1), 400)
    choice = stair.choice
    assert choice.candidate == "block"
    assert choice.price_source == "invented"
    assert (choice.skipped, choice.probe) == ("", False)
    assert choice.nodes + 1 >= choice.expected_tokens > 3
    assert choice.nodes + choice.left_out == 15  # all that the head drafts
    assert choice.gain == pytest.approx(choice.tokens_per_ms * (CHAIN[1] + REST_MS), rel=0.05)
    assert choice.gain > 1


def test_a_head_that_declines_costs_no_learning() -> None:
    class Silent(Steps):
        def propose(self, anchor: int, limit: int) -> None:
            return None

    world = World()
    stair = StairCut(
        LivePrices(world.table),
        heads=(StepHead([Silent(world, 1)]), BlockHead(Silent(world, 1))),
        clock=world.clock,
    )
    taken = world.decode(stair, deep(1), 50)
    assert stair.choice.candidate == "plain"
    assert taken == pytest.approx(51 * (CHAIN[1] + REST_MS), rel=0.05)
