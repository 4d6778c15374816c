# SPDX-License-Identifier: MIT OR Apache-2.0
"""The router that spends exactly as many verify rows as pay.

Every round it cuts each candidate (lookup tree, the head's tree and its greedy line, both merged) at the size
that maximises

    V(n) = (sum of the n largest acceptance chances + 1) / (price of n + 1 rows + draft_ms + rest_ms)

and verifies the best; 0 nodes is a plain round. A price is the whole verify pass with the commit it carries, so
that no commit is added; draft_ms is the learned cost of the head's draft, and rest_ms what remains of a whole
round: nothing is counted twice. A head is asked only when its own record beats what is at hand, and where
drafts brought less than plain rounds lately, none is. Where deciding takes a share of the round that counts,
rounds go on without: plain ones while nothing stirs, drafts while the text keeps its rate.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from engine.spec.drafter import RoundOutcome, RouteChoice
from engine.spec.prices import CHAIN, TREE, Curve
from engine.spec.staircut_candidates import LOOKUP, PLAIN, Candidate, candidate, choose, of_head
from engine.spec.staircut_cut import Terms
from engine.spec.staircut_doze import Doze
from engine.spec.staircut_heads import Head, Plan, StepHead
from engine.spec.staircut_hold import Hold
from engine.spec.staircut_learn import Mean, Rests
from engine.spec.staircut_lookup import LookupArm
from engine.spec.staircut_prices import LivePrices
from engine.spec.staircut_yield import WakeYields, Yield
from engine.spec.tree import MAX_NODES, DraftTree

PROBE = "probe"
ROUTED, WITHOUT_HEAD = "routed rounds", "rounds without a head draft"  # counters
DOZING = "dozing: nothing paid lately"
_NO_PLAN = Plan(0.0, 0, 0)
_SHARED_ROUNDS = 6  # that a head's catching up is shared by
_MOST_LATE = 0.1  # of a plain round: what was timed may have recorded passes
_OWN_SHARE = 0.01  # of a pass: what a decision may take that leaves it as it is
_FOR_GOOD = 1 << 30  # rounds
_HEAD_GAIN = 1.08  # what a round with a draft must promise over a plain one


class StairCut:
    """See the module; one lives as long as its engine, so that costs and rates outlast a text.

    Args:
        prices: of verify passes on the engine's own backend.
        lookup: the cheap source, asked every round.
        heads: those that take time, in no order.
        nodes: the most nodes besides the anchor.
        skip: leave the head's draft out while a copy runs and the lookup alone promises more.
        whole: take every candidate at its largest size instead.
        counts: raised by what the router did, by the names of the switches' counters.
        clock: seconds.
    """

    name = "staircut"

    def __init__(
        self,
        prices: LivePrices,
        *,
        lookup: LookupArm | None = None,
        heads: Sequence[Head] = (),
        nodes: int = MAX_NODES - 1,
        skip: bool = True,
        whole: bool = False,
        counts: Counter[str] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._prices = prices
        self._lookup = lookup
        self._heads = tuple(heads)
        self._nodes = nodes
        self._skip = skip
        self._whole = whole
        self._counts = Counter() if counts is None else counts
        self._clock = clock
        self._learning = True
        self._context = 0
        self._rests = Rests()
        self._with_head, self._rows = False, 1  # the round that was settled last
        self._began_s: float | None = None  # when the round that was settled last began
        self._named_ms = 0.0  # its draft and verify
        self._head_ms = 0.0
        self._look_factor = 1.0
        self._found_some = False  # by the lookup, in this text
        # Tokens a ms of a round without a draft, at the level of the prices.
        self._plain_value = 1.0
        self._own = Mean()  # ms that a decision takes, the head's draft left out
        self._asked = False  # for this round; a text's last one has no room for a draft
        self._doze = Doze()
        self._hold = Hold()
        self._holding = False  # in the present round
        self._yield = Yield()
        self._wakes = WakeYields()
        self._last_held: StepHead | None = None
        self._asked_head: Head | None = None
        self._steps = 0
        self.read_bytes = 0  # of the last proposal
        self.resting = False
        self.choice = self._dozing = RouteChoice(PLAIN, 0, 1.0, 0.0, prices.source)

    def freeze(self, *, frozen: bool = True) -> None:
        """Hold everything that outlives a text or comes from a clock; equal texts then get equal decisions.

        What belongs to one text goes on being learned from its tokens; no head is probed.
        """
        self._learning = not frozen
        for arm in (*self._heads, *((self._lookup,) if self._lookup else ())):
            arm.learning = self._learning

    def begin(self, prompt: Sequence[int]) -> None:
        """A new text of these committed tokens."""
        if self._doze.rounds and self._learning:
            for head in self._heads:
                head.ripe(self._doze.rounds)
            self._observe(*self._doze.priced(learn=True))
        if self._learning:
            self._rests.begin()
        self._context = len(prompt)
        self._began_s = self._asked_head = None
        self._holding = self._found_some = False
        self._hold.begin()
        self._yield.begin()
        self._wakes.begin()
        self._doze.begin()
        if self._lookup:
            self._lookup.begin(prompt)
        for head in self._heads:
            head.begin(prompt)
        self.resting = False
        if self._own.samples and not self._whole:
            self._start()

    def _start(self) -> None:
        """Let the first rounds do what pays in texts of this kind: draft, or let rounds pass."""
        prices, level = self._prices.curves(self._context), self._prices.level
        rest_ms = self._rests.head_ms / level
        plain_value = self._plain_value = 1.0 / (prices[0][1] + self._plain_rest_ms / level)
        longest = _FOR_GOOD
        for head in self._heads:
            plan = head.planned(prices, rest_ms, level, self._nodes)
            if plan.value > plain_value * self._least_gain(head):
                if head is self._last_held:
                    round_ms = prices[0][plan.rows] + rest_ms
                    round_ms += head.cost_ms(plan.steps, prices[0][1] * level) / level
                    self._start_held(head, plan, round_ms * level)
                return
            if self._learning:
                extra = self._extra(head, head.probe(plan), prices)
                longest = min(longest, head.wait(extra, promise=plan.value / plain_value))
        self._rest(longest)

    def _start_held(self, head: StepHead, plan: Plan, round_ms: float) -> None:
        head.worth()
        per_ms = 1.0 / self._prices.level
        choice = RouteChoice(
            head.name,
            plan.steps,
            plan.value * per_ms * round_ms,
            plan.value * per_ms,
            self._prices.source,
            gain=plan.value / self._plain_value,
        )
        self._hold.start(head, plan.steps, choice, self._own.ms / round_ms)

    def propose(self, anchor: int, limit: int) -> DraftTree | None:
        """The best cut of the best candidate, or None for a plain round."""
        self.read_bytes = 0
        self._asked = True
        hold = self._hold
        if hold.on:
            self._holding = True
            tree = hold.propose(anchor, min(limit, self._nodes), self._context)
            self.read_bytes = hold.read_bytes
            self.choice = hold.choice if tree is not None else self._dozing
            return tree
        now_s = self._clock()
        missed = self._doze.rounds
        if hold.tokens:
            if self._lookup:
                self._lookup.follow(hold.anchor, hold.tokens)
            hold.tokens.clear()
            self._observe(*hold.priced())
        elif missed:
            self._observe(*self._doze.priced(learn=self._learning))
        elif self._began_s is not None and self._learning:
            rest_ms = (now_s - self._began_s) * 1e3 - self._named_ms
            self._rests.learn(rest_ms, rows=self._rows, with_head=self._with_head)
        self._began_s = now_s
        self._head_ms = 0.0
        limit = min(limit, self._nodes)
        prices, level = self._prices.curves(self._context), self._prices.level
        terms = Terms(prices, (self._rests.looked_ms + self._own.ms) / level, limit)
        plain_value = self._plain_value = 1.0 / (prices[0][1] + self._plain_rest_ms / level)
        plain_ms = prices[0][1] * level + self._plain_rest_ms
        self._yield.plain(plain_ms, self._rests.head_ms)
        self._wakes.plain(plain_ms, self._rests.looked_ms)
        if limit < 1:
            return self._take((), plain_value, "no room")
        looked = self._look(anchor, limit)
        found = () if looked is None else (candidate(LOOKUP, *looked, terms, whole=self._whole),)
        at_hand = max(plain_value, found[0].cut.value) if found else plain_value
        head, plan, skipped = self._choose_head(at_hand, terms, missed)
        if head is None:
            awake_ms = prices[0][1] + (self._rests.plain_ms + self._own.ms) / level
            least = 0.0 if self._whole else 1.0 / awake_ms
            return self._take(found, plain_value, skipped, least=least)
        self._asked_head, self._steps = head, plan.steps
        drafted = head.draft(anchor, plan.steps, limit, self._context, self._clock)
        self._head_ms = head.draft_ms
        self.read_bytes = head.read_bytes
        cost_ms = head.cost_ms(plan.steps, prices[0][1] * level)
        terms = Terms(prices, (self._rests.head_ms + cost_ms) / level, limit)
        if looked is not None:
            found = (candidate(LOOKUP, *looked, terms, whole=self._whole),)
        if drafted is not None:
            found += of_head(
                head, drafted, looked, self._look_factor, found, terms, whole=self._whole
            )
        return self._take(found, plain_value, skipped)

    def settle(self, done: RoundOutcome) -> None:
        """Learn from what the round committed."""
        self._counts[ROUTED] += 1
        asked, self._asked = self._asked, False
        if self._holding:
            self._holding = False
            self._context += len(done.tokens)
            self._hold.settle(done)
            if self._learning:
                self._yield.add(len(done.tokens), done.draft_ms + done.verify_ms)
                if self._yield.loses:
                    self._hold.end()
            return
        begun_s = self._clock()
        for head in self._heads:
            head.settle(done)
        if self._lookup:
            self._lookup.settle(done)
        head_ms = self._head_ms if asked else 0.0
        rows = self._rows = len(done.tree)
        # A pass behind a decision finds colder caches than those of the rounds that do without.
        kind = CHAIN if done.tree.is_chain else TREE
        if self._learning and self._own.ms < _OWN_SHARE * done.verify_ms:
            self._prices.observe(kind, rows, self._context, done.verify_ms)
        self._context += len(done.tokens)
        self._with_head = head_ms > 0.0
        if asked and self.choice.probe and self._learning:
            taken = (done.draft_ms + done.verify_ms) * self._plain_value / self._prices.level
            self._asked_head.probed(taken - 1.0, paid=len(done.tokens) >= taken)
        if self._learning and self._with_head:
            self._yield.add(len(done.tokens), head_ms + done.verify_ms)
        elif self._learning:
            self._wakes.add(len(done.tokens), done.draft_ms + done.verify_ms)
        self._go_on(done)
        own_ms = max(0.0, done.draft_ms - head_ms + (self._clock() - begun_s) * 1e3)
        verify_ms = done.verify_ms
        if not self._with_head:  # what a pass takes longer behind a decision belongs to its rest
            curves = self._prices.curves(self._context)
            verify_ms = curves[kind == TREE][rows] * self._prices.level
        self._named_ms = head_ms + verify_ms + own_ms
        if self._learning and asked and self._began_s is not None:
            self._own.learn(own_ms)

    def pass_by(self, anchor: int, token: int, verify_ms: float) -> None:
        """A round that was dozed through; what is worth a look ends the doze, some rounds later."""
        self._counts[ROUTED] += 1
        doze, lookup = self._doze, self._lookup
        if doze.took(anchor, token, verify_ms):
            tokens = doze.taken(self._clock())
            self._context += len(tokens)
            if lookup:
                lookup.follow(doze.anchor, tokens)
                if self._learning:
                    self._wakes.pause(len(tokens))
                if self._wakes_up():
                    doze.wake()
            self.resting = doze.on

    def _go_on(self, done: RoundOutcome) -> None:
        """Let the next rounds do as this one did, where deciding anew costs more than it may bring."""
        choice, head = self.choice, self._asked_head
        if self._with_head:
            if (
                isinstance(head, StepHead)
                and choice.candidate == head.name
                and not (choice.probe or self._whole or self._found_some)
            ):
                if self._learning:
                    self._last_held = head
                round_ms = choice.expected_tokens / choice.tokens_per_ms
                self._hold.start(head, self._steps, choice, self._own.ms / round_ms)
            return
        if len(done.tokens) == 1 and not self._wakes_up():
            probed = self._heads if self._learning else ()
            self._rest(min((head.rounds_left for head in probed), default=_FOR_GOOD))

    def _rest(self, longest: int) -> None:
        """Let rounds pass, at most so many, until something is worth a look."""
        self._wakes.begin()
        plain_ms = self._prices.curves(self._context)[0][1] * self._prices.level
        if self._doze.end(own_ms=self._own.ms, plain_ms=plain_ms, longest=longest):
            value = 1.0 / (plain_ms + self._plain_rest_ms)
            self._dozing = RouteChoice(PLAIN, 0, 1.0, value, self._prices.source, DOZING)
            self.choice, self.resting = self._dozing, True

    def _wakes_up(self) -> bool:
        """Whether so much stood before that a look may bring something, which the next rounds tell."""
        lookup = self._lookup
        return lookup is not None and lookup.stirs and self._wakes.worth(sure=lookup.sure)

    def _look(self, anchor: int, limit: int) -> tuple[DraftTree, Sequence[float]] | None:
        """The lookup's tree and its chances."""
        proposal = self._lookup.look(anchor, limit) if self._lookup else None
        if proposal is None or self._lookup is None:
            return None
        self._found_some = True
        self._look_factor = self._lookup.factor(proposal)
        return proposal.tree, self._lookup.chances(proposal)

    def _choose_head(
        self, at_hand: float, terms: Terms, missed: int
    ) -> tuple[Head | None, Plan, str]:
        """(the head to ask, its plan, why none is asked, or why this one though it does not pay)."""
        heads, prices, limit = self._heads, terms.prices, terms.limit
        if not heads:
            return None, _NO_PLAN, "no head"
        level = self._prices.level
        rest_ms = self._rests.head_ms / level
        plan, head = _NO_PLAN, heads[0]
        for each in heads:
            planned = each.planned(prices, rest_ms, level, limit)
            if planned.value > plan.value:
                plan, head = planned, each
        if self._whole:
            return head, plan._replace(steps=head.most_steps), ""
        if self._skip and self._lookup and self._lookup.copying and at_hand >= plan.value:
            self._counts[WITHOUT_HEAD] += 1
            return None, _NO_PLAN, "a copy runs"
        pays = plan.value > self._plain_value * self._least_gain(head) and not self._yield.loses
        if pays:
            head.worth()
        else:
            self._yield.pause(1 + missed)
        if self._learning:
            for each in heads:
                if (pays and each is head) or not each.ripe(1 + missed):
                    continue
                planned = each.planned(prices, rest_ms, level, limit)
                promise = planned.value / self._plain_value
                other = each.probe(planned)
                if each.due(self._extra(each, other, prices), rival=pays, promise=promise):
                    return each, other, PROBE
        return (head, plan, "") if pays else (None, _NO_PLAN, "a draft does not pay")

    def _least_gain(self, head: Head) -> float:
        """What a round with a draft must promise over a plain one; the rounds to come share a catching up."""
        late_ms = head.catch_up_ms(self._context) / (_SHARED_ROUNDS * self._prices.level)
        return _HEAD_GAIN + min(late_ms * self._plain_value, _MOST_LATE)

    def _extra(self, head: Head, plan: Plan, prices: tuple[Curve, Curve]) -> float:
        """How much longer than a plain round one with this draft takes, as a share of the plain round."""
        plain_ms = prices[0][1] * self._prices.level
        more_ms = (prices[0][plan.rows] - prices[0][1]) * self._prices.level
        more_ms += head.cost_ms(plan.steps, plain_ms) + head.catch_up_ms(self._context)
        return more_ms / (plain_ms + self._plain_rest_ms)

    def _take(
        self, found: tuple[Candidate, ...], plain_value: float, skipped: str, *, least: float = 0.0
    ) -> DraftTree | None:
        """Choose among the candidates and keep the choice for whoever looks."""
        probe = skipped == PROBE
        self.choice, tree = choose(
            found,
            plain_value,
            per_ms=1.0 / self._prices.level,
            source=self._prices.source,
            least=least,
            skipped="" if probe else skipped,
            probe=probe,
        )
        return tree

    def _observe(self, rows: int, verify_ms: float, times: int = 1) -> None:
        """Learn from the passes that nothing was decided for; one stands for all."""
        for _ in range(times if self._learning else 0):
            self._prices.observe(CHAIN, rows, self._context, verify_ms)

    @property
    def _plain_rest_ms(self) -> float:
        """What a plain round takes beside its pass."""
        return self._doze.rest.ms if self._doze.rest.samples else self._rests.plain_ms
