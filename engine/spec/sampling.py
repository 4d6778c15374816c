# SPDX-License-Identifier: MIT OR Apache-2.0
"""Choosing the next token from a row of logits, greedily or by a draw keyed by seed and position.

The draw at a position depends on the seed, the position and the logits alone. A verify pass draws every row's
token this way and accepts a drafted token where the draw equals it, so the text, and its distribution, are
those of plain decoding whatever was drafted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.errors import NumericsError, UsageError

_MASK = (1 << 64) - 1
_LEAST_SEED = -(1 << 63)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a request samples; temperature 0 is greedy whatever the filters say."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    min_p: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        checks = (
            ("temperature", self.temperature, 0.0 <= self.temperature <= 100.0, "from 0 to 100"),
            ("top_p", self.top_p, 0.0 < self.top_p <= 1.0, "above 0, at most 1"),
            ("top_k", self.top_k, self.top_k >= 0, "0 (no limit) or more"),
            ("min_p", self.min_p, 0.0 <= self.min_p <= 1.0, "from 0 to 1"),
            ("seed", self.seed, _LEAST_SEED <= self.seed <= _MASK, "of at most 64 bits"),
        )
        for name, value, holds, accepted in checks:
            if not holds:
                raise UsageError(
                    f"{name} {value} is not accepted.", next_step=f"Use a value {accepted}."
                )

    @property
    def greedy(self) -> bool:
        """True when the largest logit is taken."""
        return self.temperature == 0.0


def uniform(seed: int, position: int) -> float:
    """The draw in [0, 1) of a position: splitmix64 of the position in the stream of the seed.

    The finaliser is Steele, Lea and Flood's (2014); 53 bits make the float.
    """
    state = (seed * 0x9E3779B97F4A7C15 + (position + 1) * 0xD1342543DE82EF95) & _MASK
    for _ in range(2):
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        state = mixed ^ (mixed >> 31)
    return (state >> 11) * 2.0**-53


def probabilities(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """The distribution a request draws from: float64 [V], sums to 1.

    Order: temperature, min_p (relative to the largest), top_k (ties at the limit stay), top_p (the smallest set
    of likeliest tokens that reaches it).
    """
    scaled = logits.astype(np.float64)
    scaled = (scaled - scaled.max()) / sampling.temperature
    weights = np.exp(scaled)
    if sampling.min_p > 0.0:
        weights[weights < sampling.min_p] = 0.0
    if 0 < sampling.top_k < len(weights):
        limit = np.partition(weights, len(weights) - sampling.top_k)[len(weights) - sampling.top_k]
        weights[weights < limit] = 0.0
    if sampling.top_p < 1.0:
        kept = np.flatnonzero(weights)
        order = kept[np.argsort(-weights[kept], kind="stable")]
        reached = np.cumsum(weights[order])
        last = int(np.searchsorted(reached, sampling.top_p * reached[-1]))
        weights[order[last + 1 :]] = 0.0
    return weights / weights.sum()


def choose(logits: np.ndarray, sampling: Sampling, position: int) -> int:
    """The token for `position` from its logits (float32 [V]).

    Greedy ties go to the lowest index. Raises NumericsError when a logit is NaN or +infinity, or all are
    -infinity.
    """
    best = int(np.argmax(logits))  # NaN counts as the largest
    if not np.isfinite(logits[best]):
        raise NumericsError(
            f"The logits contain {'NaN' if np.isnan(logits[best]) else 'an infinity'}.",
            kept="The text so far is kept.",
            next_step="Check the model folder: a weight is damaged or was converted wrongly.",
        )
    if sampling.greedy:
        return best
    reached = np.cumsum(probabilities(logits, sampling))
    token = int(
        np.searchsorted(reached, uniform(sampling.seed, position) * reached[-1], side="right")
    )
    # A tail of zero probabilities shares the last value: the draw must not fall behind it.
    return min(token, int(np.searchsorted(reached, reached[-1])))
