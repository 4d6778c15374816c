# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a bench is asked and what it answers."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from engine.errors import UsageError
from engine.hardware import MOST_THREADS
from engine.measure.rounds import CONTEXT_SPAN, SUITES
from engine.measure.shapes import Shape
from engine.spec.tree import MAX_NODES

MOST_TURNS = 50  # a budget gives no more either


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """What to measure. `rows` belong to the verify suite, `prefill_tokens` to the prefill suite.

    Every case gets `turns` turns, more while `budget_s` is not used up, fewer when they would take longer than
    `case_limit_s` (its row's n then says how many there were).
    """

    shape: Shape
    suites: tuple[str, ...] = SUITES
    rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    prefill_tokens: tuple[int, ...] = (256, 1024)
    threads: int = 1
    peers: tuple[str, ...] = ()
    weight_format: str = "nvfp4"
    context_tokens: int = 32
    turns: int = 5
    budget_s: float = 20.0
    case_limit_s: float = 120.0
    seed: int = 0

    def check(self) -> None:
        """UsageError for values that measure nothing."""
        _require(
            self.suites and set(self.suites) <= set(SUITES),
            "suite",
            self.suites,
            f"{', '.join(SUITES)}, or policies or plan alone",
        )
        _require(
            self.rows and all(1 <= rows <= MAX_NODES for rows in self.rows),
            "rows",
            self.rows,
            f"numbers from 1 to {MAX_NODES}",
        )
        limit = self.shape.config.context_tokens
        _require(
            self.prefill_tokens and all(1 <= n <= limit for n in self.prefill_tokens),
            "prefill tokens",
            self.prefill_tokens,
            f"numbers from 1 to {limit}",
        )
        _require(
            1 <= self.threads <= MOST_THREADS,
            "threads",
            self.threads,
            f"a number from 1 to {MOST_THREADS}",
        )
        longest = limit - CONTEXT_SPAN
        _require(
            1 <= self.context_tokens <= longest,
            "context",
            self.context_tokens,
            f"1 to {longest} tokens",
        )
        _require(
            1 <= self.turns <= MOST_TURNS, "turns", self.turns, f"a number from 1 to {MOST_TURNS}"
        )
        _require(0 <= self.budget_s < math.inf, "budget", self.budget_s, "0 seconds or more")
        _require(
            0 < self.case_limit_s < math.inf,
            "case limit",
            self.case_limit_s,
            "seconds above 0",
        )

    @property
    def cases(self) -> tuple[tuple[str, int], ...]:
        """(suite, rows) in the order they are measured; rows are tokens in the prefill suite."""
        rows = {"decode": (1,), "verify": self.rows, "prefill": self.prefill_tokens}
        return tuple((s, n) for s in SUITES if s in self.suites for n in dict.fromkeys(rows[s]))

    @property
    def capacity(self) -> int:
        """Positions a contender must have room for."""
        rounds = self.context_tokens + CONTEXT_SPAN
        return max(rounds, *self.prefill_tokens) if "prefill" in self.suites else rounds


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One case of one contender; `peer` is None for this engine.

    `n` counts timed rounds. `tokens_per_s` counts rows, as if all were kept. `gflops` counts the matrix
    products. `read_gbps` is None for prefill, where bytes do not bound the time.
    """

    suite: str
    rows: int
    threads: int
    ms_median: float
    ms_min: float
    ms_max: float
    read_gbps: float | None
    roof_gbps: float | None
    gflops: float
    peak_gflops: float | None
    tokens_per_s: float
    peer: str | None
    n: int
    weight_format: str
    shape: str
    context_tokens: int
    bytes_per_round: int | None
    samples_ms: tuple[float, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class BenchReport:
    """All rows of a run, what they were measured on, and what was left out and why."""

    rows: tuple[BenchRow, ...]
    shape_note: str
    backend: str
    turns: int
    seconds: float
    roof_samples_gbps: tuple[float, ...]
    peak_samples_gflops: tuple[float, ...]
    barrier_samples_ns: tuple[float, ...]
    peer_versions: dict[str, str]
    machine: dict[str, Any]
    notices: tuple[str, ...]

    def to_json(self, *, samples: bool = False) -> dict[str, Any]:
        """The report as plain values; `samples` keeps every round's time in its row."""
        values = asdict(self)
        if not samples:
            for row in values["rows"]:
                del row["samples_ms"]
        return values


def _require(holds: object, name: str, value: object, accepted: str) -> None:
    if not holds:
        given = ", ".join(map(str, value)) if isinstance(value, tuple) else value
        raise UsageError(
            f"{name.capitalize()} {given} cannot be measured.", next_step=f"Use {accepted}."
        )
