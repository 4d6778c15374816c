# SPDX-License-Identifier: MIT OR Apache-2.0
"""Policies on a shape with synthetic weights: rounds follow a drawn text that a drafter half knows.

Synthetic weights write no text, so acceptance is set and not found: each drafted token is the text's own with a
given probability, drawn by seed, position and depth. The router is told that probability, as a calibrated
head would tell it, and finds the cut by the prices of the machine.
"""

from __future__ import annotations

import random
import statistics
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from engine.errors import UsageError
from engine.knobs import KnobSet
from engine.measure.policies import PLAIN, ROUTER, PolicyReport, Prompt, run_policies
from engine.measure.price_run import measure_rounds
from engine.model.backend import VERIFY_ROWS, Backend
from engine.spec.drafter import Drafter, RoundOutcome
from engine.spec.prices import CHAIN, FIRST_CLASS_TOKENS, TREE, PriceTable
from engine.spec.staircut import StairCut
from engine.spec.staircut_heads import BlockHead
from engine.spec.staircut_prices import LivePrices
from engine.spec.tree import DraftTree

FIXED_NODES = (1, 3, 7, 15, 31)
PRICED_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_COMMIT = "QWEN38_COMMIT_IN_VERIFY"


@dataclass(frozen=True, slots=True)
class ForcedRequest:
    """What to measure. `rows` are priced; the router sees a piecewise linear curve through them."""

    accept: tuple[float, ...] = (0.5, 0.65, 0.8)
    rows: tuple[int, ...] = PRICED_ROWS
    context_tokens: int = 32
    tokens: int = 64
    turns: int = 2
    seed: int = 0

    def check(self) -> None:
        """UsageError for values that measure nothing."""
        if not self.accept or not all(0.0 < share < 1.0 for share in self.accept):
            raise UsageError(
                "An acceptance is a share between 0 and 1.",
                next_step="Write --accept 0.5,0.65,0.8.",
            )
        if not self.rows or not all(1 <= rows <= VERIFY_ROWS for rows in self.rows):
            raise UsageError(
                "These row counts cannot be priced.",
                next_step=f"Use numbers from 1 to {VERIFY_ROWS}.",
            )
        if self.turns < 1 or self.tokens < 2 or self.context_tokens < 1:
            raise UsageError(
                "Policies are compared on 1 turn, 2 tokens and a context of 1 token, or more.",
                next_step="Leave --turns, --tokens and --context out.",
            )

    @property
    def capacity(self) -> int:
        """Positions the backend must have room for."""
        return (
            max(self.context_tokens + self.tokens, 2 * self.context_tokens + 256) + 2 * VERIFY_ROWS
        )


@dataclass(frozen=True, slots=True)
class ForcedCase:
    """One acceptance: what the router settled on, and how it stands to the fixed lengths."""

    accept: float
    cut_nodes: int  # the median over its rounds
    plain_share: float
    report: PolicyReport


@dataclass(frozen=True, slots=True)
class ForcedReport:
    """chain_ms: price by rows. state_bytes: read and written each round, by whether commits ride in the verify.

    commit_ms: the median round at the rows of the middle case's cut, by the same.
    """

    chain_ms: dict[int, float]
    cases: tuple[ForcedCase, ...]
    state_bytes: dict[str, int]
    commit_ms: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """The report as plain values."""
        return asdict(self)


class KnownText:
    """A drafter that knows each token of the text with probability `accept`; drafting takes no time.

    Where the text stands is what `backend` has committed: a router tells nobody of the rounds it lets pass.
    """

    name = "known text"
    read_bytes = 0

    def __init__(
        self, backend: Backend, text: Sequence[int], accept: float, vocabulary: int, seed: int
    ) -> None:
        self._backend = backend
        self._text = text
        self._accept = accept
        self._vocabulary = vocabulary
        self._seed = seed
        self._first = 0  # positions before the text

    def begin(self, prompt: Sequence[int]) -> None:
        """The text follows this prompt."""
        self._first = len(prompt)

    def propose(self, anchor: int, limit: int) -> DraftTree | None:
        """A chain of `limit` tokens, as far as the text goes."""
        tokens, scores = [anchor], []
        at = self._backend.length - self._first  # the anchor's index in the text
        for depth in range(1, min(limit, len(self._text) - 1 - at) + 1):
            token = self._text[at + depth]
            key = (self._seed * 1_000_003 + at + depth) * VERIFY_ROWS + depth
            if random.Random(key).random() >= self._accept:
                token = (token + 1) % self._vocabulary
            tokens.append(token)
            scores.append(self._accept**depth)
        return DraftTree.chain(tokens, scores, self.name) if scores else None

    def settle(self, outcome: RoundOutcome) -> None:
        """Nothing to learn."""


class Cut:
    """A drafter's proposals at one length."""

    read_bytes = 0

    def __init__(self, drafter: Drafter, nodes: int) -> None:
        self._drafter, self._nodes = drafter, nodes
        self.name = f"{drafter.name} {nodes}"

    def begin(self, prompt: Sequence[int]) -> None:
        """A new text."""
        self._drafter.begin(prompt)

    def propose(self, anchor: int, limit: int) -> DraftTree | None:
        """At most `nodes` tokens."""
        return self._drafter.propose(anchor, min(limit, self._nodes))

    def settle(self, outcome: RoundOutcome) -> None:
        """Go on behind what was committed."""
        self._drafter.settle(outcome)


def run_forced(
    backend: Backend,
    knobs: KnobSet,
    request: ForcedRequest,
    *,
    on_progress: Callable[[str], None] = lambda line: None,
    cancel: threading.Event | None = None,
) -> ForcedReport:
    """Price rounds, then let the router and fixed lengths follow the text at each acceptance.

    Raises UsageError for a request that measures nothing, Cancelled when `cancel` is set.
    """
    request.check()
    chain = [(CHAIN, rows) for rows in sorted(set(request.rows))]
    on_progress("prices")
    prices = measure_rounds(
        backend,
        chain,
        request.context_tokens,
        turns=request.turns,
        seed=request.seed,
        cancel=cancel,
    )
    chain_ms = {rows: prices[CHAIN, rows] for _, rows in chain}
    table = PriceTable({FIRST_CLASS_TOKENS: {CHAIN: chain_ms, TREE: chain_ms}}, "measured now")
    source = random.Random(request.seed)
    vocabulary = backend.config.vocab_size
    prompt = tuple(source.randrange(vocabulary) for _ in range(request.context_tokens))
    text = tuple(source.randrange(vocabulary) for _ in range(request.tokens + VERIFY_ROWS + 2))
    cases = []
    for accept in request.accept:
        on_progress(f"acceptance {accept:g}")
        known = KnownText(backend, text, accept, vocabulary, request.seed)
        policies: dict[str, Drafter | None] = {PLAIN: None}
        policies |= {f"fixed {nodes}": Cut(known, nodes) for nodes in FIXED_NODES}
        policies[ROUTER] = StairCut(LivePrices(table), heads=(BlockHead(known),))
        report = run_policies(
            backend,
            policies,
            [Prompt("forced", prompt, text)],
            stop_ids=frozenset(),
            tokens=request.tokens,
            turns=request.turns,
            on_progress=on_progress,
            cancel=cancel,
        )
        cut = round(report.nodes_mean)
        cases.append(ForcedCase(accept, cut, report.plain_share["forced"], report))
    rows = 1 + cases[len(cases) // 2].cut_nodes
    state_bytes, commit_ms = _commits(backend, knobs, rows, request, cancel)
    return ForcedReport(chain_ms, tuple(cases), state_bytes, commit_ms)


def _commits(
    backend: Backend,
    knobs: KnobSet,
    rows: int,
    request: ForcedRequest,
    cancel: threading.Event | None,
) -> tuple[dict[str, int], dict[str, float]]:
    """(state bytes of a round, median round ms) with the commit in the verify pass and with one of its own."""
    read: dict[str, int] = {}
    samples: dict[str, list[float]] = {"in verify": [], "own pass": []}
    settings = {
        "in verify": knobs.changed({_COMMIT: "1"}),
        "own pass": knobs.changed({_COMMIT: "0"}),
    }
    for _ in range(request.turns):
        for name, setting in settings.items():
            backend.reset(speculate=False)
            backend.apply_knobs(setting)
            read[name] = backend.round_bytes(1, 0)
            taken = measure_rounds(
                backend, [(CHAIN, rows)], request.context_tokens, turns=1, cancel=cancel
            )
            samples[name].append(taken[CHAIN, rows])
    backend.reset(speculate=False)
    backend.apply_knobs(knobs)
    state = backend.written_bytes()
    # Weights are the same on both sides: what differs is how often the state is read.
    extra = read["own pass"] - read["in verify"]
    bytes_of = {"in verify": 2 * state, "own pass": 2 * state + extra}
    return bytes_of, {name: statistics.median(ms) for name, ms in samples.items()}
