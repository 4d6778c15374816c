# SPDX-License-Identifier: MIT OR Apache-2.0
"""What an A/B measured, before any judgement: blocks, tokens, paths taken, kernel times."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from engine.api_compare import (
    Changes,
    CompareBlock,
    CompareRequest,
    KernelDelta,
    SideFigures,
)
from engine.knob_kinds import Knob

BASE, CANDIDATE = "base", "candidate"
SIDES = (BASE, CANDIDATE)
POOL = "all"
UNACCOUNTED = "unaccounted"


@dataclass(frozen=True, slots=True)
class Measured:
    """One answer of one side.

    counters: how often each path was taken. operations_ms: time by operation, summed over the rounds; empty
    where the backend does not time them.
    """

    block: CompareBlock
    token_ids: tuple[int, ...]
    counters: Mapping[str, int] = field(default_factory=dict)
    operations_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Setting:
    """What is compared, and where.

    settles: a flip makes something anew, an untimed answer has to follow it. drafts_alike: both sides draft by
    the same switches, so that what the base learned holds for both. learning_s: what learns is warmed for so
    many seconds before it is held, and over all prompts once at least.
    """

    switches: tuple[Knob, ...]  # whose values differ between the sides
    base: Changes  # values that differ from their defaults
    candidate: Changes
    reloads: bool
    model_name: str
    model_path: str
    weight_format: str
    threads: int
    settles: bool = False
    drafts_alike: bool = True
    learning_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Noise:
    """Log ratios of the base against itself, and in words where they come from."""

    log_ratios: tuple[float, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """All runs of an A/B: `measured` are the timed pairs from index 1, `others` warm-ups and the like."""

    request: CompareRequest
    setting: Setting
    measured: tuple[Measured, ...]
    others: tuple[Measured, ...]
    noise: Noise | None
    stopped: str  # why it ended early, empty where it did not
    whole: int  # pairs that are complete, by their index

    @property
    def metric(self) -> str:
        """The primary metric, fixed by the declared classes of the switches before anything is timed.

        A switch that changes what is proposed changes the tokens a round commits, so that a longer round may be
        the faster one: there the time of a token is compared. Everything else is compared by the round.
        """
        proposes = any(knob.bits == "proposes-only" for knob in self.setting.switches)
        return "ms_per_token" if proposes else "ms_per_round"

    def complete(self) -> tuple[Measured, ...]:
        """The timed runs of pairs that were run to their end."""
        return tuple(each for each in self.measured if each.block.pair_index <= self.whole)

    def workloads(self) -> tuple[str, ...]:
        """Workloads in the order they first ran, warm-ups included."""
        names = [each.block.workload for each in (*self.others, *self.measured)]
        return tuple(dict.fromkeys(names))

    def blocks(self) -> tuple[CompareBlock, ...]:
        """The blocks of the complete pairs."""
        return tuple(each.block for each in self.complete())

    def texts(self, workload: str, side: str) -> set[str]:
        """Hashes of every text of this side, warm-ups included."""
        runs = (each.block for each in (*self.others, *self.measured))
        return {b.tokens_sha256_12 for b in runs if (b.workload, b.side) == (workload, side)}

    def counters(self, side: str) -> dict[str, int]:
        """Counts of the paths of one side over its complete pairs, or its warm-ups where there is none."""
        total: dict[str, int] = {}
        for each in self.complete() or self.others:
            if each.block.side == side:
                for name, count in each.counters.items():
                    total[name] = total.get(name, 0) + count
        return total


def pooled(blocks: Iterable[CompareBlock], metric: str) -> float | None:
    """One figure of several blocks: sums over sums, None where there is nothing to divide by.

    metric: ms_per_round, ms_per_token or tokens_per_round.
    """
    spent, rounds, tokens = 0.0, 0, 0
    for block in blocks:
        spent += math.fsum(block.round_ms)
        rounds += block.rounds
        tokens += round_tokens(block)
    over, under = {
        "ms_per_round": (spent, rounds),
        "ms_per_token": (spent, tokens),
        "tokens_per_round": (tokens, rounds),
    }[metric]
    return over / under if under else None


def round_tokens(block: CompareBlock) -> int:
    """Tokens that rounds gave: the first one of an answer comes from the prompt pass."""
    return max(0, block.tokens - 1)


def side_figures(evidence: Evidence, side: str, knobs: Changes) -> SideFigures | None:
    """The sums of one side; None where nothing complete was timed."""
    blocks = [block for block in evidence.blocks() if block.side == side]
    rounds = sum(block.rounds for block in blocks)
    if not rounds:
        return None
    tokens = sum(round_tokens(block) for block in blocks)
    spent_ms = math.fsum(ms for block in blocks for ms in block.round_ms)
    drafted = sum(block.drafted_tokens for block in blocks)
    accepted = sum(block.accepted_tokens for block in blocks)
    bytes_read = sum(block.bytes_per_round * block.rounds for block in blocks)
    decode_s = math.fsum(round_tokens(b) / b.decode_tps for b in blocks if b.decode_tps)
    return SideFigures(
        ms_per_round=spent_ms / rounds,
        tokens_per_round=tokens / rounds,
        ms_per_token=spent_ms / tokens if tokens else None,
        decode_tps=tokens / decode_s if decode_s else None,
        acceptance_pct=100 * accepted / drafted if drafted else None,
        read_gbps=bytes_read / spent_ms / 1e6 if bytes_read and spent_ms else None,
        rounds=rounds,
        tokens=tokens,
        knobs=knobs,
        engaged=tuple(sorted(evidence.counters(side).items())),
    )


def kernel_deltas(evidence: Evidence) -> tuple[KernelDelta, ...]:
    """Operations by the size of their difference, then the rest of the round; empty where none was timed."""
    means: list[dict[str, float]] = []
    for side in SIDES:
        runs = [each for each in evidence.complete() if each.block.side == side]
        rounds = sum(each.block.rounds for each in runs)
        if not rounds or not all(each.operations_ms for each in runs):
            return ()
        total: dict[str, float] = {}
        for each in runs:
            for name, spent in each.operations_ms.items():
                total[name] = total.get(name, 0.0) + spent
        mean = {name: spent / rounds for name, spent in total.items()}
        whole = math.fsum(ms for each in runs for ms in each.block.round_ms) / rounds
        mean[UNACCOUNTED] = whole - math.fsum(mean.values())
        means.append(mean)
    base, candidate = means
    rows = [
        KernelDelta(name, before, after, after - before)
        for name in dict.fromkeys((*base, *candidate))
        for before, after in [(base.get(name, 0.0), candidate.get(name, 0.0))]
    ]
    rows.sort(key=lambda row: (row.name == UNACCOUNTED, -abs(row.delta_ms)))
    return tuple(rows)
