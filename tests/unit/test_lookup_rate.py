# SPDX-License-Identifier: MIT OR Apache-2.0
"""Continuation rates: the prior's weight, halving, freezing, and prior files that are wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.errors import UsageError
from engine.spec.lookup_rate import LookupRate, copy_run_bin


def test_the_bins_of_a_copy_run() -> None:
    runs = {0: 0, 1: 1, 7: 1, 8: 8, 23: 8, 24: 24, 5000: 24}
    assert {run: copy_run_bin(run) for run in runs} == runs


def test_a_rate_needs_twenty_counts_or_a_prior() -> None:
    rate = LookupRate({("local", 8, 0): (19.0, 0.0)})
    assert rate.rho("local", 8, 0) is None  # 19 counts are no prior
    rate.learn("local", 8, 0, followed=18, missed=True)
    assert rate.rho("local", 8, 0) is None
    rate.learn("local", 8, 0, followed=0, missed=True)
    assert rate.rho("local", 8, 0) == pytest.approx((18 + 1) / (20 + 2), rel=1e-12)
    assert rate.rho("local", 8, 1) is None
    assert rate.rho("both", 8, 0) is None


@pytest.mark.parametrize(
    ("prior", "expected"),
    [((16.0, 4.0), 16 / 20), ((900.0, 100.0), 45 / 50)],
)
def test_a_prior_counts_for_at_most_fifty(prior: tuple[float, float], expected: float) -> None:
    rate = LookupRate({("corpus", 8, 24): prior})
    assert rate.rho("corpus", 8, 30) == pytest.approx(expected, rel=1e-12)
    rate.learn("corpus", 8, 30, followed=5, missed=True)
    weight = min(50.0, sum(prior))
    successes = expected * weight
    assert rate.rho("corpus", 8, 24) == pytest.approx((successes + 5) / (weight + 6), rel=1e-12)


def test_counts_are_halved_past_four_thousand() -> None:
    rate = LookupRate()
    rate.learn("local", 8, 0, followed=3000, missed=False)
    for _ in range(1000):
        rate.learn("local", 8, 0, followed=0, missed=True)
    assert rate.counts() == {"local|8|0": [3000.0, 1000.0]}
    rate.learn("local", 8, 0, followed=2, missed=False)
    assert rate.counts() == {"local|8|0": [1501.0, 500.0]}


def test_frozen_rates_and_short_matches_learn_nothing() -> None:
    rate = LookupRate(learning=False)
    rate.learn("local", 8, 0, followed=40, missed=True)
    assert rate.counts() == {}
    rate.learning = True
    rate.learn("local", 2, 0, followed=40, missed=True)
    assert rate.counts() == {}
    rate.learn("local", 3, 0, followed=40, missed=True)
    assert rate.counts() == {"local|3|0": [40.0, 1.0]}


def test_a_prior_file_is_read_and_what_was_learned_can_be_one(tmp_path: Path) -> None:
    file = tmp_path / "rho.json"
    file.write_text(
        json.dumps({"_provenance": {"made": "here"}, "local|8|3": [30, 10], "both|3|0": [1, 1]})
    )
    rate = LookupRate.read(file)
    assert rate.rho("local", 8, 99) == pytest.approx(0.75, rel=1e-12)
    assert rate.rho("both", 3, 0) is None
    rate.learn("local", 8, 10, followed=20, missed=True)
    file.write_text(json.dumps(rate.counts()))
    again = LookupRate.read(file)
    assert again.rho("local", 8, 8) == pytest.approx(20 / 21, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "not a JSON file"),
        ("[]", "no JSON object"),
        ('{"local|9|0": [1, 2]}', "local|9|0"),
        ('{"local|8|4": [1, 2]}', "local|8|4"),
        ('{"mtp|8|0": [1, 2]}', "mtp|8|0"),
        ('{"local|8": [1, 2]}', "local|8"),
        ('{"local|8|0": [1]}', "two counts"),
        ('{"local|8|0": [1, -2]}', "two counts"),
        ('{"local|8|0": [1, NaN]}', "two counts"),
        ('{"local|8|0": [1, true]}', "two counts"),
        ('{"local|8|0": "12"}', "two counts"),
        ('{"local|8|0": [1, 1' + "0" * 400 + "]}", "two counts"),
    ],
)
def test_a_wrong_prior_file_is_an_error_that_says_where(
    tmp_path: Path, text: str, named: str
) -> None:
    file = tmp_path / "rho.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"rho\.json") as caught:
        LookupRate.read(file)
    assert named in str(caught.value)
    with pytest.raises(UsageError, match="cannot read"):
        LookupRate.read(tmp_path / "none.json")
