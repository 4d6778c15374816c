# SPDX-License-Identifier: MIT OR Apache-2.0
"""The statistics of paired measurements, against scipy and against counting by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from engine.measure.stats import (
    bootstrap_interval,
    median_interval,
    noise_floor,
    pairs_for,
    percent,
    shown_p,
    signflip_p,
    signs_of,
    smallest_effect,
    spread_of,
    t_quantile,
    tukey_marks,
)

floats = st.floats(-1.0, 1.0, allow_subnormal=False)


def normal(n: int, seed: int, shift: float = 0.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(shift, 0.007, n)


@pytest.mark.parametrize("n", [2, 5, 6, 9, 12])
@pytest.mark.parametrize("shift", [0.0, 0.004])
def test_exact_signflip_is_scipys_permutation_test(n: int, shift: float) -> None:
    values = normal(n, n, shift)
    theirs = scipy_stats.permutation_test(
        (values,), np.mean, permutation_type="samples", n_resamples=np.inf, vectorized=True
    )
    assert signflip_p(values) == pytest.approx(theirs.pvalue, rel=1e-12)


@given(st.lists(floats, min_size=1, max_size=7))
def test_exact_signflip_counts_every_pattern(values: list[float]) -> None:
    limit = abs(math.fsum(values)) - 1e-12 * math.fsum(map(abs, values))
    patterns = list(itertools.product((1, -1), repeat=len(values)))
    hits = sum(
        abs(math.fsum(s * v for s, v in zip(signs, values, strict=True))) >= limit
        for signs in patterns
    )
    assert signflip_p(values) == pytest.approx(hits / len(patterns), abs=2 / len(patterns))


@pytest.mark.parametrize(
    ("p", "words"), [(0.03125, "p 0.031"), (0.001, "p 0.001"), (3e-05, "p < 0.001"), (1.0, "p 1")]
)
def test_a_small_p_is_shown_without_an_exponent(p: float, words: str) -> None:
    assert shown_p(p) == words


@pytest.mark.parametrize(("n", "p"), [(5, 0.0625), (6, 0.03125), (8, 0.0078125)])
def test_smallest_possible_p(n: int, p: float) -> None:
    assert signflip_p([0.01] * n) == p


def test_sampled_signflip_is_near_the_exact_value_and_repeats() -> None:
    values = normal(16, 3, 0.003)
    exact = scipy_stats.permutation_test(
        (values,), np.mean, permutation_type="samples", n_resamples=np.inf, vectorized=True
    ).pvalue
    assert signflip_p(values, seed=1) == pytest.approx(exact, abs=0.014)  # 4 standard errors
    assert signflip_p(values, seed=1) == signflip_p(values, seed=1)
    assert 0 < signflip_p([0.1] * 40) < 1e-4


def test_equal_sides_are_never_resolved() -> None:
    assert signflip_p([0.0] * 10) == 1.0


@pytest.mark.parametrize("n", range(1, 30))
def test_median_interval_has_the_binomial_coverage(n: int) -> None:
    interval = median_interval(list(range(n)))
    if n < 6:
        assert interval is None
        return
    low, high = interval
    k = int(low) + 1
    assert high == n - k
    assert 1 - 2 * scipy_stats.binom.cdf(k - 1, n, 0.5) >= 0.95
    assert 1 - 2 * scipy_stats.binom.cdf(k, n, 0.5) < 0.95


def test_bootstrap_interval_is_scipys_and_only_from_ten_pairs() -> None:
    values = normal(20, 5, 0.01)
    theirs = scipy_stats.bootstrap(
        (values,), np.median, method="percentile", n_resamples=4000, rng=np.random.default_rng(2)
    ).confidence_interval
    low, high = bootstrap_interval(values)
    assert low == pytest.approx(theirs.low, abs=6e-4)
    assert high == pytest.approx(theirs.high, abs=6e-4)
    assert bootstrap_interval(values[:9]) is None


@pytest.mark.parametrize("probability", [0.8, 0.9, 0.95, 0.975])
@pytest.mark.parametrize("freedom", [1, 2, 3, 5, 9, 19, 199])
def test_t_quantile(probability: float, freedom: int) -> None:
    expected = scipy_stats.t.ppf(probability, freedom)
    assert t_quantile(probability, freedom) == pytest.approx(expected, rel=0.01)


def test_smallest_effect_is_found_in_four_of_five_runs() -> None:
    random = np.random.default_rng(11)
    effect = smallest_effect(0.007, 10)
    found = [signflip_p(random.normal(effect, 0.007, 10)) <= 0.05 for _ in range(600)]
    assert 0.75 <= np.mean(found) <= 0.86


def test_pairs_for_is_the_first_number_that_suffices() -> None:
    needed = pairs_for(0.004, 0.007)
    assert smallest_effect(0.007, needed) <= 0.004 < smallest_effect(0.007, needed - 1)
    assert pairs_for(-0.004, 0.007) == needed
    assert pairs_for(0.5, 0.007) == 6
    assert pairs_for(1e-5, 0.007) is None
    assert smallest_effect(0.007, 1) == math.inf


def test_noise_floor_holds_back_95_of_100_medians() -> None:
    known = normal(400, 7)
    floor = noise_floor(known, 10)
    random = np.random.default_rng(8)
    medians = [abs(np.median(random.normal(0, 0.007, 10))) for _ in range(4000)]
    assert np.mean(np.asarray(medians) <= floor) == pytest.approx(0.95, abs=0.03)
    assert noise_floor(known, 40) < floor
    assert noise_floor([0.0, 0.0], 6) == 0.0


def test_tukey_marks_by_hand() -> None:
    # Quartiles 2 and 6: fences at -4 and 12, far ones at -10 and 18.
    values = [1, 2, 3, 4, 5, 6, 12.5, 0, 18.5]
    low, high = np.quantile(values, (0.25, 0.75))
    assert (low, high) == (2, 6)
    assert tukey_marks(values) == ("",) * 6 + ("mild", "", "far")
    assert tukey_marks([1.0]) == ("",)
    assert tukey_marks([2.0, 2.0, 2.0]) == ("", "", "")


def test_small_things() -> None:
    assert signs_of([0.1, -0.1, 0.0]) == "+-="
    assert percent(math.log(1.02)) == pytest.approx(2.0)
    assert spread_of([3.0]) == 0.0
    assert spread_of([1.0, 3.0]) == pytest.approx(2**0.5)


@pytest.mark.parametrize("values", [[], [math.nan], [0.1, math.inf]])
def test_no_value_or_one_that_is_not_finite_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        signflip_p(values)
