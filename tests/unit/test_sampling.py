# SPDX-License-Identifier: MIT OR Apache-2.0
"""Sampling against a float64 oracle that keeps whole sorted lists, and the law of its draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import NumericsError, UsageError
from engine.spec.sampling import Sampling, choose, probabilities, uniform

TINY = 1e-12


def oracle(logits: list[float], sampling: Sampling) -> list[float]:
    """The distribution by definition: python floats, one filter after the other."""
    top = max(logits)
    weights = [math.exp((logit - top) / sampling.temperature) for logit in logits]
    weights = [w if w >= sampling.min_p else 0.0 for w in weights]
    if 0 < sampling.top_k < len(weights):
        limit = sorted(weights, reverse=True)[sampling.top_k - 1]
        weights = [w if w >= limit else 0.0 for w in weights]
    if sampling.top_p < 1.0:
        total, reached, kept = math.fsum(weights), 0.0, set()
        for index in sorted(range(len(weights)), key=lambda i: (-weights[i], i)):
            if reached >= sampling.top_p * total or weights[index] == 0.0:
                break
            kept.add(index)
            reached += weights[index]
        weights = [w if index in kept else 0.0 for index, w in enumerate(weights)]
    total = math.fsum(weights)
    return [w / total for w in weights]


def row(*values: float) -> np.ndarray:
    """Logits as the engine has them."""
    return np.array(values, np.float32)


@given(
    logits=st.lists(
        st.sampled_from([-3.0, -1.0, 0.0, 0.5, 1.25, 2.0, 4.0]), min_size=1, max_size=9
    ),
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    top_p=st.sampled_from([0.05, 0.37, 0.83, 1.0]),
    top_k=st.integers(0, 10),
    min_p=st.sampled_from([0.0, 0.011, 0.21, 1.0]),
)
def test_the_distribution_is_the_oracles(
    logits: list[float], temperature: float, top_p: float, top_k: int, min_p: float
) -> None:
    sampling = Sampling(temperature, top_p, top_k, min_p)
    got = probabilities(row(*logits), sampling)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, oracle(logits, sampling), rtol=1e-12, atol=TINY)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(1.0, seed=11),
        Sampling(0.6, top_p=0.8, seed=12),
        Sampling(1.3, top_k=5, seed=13),
        Sampling(0.9, min_p=0.1, seed=14),
        Sampling(0.8, 0.95, 6, 0.02, seed=15),
    ],
    ids=["plain", "top_p", "top_k", "min_p", "all"],
)
def test_draws_follow_the_distribution(sampling: Sampling) -> None:
    """Chi-square over 20,000 positions stays below its 99.99 % point (Wilson and Hilferty's formula)."""
    draws = 20_000
    logits = np.random.default_rng(5).normal(0, 1.5, 12).astype(np.float32)
    counts = np.bincount([choose(logits, sampling, p) for p in range(draws)], minlength=12)
    expected = np.array(oracle(logits.tolist(), sampling)) * draws
    assert not counts[expected == 0].any()
    held = expected > 0
    freedom = int(held.sum()) - 1
    statistic = float(((counts - expected)[held] ** 2 / expected[held]).sum())
    spread = 2 / (9 * freedom)
    assert statistic < freedom * (1 - spread + 3.719 * math.sqrt(spread)) ** 3


def test_the_seed_and_the_position_decide_alone() -> None:
    logits = np.random.default_rng(1).normal(0, 1, 50).astype(np.float32)
    sampling = Sampling(1.0, seed=3)
    forward = [choose(logits, sampling, p) for p in range(200)]
    backward = [choose(logits, sampling, p) for p in reversed(range(200))][::-1]
    assert forward == backward
    assert forward != [choose(logits, Sampling(1.0, seed=4), p) for p in range(200)]
    # Neighbouring seeds are not the same stream, shifted.
    assert forward[1:] != [choose(logits, Sampling(1.0, seed=4), p) for p in range(199)]


def test_the_draws_are_uniform_in_seed_and_position() -> None:
    draws = np.array([[uniform(seed, p) for p in range(300)] for seed in range(-3, 100)])
    assert ((draws >= 0) & (draws < 1)).all()
    assert len(np.unique(draws)) == draws.size
    for ordered in (draws.ravel(), draws.T.ravel()):
        counts = np.histogram(ordered, 64, (0, 1))[0]
        assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 114  # 99.99 % of 63 degrees
        assert abs(np.corrcoef(ordered[:-1], ordered[1:])[0, 1]) < 4 / math.sqrt(draws.size)


def test_all_equal_logits() -> None:
    logits = row(*[2.0] * 8)
    np.testing.assert_allclose(probabilities(logits, Sampling(1.0)), 1 / 8)
    np.testing.assert_allclose(probabilities(logits, Sampling(1.0, top_k=3)), 1 / 8)  # ties stay
    np.testing.assert_allclose(probabilities(logits, Sampling(1.0, min_p=1.0)), 1 / 8)
    got = probabilities(logits, Sampling(1.0, top_p=0.25))
    np.testing.assert_allclose(got, [0.5, 0.5] + [0] * 6)  # the lowest indices among equals


def test_a_token_ruled_out_is_never_drawn() -> None:
    logits = row(-np.inf, 1.0, -np.inf, 1.0, -np.inf)
    for sampling in (Sampling(1.0), Sampling(1.0, 0.9, 4, 0.1), Sampling(100.0, seed=2)):
        assert {choose(logits, sampling, p) for p in range(300)} == {1, 3}


def test_ties_at_the_limit_of_top_k_stay() -> None:
    got = probabilities(row(3, 1, 1, 0), Sampling(1.0, top_k=2))
    assert (got > 0).tolist() == [True, True, True, False]


def test_one_token_is_left_at_least() -> None:
    for sampling in (
        Sampling(1.0, top_p=1e-9),
        Sampling(1.0, top_k=1),
        Sampling(1e-3, 1e-9, 1, 1.0),
    ):
        assert probabilities(row(0, 5, 1), sampling).tolist() == [0, 1, 0]
    assert choose(row(7), Sampling(1.0, 0.5, 3, 0.5), 0) == 0


def test_extreme_logits_stay_finite() -> None:
    got = probabilities(row(-3e38, 3e38, 3e38), Sampling(0.001))
    assert got.tolist() == [0, 0.5, 0.5]


@pytest.mark.parametrize("draw", [0.0, 0.25, 0.5, 1 - 2.0**-53])
def test_the_ends_of_the_draw_hit_tokens_with_weight(
    draw: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.spec.sampling.uniform", lambda seed, position: draw)
    logits = row(-np.inf, 0, 0, -np.inf, -np.inf)
    assert choose(logits, Sampling(1.0), 0) == (1 if draw < 0.5 else 2)


def test_greedy_takes_the_lowest_index_of_equals() -> None:
    assert choose(row(0, 9, 3, 9), Sampling(), 0) == 1
    assert choose(row(*[-1e31] * 4), Sampling(), 5) == 0
    filters = Sampling(0.0, top_p=0.1, top_k=1, min_p=1.0, seed=9)
    assert choose(row(0, 2, 1), filters, 77) == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("at", [0, 2, 4])
def test_nan_is_reported(temperature: float, at: int) -> None:
    logits = row(1, 2, np.inf, 4, 5)
    logits[at] = np.nan
    with pytest.raises(NumericsError, match="NaN"):
        choose(logits, Sampling(temperature), 0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("logits", [row(1, np.inf, 2), row(-np.inf, -np.inf)])
def test_an_infinity_that_decides_is_reported(temperature: float, logits: np.ndarray) -> None:
    with pytest.raises(NumericsError, match="infinity"):
        choose(logits, Sampling(temperature), 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1), ("temperature", math.nan), ("temperature", math.inf),
        ("top_p", 0.0), ("top_p", 1.01), ("top_p", math.nan),
        ("top_k", -1), ("min_p", -0.01), ("min_p", 1.5),
    ],
)  # fmt: skip
def test_a_setting_out_of_range_is_named(field: str, value: float) -> None:
    with pytest.raises(UsageError, match=field):
        Sampling(**{field: value})
