# SPDX-License-Identifier: MIT OR Apache-2.0
"""The lookup drafter as the router sees it: asked every round, calibrated where no learned rate scores it."""

from __future__ import annotations

from collections.abc import Sequence

from engine.spec.drafter import RoundOutcome
from engine.spec.lookup import LookupDrafter, LookupProposal
from engine.spec.lookup_rate import LookupRate
from engine.spec.staircut_cut import chances_of
from engine.spec.staircut_learn import Calibration, outcome


class LookupArm:
    """Proposals of one lookup drafter; `rate` is the one it was made with, so that it can be held."""

    def __init__(self, drafter: LookupDrafter, rate: LookupRate | None = None) -> None:
        self._drafter = drafter
        self._rate = rate
        self._calibration = Calibration()
        self._proposal: LookupProposal | None = None
        self._chances: Sequence[float] = ()
        self._learning = True

    @property
    def learning(self) -> bool:
        """Whether rates and calibration outlive the text."""
        return self._learning

    @learning.setter
    def learning(self, learning: bool) -> None:
        self._learning = learning
        if self._rate is not None:
            self._rate.learning = learning

    @property
    def copying(self) -> bool:
        """Whether the text has just followed a line that was looked up."""
        return self._drafter.copy_run > 0

    def begin(self, prompt: Sequence[int]) -> None:
        """A new text."""
        self._drafter.begin(prompt)
        self._calibration.begin()
        self._proposal = None

    def look(self, anchor: int, limit: int) -> LookupProposal | None:
        """This round's proposal, however little it promises."""
        self._proposal = self._drafter.look(anchor, limit)
        return self._proposal

    @property
    def stirs(self) -> bool:
        """Whether a look could find something in the text."""
        return self._drafter.stirs

    @property
    def sure(self) -> bool:
        """Whether as many of the last tokens stood before as are ever compared, or a store knows them."""
        return self._drafter.sure

    def follow(self, anchor: int, tokens: Sequence[int]) -> None:
        """Take in what rounds wrote that were not looked up for."""
        self._drafter.follow(anchor, tokens)

    def factor(self, proposal: LookupProposal) -> float:
        """What its scores are multiplied by: 1 where they rest on a learned rate."""
        return 1.0 if proposal.rho is not None else self._calibration.factor

    def chances(self, proposal: LookupProposal) -> Sequence[float]:
        """The acceptance chances of this round's proposal."""
        tree = proposal.tree
        self._chances = chances_of(tree, {tree.sources[-1]: self.factor(proposal)})
        return self._chances

    def settle(self, done: RoundOutcome) -> None:
        """Learn from what the round committed, whether or not the proposal was verified."""
        self._drafter.settle(done)
        proposal, self._proposal = self._proposal, None
        if proposal is None or proposal.rho is not None:
            return
        _, realised = outcome(proposal.tree, self._chances, done.tokens)
        self._calibration.learn(realised, proposal.expected, model=self._learning)
