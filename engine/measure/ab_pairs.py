# SPDX-License-Identifier: MIT OR Apache-2.0
"""From the rounds of a pair to its two figures: the same round on both sides, where nothing interrupted it.

Within a pair both sides write every answer several times, in turn. Round i of an answer does the same work each
time, so the repeats tell what it takes when nothing disturbs it, and the sides can be compared round by round:

1. The first SETTLING_ROUNDS rounds of an answer are left out: the drafter catches up on the prompt there, and
   a flip shows in them.
2. Times of a round in which the system took the processor away are left out. Such a round lasts longer by the
   time slices of other programs, several times its own length, which says nothing about either side.
3. A round counts by the median over what is left of its repeats, and only where both sides have some. A pair
   goes on repeating an answer while fewer than half of its rounds do (`wants_more`). Where even then fewer than
   LEAST_SHARE are left, as with rounds longer than a time slice, times that were interrupted count as well.
4. The figure of a side is the mean over those rounds, a prompt weighing as many rounds as its answer has; by
   the token, that mean over the tokens a round commits.

Medians are taken over repeats of one round alone, never over rounds, so that a change of a few rounds counts
for what it is. What is left out, and how often a pair repeats, does not depend on which side is the base:
exchanging the sides of a pair changes the sign of its log ratio and nothing else, which is what the sign-flip
test needs. The times themselves are never altered.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from engine.api_compare import CompareBlock, ComparePair
from engine.measure.ab_evidence import BASE, CANDIDATE, POOL, SIDES, round_tokens
from engine.measure.stats import tukey_marks

SETTLING_ROUNDS = 2
LEAST_SHARE = 0.25
MOST_TIMES = 3  # the planned repeats, on a busy machine
_WANTED_SHARE = 0.5
_HOPELESS_SHARE = 0.05
# Repeats when none are asked for: as many as give a side _ENOUGH_MS of rounds a pair.
_FEWEST, _MOST = 3, 9
_ENOUGH_MS = 600.0
_SLOW_MS = 5000.0  # a pass over the prompts that long is not repeated


def estimator_words(repeats: int) -> str:
    """What a pair's figure is, for the report and the CSV."""
    taken = "its time" if repeats == 1 else f"the median of its {repeats} or more repeats"
    return (
        f"mean of the rounds that both sides ran uninterrupted, each by {taken}, "
        f"without the first {SETTLING_ROUNDS} of an answer"
    )


def fitting_repeats(blocks: Iterable[CompareBlock]) -> int:
    """Odd number of repeats for one answer to each prompt; short answers need more of them."""
    pass_ms = math.fsum(
        statistics.median(block.round_ms) * block.rounds for block in blocks if block.round_ms
    )
    if pass_ms > _SLOW_MS:
        return 1
    wanted = math.ceil(_ENOUGH_MS / pass_ms) if pass_ms else _FEWEST
    return min(max(wanted, _FEWEST), _MOST) | 1


def wants_more(blocks: Sequence[CompareBlock], planned: int) -> bool:
    """Whether an answer should be repeated once more in this pair, which has it `planned` times or more.

    Not where hardly any round is left, because repeating would not help there, nor where nothing is repeated.
    """
    base, candidate = ([block for block in blocks if block.side == side] for side in SIDES)
    if planned == 1 or not base or not all(block.round_ms for block in blocks):
        return False
    left = min(np.mean(~np.isnan(times)) for times in _compared(base, candidate))
    return len(base) < MOST_TIMES * planned and bool(_HOPELESS_SHARE <= left < _WANTED_SHARE)


def interrupted_share(blocks: Iterable[CompareBlock]) -> float | None:
    """Part of all rounds in which the system took the processor away; None without rounds."""
    rounds = cut = 0
    for block in blocks:
        rounds += block.rounds
        cut += len(block.interrupted)
    return cut / rounds if rounds else None


def pairs_of(
    blocks: Iterable[CompareBlock], metric: str, workload: str = POOL
) -> tuple[ComparePair, ...]:
    """The pairs of a workload, or of all of them pooled, with outliers marked.

    metric: ms_per_round, ms_per_token or tokens_per_round. A pair that lacks a side of a workload is left out.
    """
    by_pair: dict[int, dict[str, dict[str, list[CompareBlock]]]] = {}
    for block in blocks:
        if workload in (POOL, block.workload):
            works = by_pair.setdefault(block.pair_index, {})
            sides = works.setdefault(block.workload, {side: [] for side in SIDES})
            sides[block.side].append(block)
    found = []
    for index, works in sorted(by_pair.items()):
        base, candidate = _figures(tuple(works.values()), metric)
        if base and candidate:
            first = next(iter(works.values()))[BASE][0]
            order = "AB" if first.order_in_pair == 0 else "BA"
            ratio = math.log(candidate / base)
            found.append(ComparePair(index, order, base, candidate, ratio, workload))
    if not found:
        return ()
    marks = tukey_marks([pair.log_ratio for pair in found])
    return tuple(replace(pair, outlier=mark) for pair, mark in zip(found, marks, strict=True))


def _figures(
    works: Sequence[dict[str, list[CompareBlock]]], metric: str
) -> tuple[float | None, float | None]:
    """(base, candidate) in the metric over the prompts of one pair; None where nothing can be divided."""
    spent, rounds, tokens = np.zeros(2), np.zeros(2), np.zeros(2)
    for sides in works:
        base, candidate = sides[BASE], sides[CANDIDATE]
        if not all(block.round_ms for block in (*base, *candidate)) or not (base and candidate):
            return None, None
        counts = np.array([_mean(b.rounds for b in side) for side in (base, candidate)])
        spent += counts * _round_means(base, candidate)
        rounds += counts
        tokens += [_mean(round_tokens(b) for b in side) for side in (base, candidate)]
    over, under = {
        "ms_per_round": (spent, rounds),
        "ms_per_token": (spent, tokens),
        "tokens_per_round": (tokens, rounds),
    }[metric]
    if not under.all():
        return None, None
    base_figure, candidate_figure = (over / under).tolist()
    return base_figure, candidate_figure


def _round_means(base: list[CompareBlock], candidate: list[CompareBlock]) -> np.ndarray:
    """Mean milliseconds of the compared rounds: float64 [2], base and candidate."""
    taken = _compared(base, candidate)
    if any(np.mean(~np.isnan(times)) < LEAST_SHARE for times in taken):
        taken = [_typical(side, interrupted=True) for side in (base, candidate)]
    return np.array([np.nanmean(times) for times in taken])


def _compared(base: list[CompareBlock], candidate: list[CompareBlock]) -> list[np.ndarray]:
    """Milliseconds of each round on either side, NaN where it does not count."""
    taken = [_typical(side) for side in (base, candidate)]
    if len(taken[0]) != len(taken[1]):
        return taken
    # Round i is the same work on both sides.
    missing = np.isnan(taken[0]) | np.isnan(taken[1])
    return [np.where(missing, np.nan, times) for times in taken]


def _typical(blocks: list[CompareBlock], *, interrupted: bool = False) -> np.ndarray:
    """Median over the repeats of each round behind the first ones, float64 [rounds], NaN where none counts."""
    rounds = min(block.rounds for block in blocks)
    first = min(SETTLING_ROUNDS, rounds // 2)
    times = np.array([block.round_ms[first:rounds] for block in blocks], dtype=np.float64)
    if not interrupted:
        for row, block in zip(times, blocks, strict=True):
            row[[i - first for i in block.interrupted if first <= i < rounds]] = np.nan
    ordered = np.sort(times, axis=0)  # NaN last
    left = np.count_nonzero(~np.isnan(ordered), axis=0)[None]
    low = np.take_along_axis(ordered, np.maximum(left - 1, 0) // 2, axis=0)
    high = np.take_along_axis(ordered, np.minimum(left // 2, len(ordered) - 1), axis=0)
    return ((low + high) / 2)[0]


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)
