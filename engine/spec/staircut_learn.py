# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the router learns as it decodes: calibration, conditional acceptance by depth, cost of drafting.

Each keeps a slow mean that belongs to the model and the machine and outlives a text, and a quick one that
belongs to the text and starts from the slow one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine.spec.tree import MAX_NODES, DraftTree

_CALIBRATION_SHARE = 0.15  # of a new round in the text's calibration
_RATE_KEEP = 0.95  # of what was known of the text's acceptance, for every new token
_KEPT = [_RATE_KEEP**tries for tries in range(MAX_NODES + 1)]
_MODEL_SHARE = 0.02  # of a new token in the model's
_TEXT_SHARE = 0.1  # of a new text in what is usual
_USUAL_RATE = 0.8  # before there was a text
_MOST_BEND = 3.0  # logarithm of a depth's rate over that of the mean one
_SPREAD = 0.04  # variance of the rates of texts before there were any
_MOST_WEIGHT = 8.0
_START_WEIGHT = 3.0  # tokens that the model's rate stands for at the start of a text
_TRUST = 0.5  # expected tokens that the model's calibration stands for
_HIGHEST_FACTOR = 2.0
_COST_SAMPLES = 5
_MEAN_SHARE = 0.1
_MEAN_FARTHEST = 3.0
_MEAN_WARM = 3
_FADED = 0.05  # of what rounds that look something up take longer, a text


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
    """P(the token of depth d is accepted | all before it were), for drafts that take one step a token.

    Texts differ far more than depths do: a text has one rate, learned from every step, and the model gives its
    shape over the depths. At its start a text has the rate that is usual for its kind.
    """

    def __init__(self, most: int) -> None:
        self._model = [_USUAL_RATE] * most
        self._model_seen = [0] * most
        self._usual = _USUAL_RATE
        self._kind = 0
        # Texts, their rates' mean and variance.
        self._kinds: dict[int, tuple[int, float, float]] = {}
        self._weight = _START_WEIGHT  # of what is usual, in tokens
        self._bends = [1.0] * most
        self._hits = self._tries = 0.0
        self._counted = False  # whether this text tells what is usual
        # Outcomes of this text that the model has not learned from.
        self._waiting: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._model)

    @property
    def rate(self) -> float:
        """Of this text."""
        return (self._hits + self._weight * self._usual) / (self._tries + self._weight)

    @property
    def tries(self) -> float:
        """Steps of this text that tell its rate, the latest ones for the most."""
        return self._tries

    def begin(self, kind: int = 0, *, model: bool = True) -> None:
        """A new text; `kind` is anything by which texts may be told apart before they are written."""
        self._learn_model(model=model)
        kinds = self._kinds
        if self._counted:
            texts, usual, spread = kinds.get(self._kind, (1, self._usual, _SPREAD))
            share = max(_TEXT_SHARE, 1.0 / (texts + 1))
            off = self.rate - usual
            spread += share * (off * off - spread)
            kinds[self._kind] = texts + 1, usual + share * off, spread
        self._kind = kind
        self._weight = _START_WEIGHT
        if kind in kinds:
            _, usual, spread = kinds[kind]
            self._usual = usual
            # Tokens that a beta distribution of this spread stands for.
            alike = usual * (1.0 - usual) / max(spread, 1e-4) - 1.0
            self._weight = min(max(alike, _START_WEIGHT), _MOST_WEIGHT)
        elif kinds:
            self._usual = sum(usual for _, usual, _ in kinds.values()) / len(kinds)
        reached, tries, hits = 1.0, 0.0, 0.0
        for rate in self._model:
            tries += reached
            reached *= rate
            hits += reached
        level = math.log(_inside(hits / tries))
        bends = [math.log(_inside(rate)) / level for rate in self._model]
        self._bends = [min(max(bend, 1.0 / _MOST_BEND), _MOST_BEND) for bend in bends]
        self._hits = self._tries = 0.0
        self._counted = False

    def chances(self, depth: int) -> list[float]:
        """Probability that the whole line is accepted down to depth 1, 2, .. `depth`."""
        chances, chance, rate = [], 1.0, self.rate
        for bend in self._bends[:depth]:
            chance *= rate**bend
            chances.append(chance)
        return chances

    def follow(self, accepted: int, tried: int) -> float:
        """Learn for this text alone, and give its rate; what the outcome tells of the model waits."""
        self._waiting.append((accepted, tried))
        tries = tried if accepted == tried else accepted + 1
        keep = _KEPT[tries]
        hits = self._hits = self._hits * keep + accepted
        tried_so_far = self._tries = self._tries * keep + tries
        weight = self._weight = self._weight * keep
        return (hits + weight * self._usual) / (tried_so_far + weight)

    def learn(self, accepted: int, tried: int, *, model: bool) -> None:
        """The first `accepted` of `tried` steps were right, and the next one, if tried, was wrong."""
        self.follow(accepted, tried)
        self._learn_model(model=model)

    def _learn_model(self, *, model: bool) -> None:
        for accepted, tried in self._waiting if model else ():
            for depth in range(min(accepted + 1, tried)):
                self._counted = True
                self._model_seen[depth] += 1
                share = model_share(self._model_seen[depth])
                self._model[depth] += share * ((depth < accepted) - self._model[depth])
        self._waiting.clear()


def _inside(rate: float) -> float:
    return min(max(rate, 0.02), 0.98)


class Mean:
    """A running mean of milliseconds that an outlier moves little; first comes the least of some samples."""

    def __init__(self) -> None:
        self.ms = 0.0
        self.samples = 0

    def learn(self, ms: float) -> None:
        """One more."""
        self.samples += 1
        if self.samples <= _MEAN_WARM:
            self.ms = ms if self.samples == 1 else min(ms, self.ms)
        else:
            self.ms += _MEAN_SHARE * (min(ms, _MEAN_FARTHEST * self.ms) - self.ms)


class Rests:
    """What a round takes beside what is named of it, by how it drafts.

    A pass over a few rows is priced by one that runs again and again; one that comes now and then, behind a
    look, finds nothing of its own in the caches, which counts as rest.
    """

    def __init__(self) -> None:
        self._plain, self._looked, self._head = Mean(), Mean(), Mean()

    @property
    def plain_ms(self) -> float:
        """Of plain rounds; of those with a head's draft while there were none."""
        return self._plain.ms if self._plain.samples else self._head.ms

    @property
    def looked_ms(self) -> float:
        """Of rounds that verify what was looked up; of plain ones until some told."""
        return self._looked.ms if self._looked.samples >= _MEAN_WARM else self.plain_ms

    @property
    def head_ms(self) -> float:
        """Of rounds with a head's draft; of plain ones while there were none."""
        return self._head.ms if self._head.samples else self._plain.ms

    def learn(self, ms: float, *, rows: int, with_head: bool) -> None:
        """One more round, over so many rows."""
        kind = self._head if with_head else self._looked if rows > 1 else self._plain
        kind.learn(max(ms, 0.0))

    def begin(self) -> None:
        """A new text: what keeps looking from being tried fades."""
        self._looked.ms += _FADED * (self.plain_ms - self._looked.ms)


def middle_of(ms: list[float]) -> float:
    """The median of times, 0 without one; the list is empty afterwards."""
    middle = sorted(ms)[len(ms) // 2] if ms else 0.0
    ms.clear()
    return middle


class Cost:
    """Milliseconds of one kind of draft: a low sample of the last few, as one that records a pass is no price.

    The first one, which always records, does not count. `measured`: one that was timed before.
    """

    def __init__(self, measured: float | None = None) -> None:
        self.samples = -1 if measured is None else 1
        self.ms = measured or 0.0
        self._latest: list[float] = [] if measured is None else [measured]

    @property
    def known(self) -> bool:
        """Whether one was timed."""
        return self.samples > 0

    def learn(self, ms: float) -> None:
        """One draft."""
        self.samples += 1
        if not self.samples:
            return
        latest = self._latest
        latest.append(ms)
        if len(latest) > _COST_SAMPLES:
            del latest[0]
        self.ms = sorted(latest)[(len(latest) - 1) // 3]


class StepCosts:
    """Milliseconds of a draft by its steps, which take equally long behind a fixed part.

    `measured`: (fixed part, each step) in ms; without it half of one step stands for the fixed part, and
    nothing is known before the first draft. What drafts take scales both.
    """

    def __init__(self, measured: tuple[float, float] | None = None) -> None:
        self._fixed, self._step = measured or (0.5, 1.0)
        self._cost = Cost()
        self._scale = 1.0 if measured else 0.0

    def learn(self, steps: int, ms: float) -> None:
        """One draft of `steps` steps."""
        self._cost.learn(ms / (self._fixed + self._step * steps))
        if self._cost.known:
            self._scale = self._cost.ms

    def ms(self, steps: int) -> float | None:
        """The cost of `steps` steps, None before the first draft."""
        return self._scale * (self._fixed + self._step * steps) if self._scale else None


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
