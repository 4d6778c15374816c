# SPDX-License-Identifier: MIT OR Apache-2.0
"""The router that spends exactly as many verify rows as pay.

Every round it cuts each candidate (lookup tree, the head's tree and its greedy line, both merged) at the size
that maximises

    V(n) = (sum of the n largest acceptance chances + 1) / (price of n + 1 rows + draft_ms + rest_ms)

and verifies the best; 0 nodes is a plain round. A price is the whole verify pass with the commit it carries, so
that no commit is added; draft_ms is the learned cost of the head's draft, and rest_ms what remains of a whole
round: nothing is counted twice. A head is asked only when its own record beats what is at hand.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine.spec.drafter import RoundOutcome, RouteChoice
from engine.spec.prices import CHAIN, TREE, Curve
from engine.spec.staircut_cut import Cut, Terms, best_cut, chances_of, likeliest_line
from engine.spec.staircut_doze import Doze
from engine.spec.staircut_heads import Head, Plan
from engine.spec.staircut_lookup import LookupArm
from engine.spec.staircut_merge import best_value, joint_chances, shared_line
from engine.spec.staircut_prices import LivePrices
from engine.spec.tree import MAX_NODES, DraftTree
from engine.spec.tree_builder import merge

PLAIN, LOOKUP = "plain", "lookup"
PROBE = "probe"
ROUTED, WITHOUT_HEAD = "routed rounds", "rounds without a head draft"  # counters
DOZING = "dozing: nothing paid lately"
_REST_SHARE = 0.1
_REST_FARTHEST = 3.0
_REST_WARM = 3  # the least of so many samples comes first
_MERGE_GAIN = 1.02  # what a merged tree must promise before it is built


class Candidate(NamedTuple):
    """A tree at its best size."""

    cut: Cut
    name: str
    tree: DraftTree | None  # None: the anchor alone


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
        self._rest_ms = 0.0
        self._rests = 0
        self._began_s: float | None = None  # when the round that was settled last began
        self._named_ms = 0.0  # its draft and verify
        self._head_ms = 0.0
        self._look_factor = 1.0
        self._plain_value = (
            1.0  # tokens a ms of a round without a draft, at the level of the prices
        )
        self._own_ms = 0.0  # what a round of the router's own takes, heads left out
        self._asked = False  # for this round; a text's last one has no room for a draft
        self._doze = Doze()
        self.read_bytes = 0  # of the last proposal
        self.choice = self._dozing = RouteChoice(PLAIN, 0, 1.0, 0.0, (), prices.source)

    def freeze(self, *, frozen: bool = True) -> None:
        """Hold everything that outlives a text or comes from a clock; equal texts then get equal decisions.

        What belongs to one text goes on being learned from its tokens; no head is probed.
        """
        self._learning = not frozen
        for arm in (*self._heads, *((self._lookup,) if self._lookup else ())):
            arm.learning = self._learning

    def begin(self, prompt: Sequence[int]) -> None:
        """A new text of these committed tokens."""
        self._context = len(prompt)
        self._began_s = None
        self._doze.begin()
        if self._lookup:
            self._lookup.begin(prompt)
        for head in self._heads:
            head.begin(prompt)

    def propose(self, anchor: int, limit: int) -> DraftTree | None:
        """The best cut of the best candidate, or None for a plain round."""
        self.read_bytes = 0
        self._asked = True
        if self._doze.start(anchor):
            self.choice = self._dozing
            return None
        now_s = self._clock()
        missed = self._doze.rounds
        if missed:
            self._wake()
        elif self._began_s is not None and self._learning:
            self._learn_rest((now_s - self._began_s) * 1e3 - self._named_ms)
        self._began_s = now_s
        self._head_ms = 0.0
        limit = min(limit, self._nodes)
        prices = self._prices.curves(self._context)
        terms = Terms(prices, self._rest_ms / self._prices.level, limit)
        self._plain_value = 1.0 / (prices[0][1] + terms.spent_ms)
        found: list[Candidate] = []
        if limit < 1:
            return self._take(found, terms, "no room")
        looked = self._look(anchor, limit)
        if looked is not None:
            self._consider(found, LOOKUP, *looked, terms)
        head, plan, skipped = self._choose_head(found, terms, missed)
        if head is None:
            return self._take(found, terms, skipped)
        begun_s = self._clock()
        drafted = head.draft(anchor, plan.steps, limit, self._clock)
        self._head_ms = (self._clock() - begun_s) * 1e3
        self.read_bytes = head.read_bytes
        cost_ms = head.cost_ms(plan.steps, prices[0][1] * self._prices.level)
        terms = terms._replace(spent_ms=terms.spent_ms + cost_ms / self._prices.level)
        found.clear()
        if looked is not None:
            self._consider(found, LOOKUP, *looked, terms)
        if drafted is not None and skipped == PROBE:
            # What is not verified teaches little: a probe is verified as planned.
            found.clear()
            terms = terms._replace(limit=min(limit, plan.rows - 1))
            cut = best_cut(head.chances, drafted.parents, *terms, whole=True)
            found.append(Candidate(cut, head.name, drafted))
        elif drafted is not None:
            self._consider_head(found, head, drafted, looked, terms)
        return self._take(found, terms, skipped)

    def settle(self, done: RoundOutcome) -> None:
        """Learn from what the round committed."""
        self._counts[ROUTED] += 1
        asked, self._asked = self._asked, False
        if self._doze.asleep:  # no head drafted
            self._context += len(done.tokens)
            self._doze.add(done.tokens)
            return
        for head in self._heads:
            head.settle(done)
        if not asked:
            self._head_ms = 0.0
        begun_s = self._clock()
        if self._lookup:
            self._lookup.settle(done)
        if self._learning:
            kind = CHAIN if done.tree.is_chain else TREE
            self._prices.observe(kind, len(done.tree), self._context, done.verify_ms)
        self._context += len(done.tokens)
        self._named_ms = self._head_ms + done.verify_ms
        if self._learning and asked:
            own_ms = done.draft_ms - self._head_ms + (self._clock() - begun_s) * 1e3
            self._own_ms = _blend(self._own_ms, max(own_ms, 0.0))
        plain_ms = self._prices.curves(self._context)[0][1] * self._prices.level
        paid = len(done.tokens) > 1 or bool(self._head_ms and not self.choice.probe)
        if self._doze.end(paid=paid, own_share=self._own_ms / plain_ms):
            round_ms = plain_ms + max(0.0, self._rest_ms - self._own_ms)
            self._dozing = RouteChoice(
                PLAIN, 0, 1.0, 1.0 / round_ms, (), self._prices.source, DOZING
            )

    def _look(self, anchor: int, limit: int) -> tuple[DraftTree, Sequence[float]] | None:
        """The lookup's tree and its chances."""
        proposal = self._lookup.look(anchor, limit) if self._lookup else None
        if proposal is None or self._lookup is None:
            return None
        self._look_factor = self._lookup.factor(proposal)
        return proposal.tree, self._lookup.chances(proposal)

    def _choose_head(
        self,
        found: list[Candidate],
        terms: Terms,
        missed: int,
    ) -> tuple[Head | None, Plan, str]:
        """(the head to ask, its plan, why none is asked, or why this one though it does not pay)."""
        none = Plan(0.0, 0, 0)
        if not self._heads:
            return None, none, "no head"
        prices, rest_ms, limit = terms
        plain_value = 1.0 / (prices[0][1] + rest_ms)
        at_hand = max((each.cut.value for each in found), default=plain_value)
        level = self._prices.level
        plans = [(head.plan(prices, rest_ms, level, limit), head) for head in self._heads]
        plan, head = plans[0] if len(plans) == 1 else max(plans, key=lambda each: each[0].value)
        if self._whole:
            return head, plan._replace(steps=head.most_steps), ""
        if self._skip and self._lookup and self._lookup.copying and at_hand >= plan.value:
            self._counts[WITHOUT_HEAD] += 1
            return None, none, "a copy runs"
        if plan.value > plain_value:
            head.worth()
            for other_plan, other in plans:
                if other is head or not self._learning:
                    continue
                if other.due(self._extra(other, other_plan, prices), 1 + missed, rival=True):
                    return other, other_plan, PROBE
            return head, plan, ""
        for each_plan, each in plans:
            if self._learning and each.due(self._extra(each, each_plan, prices), 1 + missed):
                return each, each_plan, PROBE
        return None, none, "a draft does not pay"

    def _extra(self, head: Head, plan: Plan, prices: tuple[Curve, Curve]) -> float:
        """How much longer than a plain round one with this draft takes, as a share of the plain round."""
        plain_ms = prices[0][1] * self._prices.level
        more_ms = (prices[0][plan.rows] - prices[0][1]) * self._prices.level
        return (head.cost_ms(plan.steps, plain_ms) + more_ms) / (plain_ms + self._rest_ms)

    def _consider(
        self,
        found: list[Candidate],
        name: str,
        tree: DraftTree,
        chances: Sequence[float],
        terms: Terms,
    ) -> Cut:
        cut = best_cut(chances, tree.parents, *terms, whole=self._whole)
        found.append(Candidate(cut, name, tree))
        return cut

    def _consider_head(
        self,
        found: list[Candidate],
        head: Head,
        drafted: DraftTree,
        looked: tuple[DraftTree, Sequence[float]] | None,
        terms: Terms,
    ) -> None:
        """Add the head's candidates: its tree, the line in a tree with branches, the merge with the lookup."""
        chances = head.chances
        cut = self._consider(found, head.name, drafted, chances, terms)
        if not drafted.is_chain and not self._whole:
            line = likeliest_line(chances, drafted.parents)
            chain = drafted.subset(line)
            of_line = [1.0, *(chances[node] for node in line)]
            self._consider(found, f"{head.name} line", chain, of_line, terms)
        if looked is None or self._whole or not cut.nodes or not found[0].cut.nodes:
            return
        other, other_chances = looked
        joint, scale = joint_chances(chances, other_chances, shared_line(drafted, other))
        at_hand = max(each.cut.value for each in found)
        if best_value(joint, terms) <= at_hand * _MERGE_GAIN:
            return
        factors = {
            drafted.sources[-1]: head.calibration.factor * scale,
            other.sources[-1]: self._look_factor * scale,
        }
        merged = merge(drafted, other)
        of_merged = chances_of(merged, factors)
        name = f"{head.name}+{LOOKUP}"
        self._consider(found, name, merged, of_merged, terms)

    def _take(
        self,
        found: list[Candidate],
        terms: Terms,
        skipped: str,
    ) -> DraftTree | None:
        """Choose among the candidates and keep the choice for whoever looks."""
        per_ms = 1.0 / self._prices.level
        plain_value = 1.0 / (terms.prices[0][1] + terms.spent_ms)
        best: Candidate | None = None
        for each in found:
            if each.cut.nodes and (best is None or each.cut.value > best.cut.value):
                best = each
        alternatives = [
            (name, cut.nodes, cut.value * per_ms)
            for cut, name, _ in found
            if best is None or name != best.name
        ]
        cut, name, tree = best or Candidate(Cut(plain_value, 0, 1.0, []), PLAIN, None)
        if best:
            alternatives.append((PLAIN, 0, plain_value * per_ms))
        self.choice = RouteChoice(
            name,
            cut.nodes,
            cut.expected,
            cut.value * per_ms,
            tuple(alternatives),
            self._prices.source,
            "" if skipped == PROBE else skipped,
            skipped == PROBE,
            left_out=0 if tree is None else len(tree) - 1 - cut.nodes,
            gain=cut.value / self._plain_value,
        )
        if tree is None or cut.nodes == len(tree) - 1:
            return tree
        return tree.subset(cut.order[: cut.nodes])

    def _learn_rest(self, rest_ms: float) -> None:
        self._rests += 1
        rest_ms = max(rest_ms, 0.0)
        if self._rests <= _REST_WARM:
            self._rest_ms = rest_ms if self._rests == 1 else min(rest_ms, self._rest_ms)
        else:
            self._rest_ms = _blend(self._rest_ms, rest_ms)

    def _wake(self) -> None:
        """Let the lookup catch up on what was written meanwhile."""
        if self._lookup:
            anchor = DraftTree.plain(self._doze.anchor)
            written = tuple(self._doze.tokens)
            self._lookup.settle(RoundOutcome(anchor, (0,), written, 0.0, 0.0))
        self._doze.woken()


def _blend(mean: float, new: float) -> float:
    """A running mean that an outlier moves little."""
    return mean + _REST_SHARE * (min(new, _REST_FARTHEST * mean) - mean) if mean else new
