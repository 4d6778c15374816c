# SPDX-License-Identifier: MIT OR Apache-2.0
"""Rounds that go on without a decision, what drafts really bring, and what texts of a kind have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from staircut_world import REST_MS, STEP_MS, Steps, Text, World, deep, hopeless

from engine.spec.drafter import RoundOutcome, RouteChoice
from engine.spec.staircut import StairCut
from engine.spec.staircut_heads import BlockHead, StepHead
from engine.spec.staircut_hold import Hold
from engine.spec.staircut_learn import StepRates, middle_of
from engine.spec.staircut_prices import LivePrices
from engine.spec.staircut_yield import WakeYields, Yield
from engine.spec.tree import DraftTree

CHOICE = RouteChoice("steps", 2, 2.4, 1.5, "invented")


def held(world: World, own_share: float, usual: float = 0.8) -> tuple[Hold, StepHead]:
    head = StepHead([Steps(world, steps) for steps in range(1, 5)])
    head.rates._usual = usual
    hold = Hold()
    hold.start(head, 2, CHOICE, own_share)
    return hold, head


def settle(hold: Hold, tree: DraftTree, accepted: int) -> None:
    tokens = (*tree.tokens[1 : accepted + 1], 9)
    hold.settle(RoundOutcome(tree, tuple(range(accepted + 1)), tokens, 0.2, 1.25))


def test_a_decision_is_held_the_longer_the_dearer_it_is() -> None:
    world = World()
    world.text = deep(1)
    for own_share, rounds in ((0.005, 0), (0.013, 2), (0.031, 5), (0.9, 16)):
        hold, _ = held(world, own_share)
        count = 0
        while hold.on:
            tree = hold.propose(world.text.tokens[0], 31, 300)
            assert tree is not None
            assert (len(tree), hold.choice) == (3, CHOICE)
            count += 1
        assert count == rounds
    hold, _ = held(world, 0.06)
    hold.propose(world.text.tokens[0], 1, 300)  # room for one step
    assert hold.choice == CHOICE._replace(nodes=1)


def test_a_text_that_leaves_its_rate_ends_a_hold() -> None:
    world = World()
    world.text = deep(1)
    hold, head = held(world, 0.9, usual=0.9)
    tree = hold.propose(7, 31, 300)
    settle(hold, tree, 2)
    weight = 3 * 0.95**2  # tokens of what is usual
    assert head.rates.rate == pytest.approx((2 + weight * 0.9) / (2 + weight))
    assert hold.on
    assert (hold.anchor, len(hold.tokens)) == (7, 3)
    assert hold.priced() == (3, 1.25)
    assert hold.priced() == (3, 0.0)
    hold.propose(8, 31, 303)
    settle(hold, tree, 0)
    assert head.rates.rate < 0.78
    assert not hold.on
    hold, head = held(world, 0.9, usual=0.5)
    for _ in range(2):
        hold.propose(7, 31, 300)
        settle(hold, tree, 2)
    assert head.rates.rate > 0.58
    assert not hold.on  # better than thought: deeper drafts may pay by now


def test_drafts_that_bring_less_than_plain_rounds_are_found_out_in_four_rounds() -> None:
    found = Yield()
    found.plain(1.02, 0.05)
    for rounds in range(1, 5):
        assert not found.loses
        found.add(1 + (rounds == 2), 1.45)  # 1.5 ms each: 1.25 tokens where plain rounds write 1.47
    assert found.loses
    found.pause(9)
    assert found.loses
    found.pause(1)
    assert not found.loses
    for _ in range(5):
        found.add(1, 1.45)
    assert found.loses
    found.pause(19)  # the next try waits twice as long
    assert found.loses
    found.pause(1)
    assert not found.loses
    for tokens in (3, 1, 2, 1, 2, 2):  # 1.8 on the mean
        found.add(tokens, 1.45)
    assert not found.loses
    found.begin()
    for tokens in (1, 2, 1, 2, 1, 2):  # 1.5 for the time of 1.47: no loss that is clear
        found.add(tokens, 1.45)
    assert not found.loses


def test_a_try_that_brings_something_makes_the_next_one_soon_again() -> None:
    found = Yield()
    found.plain(1.0, 0.0)
    for pause in (10, 20, 40):
        for _ in range(4):
            found.add(1, 2.0)
        found.pause(pause - 1)
        assert found.loses
        found.pause(1)
        assert not found.loses
    for _ in range(4):
        found.add(4, 2.0)  # twice what plain rounds write
    for _ in range(20):
        found.add(1, 2.0)
    assert found.loses
    found.pause(10)
    assert not found.loses
    for _ in range(20):  # however long it loses, it is tried again
        for _ in range(4):
            found.add(1, 2.0)
        found.pause(1280)
        assert not found.loses


def test_short_matches_that_lose_leave_the_sure_ones_alone() -> None:
    wakes = WakeYields()
    wakes.plain(1.0, 0.1)
    wakes.add(1, 9.0)  # a round that woke for nothing that was looked up
    for _ in range(4):
        assert wakes.worth(sure=False)
        wakes.add(1, 1.4)
    assert not wakes.worth(sure=False)
    for _ in range(8):
        assert wakes.worth(sure=True)
        wakes.add(3, 2.0)
    wakes.begin()
    assert not wakes.worth(sure=False)  # the next text knows
    wakes.pause(10)
    assert wakes.worth(sure=False)
    assert wakes.worth(sure=True)
    for _ in range(40):
        wakes.add(2, 1.9)  # as fast as plain rounds: not enough for a wake
    assert not wakes.worth(sure=True)


def test_a_text_starts_from_what_is_usual_for_its_kind() -> None:
    rates = StepRates(4)
    for text in range(80):
        kind = text % 2
        rates.begin(kind)
        for turn in range(20):
            rates.learn((4, 4, 1)[turn % 3] if kind else turn % 2, 4, model=True)
    rates.begin(1)
    assert rates.rate > 0.85
    assert rates._weight == pytest.approx(8.0)  # texts of this kind are alike: one miss says little
    rates.follow(0, 4)
    assert rates.rate > 0.8
    rates.begin(0)
    assert rates.rate < 0.4
    rates.begin(2)  # never seen: between the others
    assert 0.5 < rates.rate < 0.75
    before = dict(rates._kinds)
    rates.learn(4, 4, model=False)
    rates.begin(2, model=False)
    assert rates._kinds == before  # held: nothing outlives a text


def test_a_text_of_a_bad_kind_is_not_drafted_for_and_one_of_a_good_kind_from_the_start() -> None:
    world = World()
    stair = StairCut(LivePrices(world.table), heads=(world.step_head(),), clock=world.clock)

    def of_kind(seed: int, *, good: bool) -> Text:
        made = deep(seed) if good else hopeless(seed)
        return Text(made.prompt[: 20 if good else 200], made.tokens, *(made.step_luck, 0.0), seed)

    for seed in range(8):
        world.decode(stair, of_kind(seed, good=seed % 2 == 0), 40)
    for good in (True, False):
        text = of_kind(20, good=good)
        world.text, world.at = text, 0
        stair.begin(text.prompt)
        tree = stair.propose(text.tokens[0], 31)
        assert (tree is not None) == good
        assert stair.choice.candidate == ("steps" if good else "plain")


def test_a_catching_up_that_recorded_passes_does_not_shut_a_good_head_out() -> None:
    world = World()
    stair = StairCut(LivePrices(world.table), heads=(world.step_head(),), clock=world.clock)
    world.decode(stair, deep(0), 100)
    (head,) = stair._heads
    head._catch_up.ms = 500.0
    plain = world.decode(world.policies()["plain"], deep(1), 100)
    assert plain / world.decode(stair, deep(1), 100) > 1.6
    head.begin((1, 2, 3))
    assert head.catch_up_ms(3) == 0.0  # three tokens are taken along
    assert head.catch_up_ms(30) == 500.0


def test_a_good_text_is_drafted_for_at_little_more_than_the_drafts_take() -> None:
    """Deciding takes 0.2 ms here, a tenth of a round; holding leaves little of it."""
    world = World()
    world.lookup_ms = 0.2
    stair = world.stair()
    stair._heads = stair._heads[:1]
    world.decode(stair, deep(0))
    choices: Counter[str] = Counter()
    propose = stair.propose

    def watch(anchor: int, limit: int) -> DraftTree | None:
        tree = propose(anchor, limit)
        choices[stair.choice.candidate] += 1
        return tree

    stair.propose = watch
    taken = world.decode(stair, deep(3))
    fixed = world.decode(world.policies()["steps 4"], deep(3))
    assert choices["steps"] > 0.9 * sum(choices.values())
    assert fixed / taken >= 0.97
    assert STEP_MS[0] + REST_MS < world.lookup_ms  # so that it could not be afforded every round


def test_the_middle_of_times_is_taken_once() -> None:
    times = [3.0, 1.0, 2.0]
    assert middle_of(times) == 2.0
    assert (times, middle_of(times)) == ([], 0.0)


class Silent:
    """A drafter that has nothing to say."""

    name = "silent"
    read_bytes = 0

    def begin(self, prompt: Sequence[int]) -> None: ...

    def propose(self, anchor: int, limit: int) -> None: ...


@pytest.mark.parametrize(
    ("measured", "extra_share", "at_once"),
    [(None, 4.0, 2), (None, 0.5, 2), (2.0, 4.0, 0), (2.0, 0.5, 1)],
)
def test_a_head_is_tried_at_once_only_for_what_is_not_known(
    measured: float | None, extra_share: float, at_once: int
) -> None:
    """The first draft records, so that two tell the cost; a dear head is not tried to see its worth."""
    head = BlockHead(Silent(), measured)
    head.begin(())
    tried = 0
    for context in range(20):
        if head.ripe(1) and head.due(extra_share):
            tried += 1
            head.draft(1, 1, 7, context, lambda: 0.0)
    assert tried == at_once


def test_a_probe_that_took_more_than_it_should_keeps_a_dear_head_waiting() -> None:
    head = BlockHead(Silent(), 2.0)
    head.begin(())
    assert head.wait(2.4) == 400  # rounds of which it takes 0.6 %
    head.probed(3.0, paid=True)
    assert head.wait(2.4) == 500
    assert head.wait(3.6) == 600


def test_a_dear_probe_that_did_not_pay_makes_the_next_ones_rarer() -> None:
    head = BlockHead(Silent(), 2.0)
    head.begin(())
    head.wait(2.4)
    for rounds in (800, 1600, 3200):
        head.probed(2.4, paid=False)
        head.begin(())  # a new text does not speak for it
        assert head.wait(2.4) == rounds
    head.probed(2.4, paid=True)
    assert head.wait(2.4) == 400


def test_a_dear_probe_is_rarer_the_less_it_promises() -> None:
    head = BlockHead(Silent(), 2.0)
    head.begin(())
    assert [head.wait(2.4, promise=each) for each in (2.0, 1.0, 0.5, 0.2, 0.1)] == [
        400,
        400,
        1600,
        10_000,
        10_000,
    ]
