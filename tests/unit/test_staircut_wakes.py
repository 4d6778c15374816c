# SPDX-License-Identifier: MIT OR Apache-2.0
"""What ends a doze, and what the router learns of rounds that it decided now and then."""

from __future__ import annotations

import pytest
from staircut_world import CHAIN, REST_MS, World, deep, hopeless

from engine.spec.drafter import RoundOutcome
from engine.spec.staircut import StairCut
from engine.spec.staircut_candidates import candidate, choose
from engine.spec.staircut_cut import Terms
from engine.spec.staircut_heads import BlockHead
from engine.spec.tree import DraftTree

PROMPT = tuple(range(1, 40))


def dozing(*, short_lose: bool) -> StairCut:
    """A router that knows its costs and dozes for long behind PROMPT; short matches may have lost."""
    world = World()
    stair = world.stair()
    world.decode(stair, hopeless(1))
    stair._heads = ()
    stair.begin(PROMPT)
    stair._wakes.plain(1.0, 0.1)
    if short_lose:
        assert stair._wakes.worth(sure=False)
        for _ in range(4):
            stair._wakes.add(1, 2.0)
        stair._wakes.begin()
    assert stair._doze.end(own_ms=1.0, plain_ms=1.0)
    stair.resting = True
    return stair


def let_pass(stair: StairCut, tokens: tuple[int, ...]) -> None:
    for token in tokens:
        stair.pass_by(token - 1, token, CHAIN[1])


@pytest.mark.parametrize("short_lose", [False, True])
def test_a_short_match_ends_a_doze_unless_such_looks_lost_lately(short_lose: bool) -> None:
    stair = dozing(short_lose=short_lose)
    let_pass(stair, (900, 5, 6, 7))
    assert stair.resting is short_lose


def test_rounds_that_are_dozed_through_grant_lost_looks_another_try() -> None:
    stair = dozing(short_lose=True)
    let_pass(stair, (900, 5, 6, 7))
    let_pass(stair, tuple(range(901, 913)))
    assert stair.resting
    let_pass(stair, (913, 15, 16, 17))
    assert not stair.resting
    assert stair._context == len(PROMPT) + 20


def test_a_sure_match_ends_a_doze_though_short_ones_lost() -> None:
    stair = dozing(short_lose=True)
    let_pass(stair, (5, 6, 7, 8, 9, 10))
    assert stair.resting
    let_pass(stair, (11, 12))
    assert not stair.resting


def test_what_a_match_of_one_text_woke_is_not_judged_in_the_next() -> None:
    world = World()
    stair = world.stair()
    world.decode(stair, deep(1))
    assert stair._wakes.worth(sure=False)
    stair.begin(deep(2).prompt)
    assert not stair.resting  # drafts pay from the start
    for _ in range(9):
        stair._wakes.add(1, 9.0)
    assert stair._wakes.worth(sure=False)


def test_what_looking_takes_fades_with_every_text_that_is_learned_from() -> None:
    stair = dozing(short_lose=False)
    rests = stair._rests
    for _ in range(3):
        rests.learn(5.0, rows=4, with_head=False)
    before_ms = rests.looked_ms
    stair.freeze()
    stair.begin(PROMPT)
    assert rests.looked_ms == before_ms
    stair.freeze(frozen=False)
    stair.begin(PROMPT)
    assert rests.looked_ms == pytest.approx(before_ms - 0.05 * (before_ms - rests.plain_ms))


def test_looks_are_judged_with_what_they_take_beside_their_pass() -> None:
    stair = dozing(short_lose=False)
    for _ in range(3):
        stair._rests.learn(5.0, rows=4, with_head=False)
    stair.resting = False
    stair.propose(39, 31)
    assert stair._wakes.worth(sure=False)
    plain_ms = 1.0 / stair._plain_value * stair._prices.level
    for _ in range(4):
        stair._wakes.add(2, 1.2 * plain_ms)  # as such a gain; with 5 ms on top of each it is none
    assert not stair._wakes.worth(sure=False)


def test_what_a_rare_pass_takes_beyond_its_price_belongs_to_its_rest() -> None:
    world = World()
    world.lookup_ms = 0.2  # so that passes behind a decision teach no price
    stair = world.stair()
    stair._heads = ()
    world.decode(stair, hopeless(1))
    stair.begin(PROMPT)
    stair.resting = False
    looked = DraftTree.chain((39, 40, 41, 42), (0.9, 0.8, 0.7), "lookup")
    for _ in range(4):
        begun_ms = world.now_ms
        stair.propose(39, 31)
        draft_ms = world.now_ms - begun_ms
        world.now_ms += 5.0 + REST_MS
        stair.settle(RoundOutcome(looked, (0,), (39,), draft_ms, 5.0))
    stair._doze.begin()
    stair.propose(39, 31)
    assert stair._rests.looked_ms == pytest.approx(5.0 - CHAIN[4] + REST_MS, rel=0.05)


class Slow:
    """A block drafter whose draft takes far longer than it was measured to take."""

    name = "slow"
    read_bytes = 0

    def __init__(self, world: World) -> None:
        self._world = world

    def begin(self, prompt: tuple[int, ...]) -> None: ...

    def settle(self, outcome: RoundOutcome) -> None: ...

    def propose(self, anchor: int, limit: int) -> DraftTree:
        self._world.now_ms += 60.0
        return DraftTree.chain((anchor, 4999), (0.1,), self.name)


def test_a_dear_probe_is_paid_for_by_the_rounds_behind_it() -> None:
    world = World()
    head = BlockHead(Slow(world), 2.0)
    stair = StairCut(world.stair()._prices, heads=(head,), clock=world.clock)
    probes = 0
    settle = stair.settle

    def watch(done: RoundOutcome) -> None:
        nonlocal probes
        probes += stair.choice.probe
        settle(done)

    stair.settle = watch
    for seed in range(20):
        world.decode(stair, hopeless(seed))
    assert probes >= 1
    assert head._owed >= 50 / 0.006  # 60 ms more than a round of 1 ms


def test_a_draft_is_verified_only_where_it_beats_a_round_without() -> None:
    tree = DraftTree.chain((1, 2), (0.6,), "lookup")
    prices = tuple([0.0] + [1.0 + 0.1 * rows for rows in range(1, 33)])
    terms = Terms((prices, prices), 0.5, 31)
    found = (candidate("lookup", tree, tree.scores, terms, whole=False),)
    assert found[0].cut.value == pytest.approx(1.6 / 1.7)
    for least, verified in ((0.0, tree), (0.94, tree), (0.95, None)):
        choice, cut = choose(found, 1 / 1.1, per_ms=1.0, source="", least=least)
        assert cut is verified
        assert (choice.candidate, choice.nodes) == (("lookup", 1) if cut else ("plain", 0))
