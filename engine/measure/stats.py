# SPDX-License-Identifier: MIT OR Apache-2.0
"""Statistics of paired measurements: is the candidate slower, by how much, and what could have been seen.

Values are natural logarithms of candidate over base, one a pair. Needs numpy alone; the tests hold the results
against scipy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

ALPHA = 0.05
POWER = 0.8
EXACT_PAIRS = 14  # 16,384 sign patterns; above, a seeded sample of them
BOOTSTRAP_PAIRS = 10  # below, a bootstrap interval is too narrow to show
_DRAWS = 20_000
_TIE = 1e-12  # two sums that differ by less, relative to their terms, are equal


def shown_p(p: float) -> str:
    """A p in words: two digits, and nothing below what matters: "p 0.031", "p < 0.001"."""
    return f"p {p:.2g}" if p >= 0.001 else "p < 0.001"


def signflip_p(values: Sequence[float], *, seed: int = 0) -> float:
    """Two-sided p of the mean under random signs: the share of sign patterns at least as far from zero.

    Exact up to EXACT_PAIRS values: every one of the 2^n patterns. Above, (hits + 1) / (draws + 1) over seeded
    draws (Phipson and Smyth 2010), so that p is never zero. Raises ValueError without values.
    """
    array = _array(values)
    if len(array) <= EXACT_PAIRS:
        sums = np.zeros(1)
        for value in array:
            sums = np.concatenate((sums + value, sums - value))
        return float(np.mean(_as_far(sums, array)))
    signs = np.random.default_rng(seed).choice((-1.0, 1.0), size=(_DRAWS, len(array)))
    return float((1 + np.count_nonzero(_as_far(signs @ array, array))) / (_DRAWS + 1))


def median_interval(
    values: Sequence[float], *, confidence: float = 0.95
) -> tuple[float, float] | None:
    """Interval of the median from order statistics, exact for any distribution; None below 6 values at 95 %.

    Each of the n values lies below the median with probability 1/2: the k-th smallest and largest enclose it
    with probability 1 - 2 P(Bin(n, 1/2) < k). The largest such k is taken.
    """
    ordered = np.sort(_array(values))
    n, below, k = len(ordered), 0.0, 0
    while k < n // 2:
        below += math.comb(n, k) / 2**n
        if 2 * below > 1 - confidence:
            break
        k += 1
    return (float(ordered[k - 1]), float(ordered[n - k])) if k else None


def bootstrap_interval(
    values: Sequence[float], *, confidence: float = 0.95, seed: int = 0, draws: int = 4000
) -> tuple[float, float] | None:
    """Percentile bootstrap interval of the median, to show and never to judge by; None below 10 values."""
    array = _array(values)
    if len(array) < BOOTSTRAP_PAIRS:
        return None
    picks = np.random.default_rng(seed).integers(0, len(array), size=(draws, len(array)))
    medians = np.median(array[picks], axis=1)
    low, high = np.quantile(medians, ((1 - confidence) / 2, (1 + confidence) / 2))
    return float(low), float(high)


def noise_floor(values: Sequence[float], pairs: int, *, seed: int = 0, draws: int = 4000) -> float:
    """|median| that 95 of 100 runs of `pairs` pairs stay below when nothing differs.

    `values` are those of an A against A run; which side came first is chance there, so each draw takes one of
    them with a random sign. For normal pairs of standard deviation s it is 1.96 x 1.25 s / sqrt(pairs): 0.78 s
    for ten, where the sign-flip test alone asks for 0.72 s. So it adds little while the pairs are as noisy as
    those of A against A were, an effect of 1.3 s still passes both in 9 of 10 runs, and it holds a verdict back
    where few pairs happen to agree better than they can on this machine.
    """
    array = _array(values)
    random = np.random.default_rng(seed)
    drawn = random.choice(array, size=(draws, pairs))
    drawn = drawn * random.choice((-1.0, 1.0), size=drawn.shape)
    return float(np.quantile(np.abs(np.median(drawn, axis=1)), 1 - ALPHA))


def smallest_effect(spread: float, pairs: int) -> float:
    """Mean shift that `pairs` pairs of this standard deviation find in 4 of 5 runs at p <= 0.05.

    The paired t test's (t_0.975 + t_0.8) s / sqrt(n), which the sign-flip test comes close to.
    """
    if pairs < 2:
        return math.inf
    freedom = pairs - 1
    return (t_quantile(1 - ALPHA / 2, freedom) + t_quantile(POWER, freedom)) * spread / pairs**0.5


def shown_effect(floor: float, spread: float, pairs: int) -> float:
    """Shift whose median is beyond `floor` in 4 of 5 runs of pairs of this standard deviation."""
    return floor + NormalDist().inv_cdf(POWER) * (math.pi / 2 / pairs) ** 0.5 * spread


def pairs_for(effect: float, spread: float, *, most: int = 200) -> int | None:
    """Fewest pairs (6 or more) whose `smallest_effect` is at most `effect`; None above `most`."""
    for pairs in range(6, most + 1):
        if smallest_effect(spread, pairs) <= abs(effect):
            return pairs
    return None


def spread_of(values: Sequence[float]) -> float:
    """Standard deviation about the mean (n - 1 in the denominator); 0 for a single value."""
    array = _array(values)
    return float(np.std(array, ddof=1)) if len(array) > 1 else 0.0


def tukey_marks(values: Sequence[float]) -> tuple[str, ...]:
    """ "", mild or far for each value: beyond 1.5 or 3 interquartile ranges of the quartiles."""
    array = _array(values)
    low, high = np.quantile(array, (0.25, 0.75))
    beyond = np.maximum(low - array, array - high)
    reach = high - low
    return tuple(
        "far" if out > 3 * reach else "mild" if out > 1.5 * reach else "" for out in beyond
    )


def signs_of(values: Sequence[float]) -> str:
    """One character a value: + above zero, - below, = equal."""
    return "".join("+" if value > 0 else "-" if value < 0 else "=" for value in values)


def percent(log_ratio: float) -> float:
    """A log ratio as percent of the base."""
    return 100.0 * math.expm1(log_ratio)


def t_quantile(probability: float, freedom: int) -> float:
    """Quantile of Student's t: exact for 1 and 2 degrees, else the Cornish-Fisher expansion about the normal.

    Abramowitz and Stegun 26.7.5; within 1 % of the true value from 3 degrees up for probabilities to 0.975.
    """
    if freedom == 1:
        return math.tan(math.pi * (probability - 0.5))
    if freedom == 2:
        centred = 2 * probability - 1
        return centred * (2 / (1 - centred**2)) ** 0.5
    z = NormalDist().inv_cdf(probability)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum(term / freedom**order for order, term in enumerate(terms))


def _as_far(sums: np.ndarray, values: np.ndarray) -> np.ndarray:
    tolerance = _TIE * float(np.abs(values).sum())
    return np.abs(sums) >= abs(float(values.sum())) - tolerance


def _array(values: Sequence[float]) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array) or not np.isfinite(array).all():
        raise ValueError("statistics need at least one finite value")
    return array
