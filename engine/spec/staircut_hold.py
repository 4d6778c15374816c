# SPDX-License-Identifier: MIT OR Apache-2.0
"""Where drafting pays, rounds that do as the last one did: deciding anew costs more than it brings."""

from __future__ import annotations

from engine.spec.drafter import RoundOutcome, RouteChoice
from engine.spec.staircut_heads import StepHead
from engine.spec.staircut_learn import middle_of
from engine.spec.tree import DraftTree

_OWN_SHARE = 0.006  # of a round with a draft that deciding may take
_LONGEST = 16  # rounds
_RATE_DROP, _RATE_RISE = 0.12, 0.08  # of a text's rate since the decision, that ask for a new one


class Hold:
    """Drafts of equally many steps by one head, for some rounds or until the text leaves it.

    What was written meanwhile is kept for whoever must catch up.
    """

    def __init__(self) -> None:
        self._ahead = 0
        self._head: StepHead | None = None
        self._steps = 0
        self._least_rate = self._most_rate = 0.0
        self._choice: RouteChoice | None = None
        self.choice: RouteChoice | None = None  # of the latest round
        self.read_bytes = 0  # of its draft
        self.anchor = -1  # of the first round that was held
        self.tokens: list[int] = []  # written since
        self._verify_ms: list[float] = []  # of passes over all steps

    def begin(self) -> None:
        """A new text."""
        self.end()
        self.tokens.clear()
        self._verify_ms.clear()

    def priced(self) -> tuple[int, float]:
        """(rows, ms) of a usual pass of the rounds that were held since this was asked; 0 ms where none was."""
        return self._steps + 1, middle_of(self._verify_ms)

    def end(self) -> None:
        """The next round is decided."""
        self._ahead = 0

    @property
    def on(self) -> bool:
        """Whether the next round is held."""
        return self._ahead > 0

    def start(self, head: StepHead, steps: int, choice: RouteChoice, own_share: float) -> None:
        """Hold a decision for so many rounds that deciding, `own_share` of one, takes 0.6 % of the time."""
        self._ahead = min(_LONGEST, int(own_share / _OWN_SHARE))
        self._head, self._steps, self._choice = head, steps, choice
        rate = head.rates.rate
        self._least_rate, self._most_rate = rate - _RATE_DROP, rate + _RATE_RISE

    def propose(self, anchor: int, limit: int, context: int) -> DraftTree | None:
        """The draft of a round that is held; None where the head has none, and the hold ends."""
        self._ahead -= 1
        if not self.tokens:
            self.anchor = anchor
        tree = self._head.draft_held(anchor, self._steps, limit, context)
        self.read_bytes = self._head.read_bytes
        choice = self._choice
        if tree is None:
            self._ahead = 0
        elif len(tree) - 1 != choice.nodes:
            choice = choice._replace(nodes=len(tree) - 1)
        self.choice = choice
        return tree

    def settle(self, done: RoundOutcome) -> None:
        """A round that was held ended."""
        tokens = done.tokens
        self.tokens += tokens
        if len(done.tree.tokens) == self._steps + 1:
            self._verify_ms.append(done.verify_ms)
        rate = self._head.follow(len(tokens) - 1, len(done.tree.tokens) - 1)
        if not self._least_rate <= rate <= self._most_rate:
            self._ahead = 0
