# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the router learns as it decodes: calibration, conditional acceptance by depth, cost of drafting.

Each keeps a slow mean that belongs to the model and the machine and outlives a text, and a quick one that
belongs to the text and starts from the slow one.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.spec.tree import DraftTree

_CALIBRATION_SHARE = 0.15  # of a new round in the text's calibration
_RATE_SHARE = 0.08  # of a new token in the text's acceptance rate, once there are enough
_MODEL_SHARE = 0.02  # of the same in the model's
_START_WEIGHT = 3.0  # tokens that the model's rate stands for at the start of a text
_TRUST = 0.5  # expected tokens that the model's calibration stands for
_HIGHEST_FACTOR = 2.0
_COST_SHARE = 0.3
_COST_WARM = 3  # the least of so many samples comes first
_COST_FARTHEST = 2.0
_DRIFT = 0.05  # of the way a depth that was not tried goes back to what the depth before it says


def model_share(samples: int) -> float:
    """What the newest of so many samples weighs in a mean that belongs to the model."""
    return max(_MODEL_SHARE, 1.0 / (samples + _START_WEIGHT))


class Calibration:
    """Realised over expected accepted tokens of one source of scores."""

    def __init__(self) -> None:
        self._model = 1.0
        self._trees = 0
        self._realised = self._expected = 0.0
        self.factor = 1.0

    def begin(self) -> None:
        """A new text."""
        self._realised = self._expected = 0.0
        self.factor = self._model

    def learn(self, realised: float, expected: float, *, model: bool) -> None:
        """One tree's accepted and expected tokens; `model` lets it outlive the text."""
        self._realised += _CALIBRATION_SHARE * (realised - self._realised)
        self._expected += _CALIBRATION_SHARE * (expected - self._expected)
        factor = (self._realised + _TRUST * self._model) / (self._expected + _TRUST)
        self.factor = min(factor, _HIGHEST_FACTOR)
        if model:
            self._trees += 1
            self._model += model_share(self._trees) * (self.factor - self._model)


class StepRates:
    """P(the token of depth d is accepted | all before it were), for drafts that take one step a token."""

    def __init__(self, most: int, *, start: float = 0.7) -> None:
        self._model = [start] * most
        self._text = list(self._model)
        self._seen = [0] * most
        self._model_seen = [0] * most

    def __len__(self) -> int:
        return len(self._text)

    def begin(self) -> None:
        """A new text."""
        self._text = list(self._model)
        self._seen = [0] * len(self._text)

    def chances(self, depth: int) -> list[float]:
        """Probability that the whole line is accepted down to depth 1, 2, .. `depth`."""
        chances, chance = [], 1.0
        for rate in self._text[:depth]:
            chance *= rate
            chances.append(chance)
        return chances

    def learn(self, accepted: int, tried: int, *, model: bool) -> None:
        """The first `accepted` of `tried` steps were right, and the next one, if tried, was wrong."""
        text = self._text
        for depth in range(min(accepted + 1, tried)):
            hit = 1.0 if depth < accepted else 0.0
            self._seen[depth] += 1
            share = max(_RATE_SHARE, 1.0 / (self._seen[depth] + _START_WEIGHT))
            text[depth] += share * (hit - text[depth])
            if model:
                self._model_seen[depth] += 1
                share = model_share(self._model_seen[depth])
                self._model[depth] += share * (hit - self._model[depth])
        if accepted == tried:
            for depth in range(max(1, tried), len(text)):
                before = max(self._model[depth - 1], 0.01)
                usual = min(1.0, text[depth - 1] * self._model[depth] / before)
                text[depth] += _DRIFT * (max(usual, text[depth]) - text[depth])


class Cost:
    """Milliseconds of one kind of draft, outliers held down; the first one, which records, does not count."""

    def __init__(self) -> None:
        self.samples = -1
        self.ms = 0.0

    @property
    def known(self) -> bool:
        """Whether one was timed."""
        return self.samples > 0

    def learn(self, ms: float) -> None:
        """One draft."""
        self.samples += 1
        if not self.samples:
            return
        if self.samples <= _COST_WARM:
            self.ms = ms if self.samples == 1 else min(ms, self.ms)
        else:
            self.ms += _COST_SHARE * (min(ms, _COST_FARTHEST * self.ms) - self.ms)


class StepCosts:
    """Milliseconds of a draft by its steps; steps that never ran follow from the nearest that did."""

    def __init__(self, most: int) -> None:
        self._costs = [Cost() for _ in range(most + 1)]
        self._ms: list[float | None] = [None] * (most + 1)

    def learn(self, steps: int, ms: float) -> None:
        """One draft of `steps` steps."""
        self._costs[steps].learn(ms)
        known = [(n, cost.ms) for n, cost in enumerate(self._costs) if cost.known]
        if not known:
            return
        for n in range(1, len(self._ms)):
            below = max((k for k in known if k[0] <= n), default=None)
            above = min((k for k in known if k[0] >= n), default=None)
            if below is None or above is None:
                near, near_ms = below or above or (steps, ms)
                # A draft has a part that does not grow with its steps; half of one step stands for it.
                self._ms[n] = near_ms * (n + 0.5) / (near + 0.5)
            elif below[0] == above[0]:
                self._ms[n] = below[1]
            else:
                share = (n - below[0]) / (above[0] - below[0])
                self._ms[n] = below[1] + share * (above[1] - below[1])

    def ms(self, steps: int) -> float | None:
        """The cost of `steps` steps, None before the first draft."""
        return self._ms[steps]


def outcome(tree: DraftTree, chances: Sequence[float], tokens: Sequence[int]) -> tuple[int, float]:
    """(accepted, realised) tokens of a tree, had it been verified whole, given the tokens that came.

    `accepted` counts the nodes that the tokens followed. Nodes below a path that all tokens followed are
    unknown: `realised` adds what their chances say, given the path.
    """
    parents, drafted = tree.parents, tree.tokens
    at = accepted = 0
    known = len(tokens)
    node, end = 1, len(parents)
    while node < end and accepted < known and parents[node] >= at:
        if parents[node] == at and drafted[node] == tokens[accepted]:
            accepted += 1
            at = node
        node += 1
    realised = float(accepted)
    if accepted == known and chances[at] > 0.0:
        below = 0.0
        for node in range(at + 1, end):
            if parents[node] < at:
                break
            below += chances[node]
        realised += below / chances[at]
    return accepted, realised
