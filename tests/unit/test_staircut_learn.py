# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the router learns: outcomes, calibration, rates by depth, costs of drafts, dozing."""

from __future__ import annotations

import random

import pytest

from engine.spec.staircut_doze import Doze
from engine.spec.staircut_heads import line_outcome
from engine.spec.staircut_learn import Calibration, Rests, StepCosts, StepRates, outcome
from engine.spec.tree import DraftTree


def test_outcomes_count_what_is_known() -> None:
    tree = DraftTree((1, 2, 3, 4), (-1, 0, 1, 0), (1.0, 0.6, 0.3, 0.2), ("anchor",) + ("a",) * 3)
    assert outcome(tree, tree.scores, (2, 3, 9)) == (2, 2.0)
    assert outcome(tree, tree.scores, (4, 9)) == (1, 1.0)
    assert outcome(tree, tree.scores, (9,)) == (0, 0.0)
    # Behind the only token that came the tree goes on: half of the paths are taken to hold.
    assert outcome(tree, tree.scores, (2,)) == (1, 1.0 + 0.5)
    assert line_outcome(tree, (2, 9)) == (2, 1)
    assert line_outcome(tree, (2, 3, 5)) == (2, 2)
    assert line_outcome(tree, (2,)) == (1, 1)
    assert line_outcome(tree, (4, 5)) == (1, 0)


def test_calibration_finds_the_ratio_and_outlives_a_text_slowly() -> None:
    calibration = Calibration()
    for _ in range(60):
        calibration.learn(0.5, 1.0, model=True)
    assert calibration.factor == pytest.approx(0.5, abs=0.1)
    calibration.begin()
    assert 0.5 < calibration.factor < 0.8
    frozen = calibration.factor
    for _ in range(60):
        calibration.learn(2.0, 1.0, model=False)
    calibration.begin()
    assert calibration.factor == frozen


def test_rates_are_conditional_on_the_depth_before() -> None:
    source = random.Random(1)
    rates = StepRates(4)
    for _ in range(100):
        rates.begin()
        for _ in range(30):
            accepted = 0
            for luck in (0.8, 0.5, 0.9):
                if source.random() >= luck:
                    break
                accepted += 1
            rates.learn(accepted, 3, model=True)
    rates.begin()
    assert rates.chances(3) == pytest.approx([0.8, 0.4, 0.36], abs=0.1)
    for _ in range(40):
        rates.learn(0, 2, model=False)
    low = rates.chances(2)
    assert low[0] < 0.25
    rates.begin()
    assert rates.chances(1)[0] > 0.65


def test_depths_that_are_not_tried_recover_with_those_that_are() -> None:
    rates = StepRates(3)
    for _ in range(40):
        rates.learn(0, 3, model=False)
        rates.learn(1, 3, model=False)
    before = rates.chances(3)[2]
    for _ in range(60):
        rates.learn(1, 1, model=False)
    assert rates.chances(3)[2] > 3 * before


def test_outcomes_that_wait_teach_the_model_later_and_the_text_at_once() -> None:
    one, other = StepRates(3), StepRates(3)
    for outcome_ in ((3, 3), (1, 3), (0, 2), (2, 2)):
        one.learn(*outcome_, model=True)
        assert other.follow(*outcome_) == pytest.approx(one.rate)
    assert other._model == [0.8] * 3
    for rates in (one, other):
        rates.begin()
    assert other._model == one._model != [0.8] * 3
    assert other.chances(3) == one.chances(3)


def test_costs_of_steps_that_never_ran_follow_from_those_that_did() -> None:
    costs = StepCosts()
    costs.learn(2, 9.0)  # the first draft records a pass
    assert costs.ms(2) is None
    for ms in (0.3, 0.2, 0.2, 0.2):
        costs.learn(2, ms)
    assert costs.ms(2) == pytest.approx(0.2)
    assert costs.ms(1) == pytest.approx(0.2 * 1.5 / 2.5)
    assert costs.ms(4) == pytest.approx(0.2 * 4.5 / 2.5)


def test_measured_costs_hold_from_the_start_and_recordings_change_nothing() -> None:
    costs = StepCosts((0.1, 0.12))
    assert [costs.ms(steps) for steps in (1, 4)] == pytest.approx([0.22, 0.58])
    for steps, ms in ((1, 5.0), (4, 0.58), (2, 6.0), (1, 0.22), (3, 7.0), (4, 0.58)):
        costs.learn(steps, ms)  # every other one records
    assert costs.ms(4) == pytest.approx(0.58)
    for _ in range(5):
        costs.learn(4, 1.16)  # the machine is half as fast now
    assert costs.ms(1) == pytest.approx(0.44)


def test_a_doze_is_as_long_as_deciding_is_dear() -> None:
    doze = Doze()
    assert doze.end(own_ms=0.1, plain_ms=10.0)
    while doze.on:
        assert doze.took(7, 8, 10.0)  # one by one: a round takes longer than text may wait
        assert doze.taken(0.0) == [8]
    assert doze.rounds == 5
    assert not doze.end(own_ms=0.01, plain_ms=10.0)  # deciding is cheap: awake
    assert doze.end(own_ms=5.0, plain_ms=10.0, longest=2)  # then something is due
    doze.took(7, 8, 10.0)
    doze.wake()  # something stirs behind the first one
    assert not doze.on


@pytest.mark.parametrize(("plain_ms", "together"), [(0.1, 16), (0.6, 6), (3.0, 1)])
def test_the_tokens_of_short_rounds_are_taken_in_together(plain_ms: float, together: int) -> None:
    doze = Doze()
    doze.end(own_ms=1.0, plain_ms=plain_ms, longest=20)
    taken, tokens = [], []
    for token in range(20):
        if doze.took(100 + token, token, plain_ms):
            taken.append(doze.anchor)
            tokens += doze.taken(0.0)
    assert tokens == list(range(20))
    assert taken == list(range(100, 120, together))
    assert not doze.on


def took(doze: Doze, verify_ms: float, end_s: float) -> None:
    doze.took(7, 8, verify_ms)
    doze.taken(end_s)


def test_what_is_taken_in_together_rests_on_average() -> None:
    doze = Doze()
    for batch in range(6):
        for _ in range(4):
            doze.took(7, 8, 0.75)
        doze.taken(batch * 4e-3)
    assert doze.priced(learn=True) == (1, 0.75, 4)
    assert doze.rest.ms == pytest.approx(0.25)
    end_s = 1.0
    for _ in range(5):
        for verify_ms in (0.5, 1.0, 2.0):  # each batch rests beside its own passes
            for _ in range(4):
                doze.took(7, 8, verify_ms)
            end_s += 4 * (verify_ms + 0.25) * 1e-3
            doze.taken(end_s)
        assert doze.priced(learn=True) == (1, 1.0, 2)
    assert doze.rest.ms == pytest.approx(0.25)


def test_dozed_rounds_tell_their_pass_and_what_comes_on_top() -> None:
    doze = Doze()
    for end in range(21):  # 1 ms apart, one of them interrupted
        took(doze, 9.0 if end == 7 else 0.75, end * 1e-3)
    assert doze.priced(learn=True) == (1, 0.75, 3)  # once, and once more for every eight of them
    assert doze.rest.ms == pytest.approx(0.25)
    assert doze.rounds == 0
    for end in range(9):
        took(doze, 5.0, end * 9e-3)
    doze.begin()  # frozen meanwhile: nothing of it is left for later
    took(doze, 0.75, 1.0)
    assert doze.priced(learn=True) == (1, 0.75, 1)
    assert doze.rest.ms == pytest.approx(0.25)


def test_a_round_rests_by_how_it_drafts() -> None:
    rests = Rests()
    for _ in range(3):
        rests.learn(0.04, rows=1, with_head=False)
    for ms in (2.0, 0.15):  # the first one recorded its pass
        rests.learn(ms, rows=2, with_head=False)
        assert (rests.plain_ms, rests.looked_ms, rests.head_ms) == (0.04, 0.04, 0.04)
    rests.learn(0.16, rows=4, with_head=False)
    assert rests.looked_ms == 0.15
    rests.learn(0.3, rows=4, with_head=True)
    assert (rests.plain_ms, rests.head_ms) == (0.04, 0.3)
    for _ in range(20):
        rests.begin()
    assert 0.04 < rests.looked_ms < 0.09
