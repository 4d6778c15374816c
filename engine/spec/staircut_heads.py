# SPDX-License-Identifier: MIT OR Apache-2.0
"""Drafters that take time to draft, and what the router expects of each before it asks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine.spec.drafter import Drafter, RoundOutcome
from engine.spec.prices import Curve
from engine.spec.staircut_cut import chances_of
from engine.spec.staircut_learn import Calibration, Cost, StepCosts, StepRates, model_share, outcome
from engine.spec.tree import MAX_NODES, DraftTree

_PROBE_ROUNDS = 32  # between two drafts by a head that does not pay
_PROBE_SHARE = 0.006  # of the time of these rounds that a probe may take
_PROBE_SOON = 3  # rounds instead, where only this text speaks against the head
_PROBE_EVIDENCE = 1.5  # rounds more for every step that was tried
_PROBE_STEPS = 2
_IN_STEP = 5  # tokens since the latest draft that the next one takes along for nothing
_PROBE_DOUBLINGS = 5
_PROBES_IN_A_ROW = 5
_DEAR_SHARE = 1.5  # of a plain round: a probe that takes more is not followed by another at once
_LEAST_PROMISE = 0.2  # of a plain round: less makes a dear probe no rarer
_AT_ONCE = 1 << 30  # rounds waited for a probe that is due whatever it costs
_STEP_PRIOR = 0.15  # of a plain round: what a step costs before one was timed
_BLOCK_PRIOR = 0.5
_DEEPER_GAIN = 1.02  # what one more step must promise: no chance tells where the text ends
_PLAN_ROUNDS = 16  # a plan of a head that did not draft lasts so long
_PROFILE_SHARE = 0.1
_PROFILE_START = 0.85  # chance of the likeliest node, by which each next one is less likely


class Plan(NamedTuple):
    """What a draft is expected to bring, in tokens a millisecond, and what it takes."""

    value: float
    steps: int
    rows: int  # of the verify pass behind it


class Head:
    """One such drafter: when it is worth asking, what it costs, how far its scores can be believed."""

    most_steps = 1  # of one draft

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = self._asked = drafter
        self.name = drafter.name
        self.calibration = Calibration()
        self.drafted: DraftTree | None = None  # of this round
        self.chances: Sequence[float] = (1.0,)  # of its nodes
        self._waited = self._needed = 0  # rounds since it was asked, and until the next probe
        self._owed = 0  # rounds that must share what the latest probe really took, where it is dear
        self._failed = 0
        self._drafts = 0
        self._in_a_row = 0
        self._dear = False
        self._probing = False
        self._plan: Plan | None = None  # good until something is learned
        self._plan_limit = self._plan_age = 0
        self._usual: bool | None = None  # whether texts of this kind are worth it, if that is known
        self.draft_ms = 0.0  # of the latest draft
        self._drafted_at = 0  # tokens of the text at the latest draft
        self._catch_up = Cost()  # on top, where the head has to follow many tokens first
        self.learning = True

    @property
    def read_bytes(self) -> int:
        """What the latest draft had to read."""
        return self._asked.read_bytes

    def begin(self, prompt: Sequence[int]) -> None:
        """A new text."""
        self._drafter.begin(prompt)
        self.calibration.begin()
        self._needed = self._drafted_at = 0
        if not self._dear:
            self._failed = 0
        self._probing = False
        self._plan = self._usual = None

    def catch_up_ms(self, context: int) -> float:
        """What a draft costs more behind so many tokens, as the head did not draft for long."""
        return self._catch_up.ms if self.behind(context) else 0.0

    def behind(self, context: int) -> bool:
        """Whether a draft behind so many tokens has to catch up first."""
        return context - self._drafted_at > _IN_STEP

    def planned(
        self, prices: tuple[Curve, Curve], rest_ms: float, level: float, limit: int
    ) -> Plan:
        """The plan, made anew where it was learned from since, or is old, or does not fit the room."""
        plan = self._plan
        self._plan_age += 1
        if (
            plan is None
            or not plan.rows - 1 <= limit <= self._plan_limit
            or self._plan_age > _PLAN_ROUNDS
        ):
            plan = self._plan = self.plan(prices, rest_ms, level, limit)
            self._plan_limit, self._plan_age = limit, 0
        return plan

    def plan(self, prices: tuple[Curve, Curve], rest_ms: float, level: float, limit: int) -> Plan:
        """The best draft of at most `limit` (1 or more) nodes, `rest_ms` being what else the round costs."""
        raise NotImplementedError

    def probe(self, plan: Plan) -> Plan:
        """What to draft instead, to learn how the head stands."""
        return plan

    def draft(
        self, anchor: int, steps: int, limit: int, context: int, clock: Callable[[], float]
    ) -> DraftTree | None:
        """Ask the drafter behind `context` tokens; the time it takes is learned."""
        begun_s = clock()
        self._drafts += 1
        tree = self._propose(anchor, steps, limit)
        self.draft_ms = (clock() - begun_s) * 1e3
        if self.learning:
            known_ms = self.cost_ms(steps, 0.0)
            if not (known_ms and self.behind(context)):
                self._learn_cost(steps, self.draft_ms)
            else:
                self._catch_up.learn(max(0.0, self.draft_ms - known_ms))
        self._drafted_at = context
        if tree is not None and len(tree) > 1:
            self.drafted = tree
            self.chances = chances_of(tree, {tree.sources[-1]: self.calibration.factor})
        return self.drafted

    def soonest(self) -> int:
        """Rounds until a head that is usually worth its draft is probed in a text that speaks against it."""
        return _AT_ONCE

    def cost_ms(self, steps: int, plain_ms: float) -> float:
        """What a draft costs; `plain_ms` is the price of a plain round."""
        raise NotImplementedError

    @property
    def cost_known(self) -> bool:
        """Whether a draft was timed."""
        raise NotImplementedError

    def worth(self) -> None:
        """The plan beats every round without this head."""
        if self._usual is None:
            self._usual = True
        self._failed = self._waited = self._needed = 0

    def ripe(self, rounds: int) -> bool:
        """Whether to ask if a draft is `due`; `rounds` went by since this was asked last."""
        self._waited += rounds
        return self._waited >= self._needed

    @property
    def rounds_left(self) -> int:
        """Rounds until this is `ripe`."""
        return max(0, self._needed - self._waited)

    def wait(self, extra_share: float, *, rival: bool = False, promise: float = 1.0) -> int:
        """Rounds until a probe is `due`, which says when that is."""
        if self._usual is None:
            self._usual = rival or promise > 1.0
        self._dear = extra_share > _DEAR_SHARE
        if not (self.cost_known and (self._drafts or self._dear)):
            self._waited = _AT_ONCE
        least = max(_PROBE_ROUNDS, math.ceil(extra_share / _PROBE_SHARE))
        if self._usual and not self._dear and not rival:
            least = min(least, self.soonest())
        needed = least << min(self._failed, _PROBE_DOUBLINGS)
        if self._dear:
            unlikely = max(_LEAST_PROMISE, min(1.0, promise))
            needed = max(math.ceil(needed / unlikely**2), self._owed)
        self._needed = needed
        return self.rounds_left

    def due(self, extra_share: float, *, rival: bool = False, promise: float = 1.0) -> bool:
        """Whether to draft although the plan says it does not pay, at `extra_share` more than a plain round.

        `promise`: what the plan is worth, in plain rounds.

        Once in at least 32 rounds and so rarely that it takes at most 0.6 % of their time; half as often after
        each probe that was not accepted (did not pay, where it is dear), up to five in a row while they are.
        A dear one that promises half of a plain round is due a quarter as often. Where only this text speaks
        against the head (in its first round a draft was `worth` it), `soonest` says when. Where the head loses
        to a `rival` only, each probe makes the next one rarer. A head is due at once while its cost is not
        known, and for a first draft where that is not dear.
        """
        if self.wait(extra_share, rival=rival, promise=promise):
            return False
        self._needed = self._waited = 0
        self._failed += rival
        self._probing = not rival
        return True

    def probed(self, extra_share: float, *, paid: bool) -> None:
        """The latest probe took so much more than a plain round: recordings it needed, rows that waited.

        `paid`: it wrote no fewer tokens than plain rounds would have.
        """
        self._owed = math.ceil(extra_share / _PROBE_SHARE)
        if self._dear:
            self._failed = 0 if paid else self._failed + 1

    def settle(self, done: RoundOutcome) -> None:
        """Learn from what the round committed."""
        self._drafter.settle(done)
        tree = self.drafted
        if tree is None:
            self._probing = False
            return
        self.drafted = self._plan = None
        accepted, realised = outcome(tree, self.chances, done.tokens)
        self.calibration.learn(realised, sum(tree.scores) - 1.0, model=self.learning)
        self._learn(tree, done.tokens)
        if not self._probing:
            return
        self._probing = False
        if self._dear:  # `probed` tells how it went
            return
        self._failed = 0 if accepted else self._failed + 1
        self._in_a_row += 1
        if accepted and self._in_a_row < _PROBES_IN_A_ROW:
            self._waited = _AT_ONCE
        else:
            self._in_a_row = 0

    def _propose(self, anchor: int, steps: int, limit: int) -> DraftTree | None:
        raise NotImplementedError

    def _learn_cost(self, steps: int, ms: float) -> None:
        raise NotImplementedError

    def _learn(self, tree: DraftTree, tokens: Sequence[int]) -> None:
        raise NotImplementedError


class StepHead(Head):
    """A head whose draft takes one step a token, so that its depth is chosen before.

    `drafters` take 1, 2, .. steps, over one head that keeps no text of its own.
    """

    def __init__(
        self, drafters: Sequence[Drafter], measured: tuple[float, float] | None = None
    ) -> None:
        """`measured`: what a draft takes, see `StepCosts`."""
        super().__init__(drafters[-1])
        self._drafters = tuple(drafters)
        self.most_steps = len(drafters)
        self.rates = StepRates(self.most_steps)
        self._costs = StepCosts(measured)

    def begin(self, prompt: Sequence[int]) -> None:
        super().begin(prompt)
        # Copies and edits come with the text they are about, questions do not: length tells some of it.
        self.rates.begin(len(prompt).bit_length(), model=self.learning)

    def plan(self, prices: tuple[Curve, Curve], rest_ms: float, level: float, limit: int) -> Plan:
        chain_ms = prices[0]
        plain_ms = chain_ms[1] * level
        best_value, best_steps = 0.0, 1
        expected = 1.0
        for steps, chance in enumerate(self.rates.chances(min(limit, self.most_steps)), 1):
            expected += chance
            value = expected / (
                chain_ms[steps + 1] + rest_ms + self.cost_ms(steps, plain_ms) / level
            )
            if value > best_value * _DEEPER_GAIN:
                best_value, best_steps = value, steps
        return Plan(best_value, best_steps, best_steps + 1)

    def soonest(self) -> int:
        return _PROBE_SOON + int(_PROBE_EVIDENCE * self.rates.tries)

    def draft_held(self, anchor: int, steps: int, limit: int, context: int) -> DraftTree | None:
        """Ask the drafter; nothing is timed, and `follow` takes the place of `settle`."""
        self._drafted_at = context
        self._asked = self._drafters[steps - 1]
        return self._asked.propose(anchor, limit)

    def follow(self, accepted: int, tried: int) -> float:
        """What became of it; gives the text's rate."""
        self._plan = None
        return self.rates.follow(accepted, tried)

    def probe(self, plan: Plan) -> Plan:
        steps = min(max(plan.steps, _PROBE_STEPS), self.most_steps)
        return Plan(plan.value, steps, steps + 1)

    def cost_ms(self, steps: int, plain_ms: float) -> float:
        known = self._costs.ms(steps)
        return _STEP_PRIOR * steps * plain_ms if known is None else known

    @property
    def cost_known(self) -> bool:
        return self._costs.ms(1) is not None

    def _propose(self, anchor: int, steps: int, limit: int) -> DraftTree | None:
        self._asked = self._drafters[steps - 1]
        return self._asked.propose(anchor, limit)

    def _learn_cost(self, steps: int, ms: float) -> None:
        self._costs.learn(steps, ms)

    def _learn(self, tree: DraftTree, tokens: Sequence[int]) -> None:
        tried, matched = line_outcome(tree, tokens)
        self.rates.learn(matched, tried, model=self.learning)


class BlockHead(Head):
    """A head that drafts a whole tree at one cost; the round takes of it what pays."""

    def __init__(self, drafter: Drafter, measured: float | None = None) -> None:
        """`measured`: what a draft takes, in ms, where one was timed."""
        super().__init__(drafter)
        self._cost = Cost(measured)
        self._blocks = 0
        start = [_PROFILE_START**n for n in range(1, MAX_NODES)]
        self._model_profile = start
        self._profile = list(start)  # chance of the likeliest node, the next one, ..

    def begin(self, prompt: Sequence[int]) -> None:
        super().begin(prompt)
        self._profile = list(self._model_profile)

    def plan(self, prices: tuple[Curve, Curve], rest_ms: float, level: float, limit: int) -> Plan:
        tree_ms = prices[1]
        spent_ms = rest_ms + self.cost_ms(1, prices[0][1] * level) / level
        best = Plan(0.0, 1, 2)
        expected = 1.0
        for rows, chance in enumerate(self._profile[:limit], 2):
            expected += chance
            value = expected / (tree_ms[rows] + spent_ms)
            if value > best.value:
                best = Plan(value, 1, rows)
        return best

    def cost_ms(self, steps: int, plain_ms: float) -> float:
        return self._cost.ms if self._cost.known else _BLOCK_PRIOR * plain_ms

    @property
    def cost_known(self) -> bool:
        return self._cost.known

    def _propose(self, anchor: int, steps: int, limit: int) -> DraftTree | None:
        return self._asked.propose(anchor, limit)

    def _learn_cost(self, steps: int, ms: float) -> None:
        self._cost.learn(ms)

    def _learn(self, tree: DraftTree, tokens: Sequence[int]) -> None:
        factor = self.calibration.factor
        chances = sorted((min(1.0, score * factor) for score in tree.scores[1:]), reverse=True)
        chances += [0.0] * (MAX_NODES - 1 - len(chances))
        _blend(self._profile, chances, _PROFILE_SHARE)
        if self.learning:
            self._blocks += 1
            _blend(self._model_profile, chances, model_share(self._blocks))


def line_outcome(tree: DraftTree, tokens: Sequence[int]) -> tuple[int, int]:
    """(steps of the tree's first line whose outcome is known, how many of them from the start were right)."""
    parents, drafted = tree.parents, tree.tokens
    matched = 0
    for node in range(1, len(parents)):
        if parents[node] != node - 1 or matched == len(tokens):
            break
        if drafted[node] != tokens[matched]:
            return matched + 1, matched
        matched += 1
    return matched, matched


def _blend(into: list[float], new: Sequence[float], share: float) -> None:
    for at, value in enumerate(new[: len(into)]):
        into[at] += share * (value - into[at])
