# SPDX-License-Identifier: MIT OR Apache-2.0
"""Measures what a verify pass costs by rows, chain or tree, and context: the tables that routers price with.

A timed round is a pass and the commit of what it keeps, so that a pass carries the commit of the round before
as it does in service. A chain keeps the first half of its rows, a tree its leftmost path. Trees are balanced:
every node has two children, filled level by level.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.errors import Cancelled, UsageError
from engine.model.backend import MAX_DRAFT, PREFILL_CHUNK, VERIFY_ROWS, Backend
from engine.numbers import grouped
from engine.spec.block import BlockDrafter
from engine.spec.prices import CHAIN, FIRST_CLASS_TOKENS, KINDS, TREE, PriceTable

PRICE_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 28, 32)
PRICE_CONTEXTS = (1024, 4096)
TREES = "balanced, two children a node, filled level by level"
_LEAST_TREE = 3  # rows: fewer are a chain
_BURST_MS = 8.0  # of one case in one turn, where its rounds are that short
_BURST_ROUNDS = 16

# The most telling ones first: long rounds leave no time for all. Routers cut at these sizes, recorded by then.
_QUICK_ROWS = (
    *((CHAIN, 1), (CHAIN, 8), (CHAIN, 2), (CHAIN, 4), (TREE, 8), (CHAIN, 16), (CHAIN, 32)),
    *((CHAIN, 5), (CHAIN, 3), (CHAIN, 6), (CHAIN, 12), (CHAIN, 24)),
)
_DRAFT_CONTEXT = 16  # tokens
_QUICK_LONG_MS = 50.0
_QUICK_ROUNDS = 4
_QUICK_BUDGET_MS = 500.0
_QUICK_LIMIT_MS = 200.0


@dataclass(frozen=True, slots=True)
class PriceRequest:
    """Row counts and context classes to measure; the median of `turns` turns counts."""

    rows: tuple[int, ...] = PRICE_ROWS
    contexts: tuple[int, ...] = PRICE_CONTEXTS
    turns: int = 5
    seed: int = 0

    def check(self) -> None:
        """UsageError for values that make no table."""
        if not self.rows or not all(1 <= rows <= VERIFY_ROWS for rows in self.rows):
            raise UsageError(
                "These row counts make no table.", next_step=f"Use numbers from 1 to {VERIFY_ROWS}."
            )
        if not self.contexts or not all(
            tokens >= FIRST_CLASS_TOKENS and tokens & (tokens - 1) == 0 for tokens in self.contexts
        ):
            raise UsageError(
                "These context classes make no table.",
                next_step=f"Use powers of two from {FIRST_CLASS_TOKENS}, as in 1024,4096.",
            )
        if self.turns < 1:
            raise UsageError("A table needs 1 turn or more.", next_step="Leave --turns out.")

    @property
    def capacity(self) -> int:
        """Positions the backend must have room for."""
        return max(self.contexts) + _span(max(self.contexts)) + VERIFY_ROWS


def balanced_parents(rows: int) -> list[int]:
    """Parents of a balanced binary tree of `rows` nodes in depth-first pre-order."""
    parents: list[int] = []
    waiting = [(0, -1)]  # (number level by level, parent in pre-order)
    while waiting:
        number, parent = waiting.pop()
        at = len(parents)
        parents.append(parent)
        waiting.extend((child, at) for child in (2 * number + 2, 2 * number + 1) if child < rows)
    return parents


def measure_prices(
    backend: Backend,
    request: PriceRequest,
    *,
    on_progress: Callable[[str], None] = lambda line: None,
    cancel: threading.Event | None = None,
) -> dict[int, dict[str, dict[int, float]]]:
    """Milliseconds by context class, kind and rows; classes beyond the backend's capacity are left out.

    Raises:
        UsageError: a request that makes no table, or a backend with room for none of its classes.
        Cancelled: `cancel` was set; looked at between turns.
    """
    request.check()
    room = backend.capacity - VERIFY_ROWS
    contexts = [tokens for tokens in request.contexts if tokens + _span(tokens) // 2 <= room]
    if not contexts:
        raise UsageError(
            f"No context class fits the {backend.capacity} positions of this model.",
            next_step="Name smaller ones with --contexts.",
        )
    if left_out := [grouped(tokens) for tokens in request.contexts if tokens not in contexts]:
        on_progress(
            f"context classes left out: {', '.join(left_out)}; "
            f"{grouped(backend.capacity)} positions have no room"
        )
    cases = [(CHAIN, rows) for rows in request.rows]
    cases += [(TREE, rows) for rows in request.rows if rows >= _LEAST_TREE]
    cases.sort(key=lambda case: case[1])
    return {
        tokens: _table(
            measure_rounds(
                backend,
                cases,
                tokens,
                turns=request.turns,
                seed=request.seed,
                on_progress=on_progress,
                cancel=cancel,
            )
        )
        for tokens in contexts
    }


def measure_rounds(
    backend: Backend,
    cases: Sequence[tuple[str, int]],
    context_tokens: int,
    *,
    turns: int,
    seed: int = 0,
    on_progress: Callable[[str], None] = lambda line: None,
    cancel: threading.Event | None = None,
) -> dict[tuple[str, int], float]:
    """Median milliseconds of a round of each (kind, rows) around a context, the cases in turn.

    The sequence is empty afterwards. Raises Cancelled when `cancel` is set; looked at between turns of a case.
    """
    rounds = _Rounds(backend, context_tokens, seed)
    samples: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    for turn in range(turns):
        on_progress(f"context {context_tokens}, turn {turn + 1} of {turns}")
        for case in cases:
            if cancel is not None and cancel.is_set():
                raise Cancelled("The measurement was cancelled.", kept="No table was written.")
            samples[case] += rounds.burst(*case)
    backend.reset(speculate=False)
    return {case: statistics.median(ms) for case, ms in samples.items()}


def quick_prices(backend: Backend) -> PriceTable | None:
    """A rough table from a few rounds on an empty sequence, or None where a plain round exceeds 200 ms.

    Takes a quarter of a second where rounds are short, half a second where they are not, and what the capture
    of their passes takes, which is no part of a price. Row counts that it has no time for are priced by the
    slope of the last ones. The sequence is empty afterwards.
    """
    prices: dict[tuple[str, int], float] = {}
    spent_ms = 0.0
    for kind, rows in _QUICK_ROWS:
        if len(prices) > 1 and spent_ms > _QUICK_BUDGET_MS:
            break
        backend.reset(speculate=False)
        if rows > backend.capacity:
            continue
        prices[kind, rows], took_ms = _quick_ms(backend, kind, rows)
        spent_ms += took_ms
        if rows == 1 and prices[kind, rows] > _QUICK_LIMIT_MS:
            backend.reset(speculate=False)
            return None
    backend.reset(speculate=False)
    measured = len(prices)
    chain = sorted(rows for kind, rows in prices if kind == CHAIN)
    if chain[-1] < VERIFY_ROWS and len(chain) > 1:
        low, high = chain[-2:]
        slope = max(0.0, prices[CHAIN, high] - prices[CHAIN, low]) / (high - low)
        prices[CHAIN, VERIFY_ROWS] = prices[CHAIN, high] + slope * (VERIFY_ROWS - high)
    share = prices.pop((TREE, 8), prices.get((CHAIN, 8), 1.0)) / prices.get((CHAIN, 8), 1.0)
    for _, rows in [case for case in prices if case[1] >= _LEAST_TREE]:
        prices[TREE, rows] = prices[CHAIN, rows] * max(1.0, share)
    source = f"measured at load: {measured} row counts on an empty context"
    return PriceTable({FIRST_CLASS_TOKENS: _table(prices)}, source)


def quick_draft_ms(backend: Backend) -> tuple[float, float] | None:
    """(fixed part, each step) of a draft by the MTP head behind a few tokens, in ms.

    None without such a head, or where a draft exceeds 200 ms. The sequence is empty afterwards.
    """
    if not backend.config.mtp_layers or backend.capacity < _DRAFT_CONTEXT + 2 * MAX_DRAFT:
        return None
    backend.reset(speculate=True)
    backend.prefill([0] * _DRAFT_CONTEXT)
    backend.draft_steps(0, 1, 1)  # takes in what was read
    taken = []
    for steps in (1, MAX_DRAFT):
        taken.append(_quick_call_ms(lambda steps=steps: backend.draft_steps(0, steps, 1)))
    backend.reset(speculate=False)
    if max(taken) > _QUICK_LIMIT_MS:
        return None
    step_ms = max(0.0, taken[1] - taken[0]) / (MAX_DRAFT - 1)
    return max(0.0, taken[0] - step_ms), max(step_ms, taken[0] / (2 * MAX_DRAFT))


def quick_block_ms(backend: Backend) -> float | None:
    """A draft by the block drafter behind a few tokens, in ms; None without one. The sequence is empty then."""
    if backend.block is None or backend.capacity < _DRAFT_CONTEXT + VERIFY_ROWS:
        return None
    drafter = BlockDrafter(backend)
    backend.reset(speculate=True)
    backend.prefill([0] * _DRAFT_CONTEXT)
    taken = _quick_call_ms(lambda: drafter.propose(0, VERIFY_ROWS - 1))
    backend.reset(speculate=False)
    return taken


def _quick_call_ms(call: Callable[[], object]) -> float:
    """The least of a few calls behind one that records; of one that takes very long, its own time."""
    taken: list[float] = []
    while len(taken) < 1 + _QUICK_ROUNDS:
        begun = time.perf_counter()
        call()
        taken.append((time.perf_counter() - begun) * 1e3)
        if taken[-1] > _QUICK_LIMIT_MS:
            break
    return min(taken[1:] or taken)


def _quick_ms(backend: Backend, kind: str, rows: int) -> tuple[float, float]:
    """(the least of a few rounds behind two, or of long rounds one behind one; what all of them took).

    Rounds in which a graph was captured count for neither: there is one for each of the two sets of records.
    """
    ids, parents = [0] * rows, _parents(kind, rows)

    def has_room() -> bool:
        return backend.length + rows <= backend.capacity

    captures, least = _captures(backend), _round_ms(backend, ids, parents, 1)
    while has_room() and _captures(backend) > captures:
        captures, least = _captures(backend), _round_ms(backend, ids, parents, 1)
    rounds = 1 if least > _QUICK_LONG_MS else 1 + _QUICK_ROUNDS
    taken: list[float] = []
    while len(taken) < rounds and has_room():
        taken.append(_round_ms(backend, ids, parents, 1))
    return min(taken[1:] or taken or [least]), least + sum(taken)


def _captures(backend: Backend) -> int:
    return backend.engaged().get("graph captures", 0)


def _table(prices: dict[tuple[str, int], float]) -> dict[str, dict[int, float]]:
    """By kind and rows; a tree of one or two rows is a chain."""
    chain = {rows: ms for (kind, rows), ms in sorted(prices.items()) if kind == CHAIN}
    tree = {rows: ms for rows, ms in chain.items() if rows < _LEAST_TREE}
    tree |= {rows: ms for (kind, rows), ms in sorted(prices.items()) if kind == TREE}
    return dict(zip(KINDS, (chain, tree or dict(chain)), strict=True))


def _parents(kind: str, rows: int) -> list[int] | None:
    return balanced_parents(rows) if kind == TREE else None


def _leftmost(parents: Sequence[int]) -> int:
    """Nodes of the path that always takes the first child: 0, 1, 2, .. in pre-order."""
    nodes = 1
    while nodes < len(parents) and parents[nodes] == nodes - 1:
        nodes += 1
    return nodes


def _span(context_tokens: int) -> int:
    """Positions that a timed sequence may lie around its class."""
    return max(256, context_tokens // 8)


def _round_ms(
    backend: Backend, ids: Sequence[int], parents: Sequence[int] | None, keep: int
) -> float:
    begun = time.perf_counter()
    backend.verify(ids, parents)
    backend.commit(keep)
    return (time.perf_counter() - begun) * 1e3


class _Rounds:
    """Rounds of one backend around one context length, on random tokens."""

    def __init__(self, backend: Backend, context_tokens: int, seed: int) -> None:
        self._backend = backend
        span = _span(context_tokens)
        self._start = max(1, context_tokens - span // 2)
        self._end = min(context_tokens + span // 2, backend.capacity - VERIFY_ROWS)
        self._random = random.Random(seed)
        self._known: set[tuple[str, int]] = set()
        self._restart()

    def burst(self, kind: str, rows: int) -> list[float]:
        """Milliseconds of a few rounds, behind an untimed one, or two that record the passes."""
        for _ in range(1 if (kind, rows) in self._known else 2):
            self._round(kind, rows)
        self._known.add((kind, rows))
        taken: list[float] = []
        while not taken or (sum(taken) < _BURST_MS and len(taken) < _BURST_ROUNDS):
            taken.append(self._round(kind, rows))
        return taken

    def _round(self, kind: str, rows: int) -> float:
        if self._backend.length >= self._end:
            self._restart()
        parents = _parents(kind, rows)
        keep = (rows + 1) // 2 if parents is None else _leftmost(parents)
        return _round_ms(self._backend, self._ids(rows), parents, keep)

    def _restart(self) -> None:
        self._backend.reset(speculate=False)
        for at in range(0, self._start, PREFILL_CHUNK):
            self._backend.prefill(self._ids(min(PREFILL_CHUNK, self._start - at)))

    def _ids(self, count: int) -> list[int]:
        vocabulary = self._backend.config.vocab_size
        return [self._random.randrange(vocabulary) for _ in range(count)]
