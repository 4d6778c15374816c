# SPDX-License-Identifier: MIT OR Apache-2.0
"""Round records to figures and curves."""

from __future__ import annotations

import numpy as np
import pytest

from app.live.route import route_words
from app.live.series import BIN_S, SPAN_S, PrefillRate, RoundSeries, figures
from engine.api import DRAFTERS, ROUND_DTYPE, ROUTES


def _rows(ends_s, round_ms, tokens=3, drafted=4, accepted=2, read=10**9) -> np.ndarray:
    rows = np.zeros(len(ends_s), ROUND_DTYPE)
    rows["end_s"], rows["round_ms"] = ends_s, round_ms
    rows["committed_tokens"], rows["drafted_tokens"] = tokens, drafted
    rows["accepted_tokens"], rows["bytes_read"] = accepted, read
    rows["draft_ms"], rows["verify_ms"] = rows["round_ms"] * 0.2, rows["round_ms"] * 0.5
    return rows


def test_a_rate_is_sum_over_sum() -> None:
    found = figures(_rows([1.0, 1.1], [10.0, 30.0], tokens=[1, 3]))
    assert found.decode_tps == pytest.approx(
        100.0
    )  # a mean of rates would say the same only by luck
    assert figures(_rows([1.0, 1.1], [10.0, 30.0], tokens=[3, 1])).decode_tps == pytest.approx(
        100.0
    )
    assert found.tokens_per_round == 2.0
    assert found.round_ms == pytest.approx(20.0)
    assert found.acceptance_pct == pytest.approx(50.0)
    assert found.read_gbps == pytest.approx(2e9 / 0.040 / 1e9)
    assert sum(found.parts_ms) == pytest.approx(found.round_ms)


def test_nothing_measured_is_none() -> None:
    assert figures(np.zeros(0, ROUND_DTYPE)).decode_tps is None
    assert figures(_rows([1.0], [10.0], drafted=0, accepted=0)).acceptance_pct is None
    _, tps, _ = RoundSeries().curves(5.0)
    assert np.isnan(tps).all()


def test_rounds_are_counted_by_drafter() -> None:
    rows = _rows([1.0, 1.1, 1.2, 1.3], [10.0] * 4)
    rows["drafter"] = [DRAFTERS.index(name) for name in ("mtp", "lookup", "mtp", "none")]
    rows["rows"] = [4, 9, 4, 1]
    found = figures(rows)
    assert dict(zip(DRAFTERS, found.drafters, strict=True)) == {
        "none": 1,
        "mtp": 2,
        "lookup": 1,
        "block": 0,
    }
    assert found.rows_per_round == 4.5
    assert sum(figures(np.zeros(0, ROUND_DTYPE)).drafters) == 0


def test_what_the_router_chose_is_a_mean_of_its_own_rounds() -> None:
    rows = _rows([1.0, 1.1, 1.2, 1.3], [10.0] * 4, tokens=[4, 1, 3, 9], drafted=[6, 0, 3, 9])
    rows["route"] = [ROUTES.index(name) for name in ("mtp+lookup", "plain", "mtp+lookup", "")]
    rows["left_out_nodes"] = [4, 0, 2, 0]
    rows["expected_tokens"], rows["expected_gain"] = [3.5, 1.0, 3.0, 0.0], [1.5, 0.9, 1.2, 0.0]
    found = figures(rows)
    routed = found.routed
    assert routed is not None
    assert (routed.most, routed.nodes, routed.left_out) == ("mtp+lookup", 3.0, 2.0)
    assert routed.share_pct == pytest.approx(200 / 3)
    assert (routed.expected_tokens, routed.expected_gain) == pytest.approx((2.5, 1.2))
    assert routed.tokens == pytest.approx(8 / 3)
    assert route_words(found) == (
        "Router: mtp+lookup in 67 % · 3.0 of 5.0 nodes",
        "expected 2.50 tok, got 2.67 · 1.20 times plain",
    )


def test_without_a_router_its_line_says_so() -> None:
    found = figures(_rows([1.0], [10.0]))
    assert found.routed is None
    assert route_words(found) == (
        "Router: not available: it chose no round",
        "QWEN38_LEN_SWITCH=1 turns it on",
    )
    assert route_words(figures(np.zeros(0, ROUND_DTYPE))) == ("Router: —", "")


def test_only_the_last_two_seconds_count() -> None:
    series = RoundSeries()
    series.add(_rows([10.0], [100.0], tokens=1))
    series.add(_rows([13.0], [100.0], tokens=5))
    assert series.figures().decode_tps == pytest.approx(50.0)
    assert series.figures().rounds == 1


def test_curves_have_gaps_where_no_round_ran() -> None:
    series = RoundSeries()
    series.add(_rows([100.4, 103.2], [50.0, 50.0], tokens=5))
    ages, tps, gbps = series.curves(105.0)
    assert len(ages) == int(SPAN_S / BIN_S)
    known = np.nonzero(np.isfinite(tps))[0]
    assert ages[known].tolist() == [-5.0, -2.0]
    assert tps[known] == pytest.approx([100.0, 100.0])
    assert gbps[known] == pytest.approx([20.0, 20.0])


def test_a_round_in_the_bin_that_is_still_filled_is_known() -> None:
    series = RoundSeries()
    assert not series.is_filling(10.2)
    series.add(_rows([10.1], 80.0))
    assert np.isnan(series.curves(10.2)[1]).all()
    assert series.is_filling(10.2)
    assert series.is_filling(10.49)
    assert not series.is_filling(10.5)
    assert np.isfinite(series.curves(10.5)[1]).sum() == 1


def test_a_long_round_is_spread_over_its_bins() -> None:
    series = RoundSeries()
    series.add(_rows([102.25], [2000.0], tokens=8))
    _, tps, _ = series.curves(110.0)
    known = tps[np.isfinite(tps)]
    assert len(known) == 5
    assert known == pytest.approx(np.full(5, 4.0))


def test_old_bins_are_forgotten() -> None:
    series = RoundSeries()
    series.add(_rows([100.4], [50.0]))
    series.add(_rows([100.4 + SPAN_S + 3], [50.0]))
    _, tps, _ = series.curves(100.4 + SPAN_S + 4)
    assert np.isfinite(tps).sum() == 1


def test_feeding_in_pieces_changes_nothing() -> None:
    rng = np.random.default_rng(3)
    ends = 50 + np.cumsum(rng.uniform(0.001, 0.9, 200))
    rows = _rows(ends, np.diff(ends, prepend=50.0) * 900)
    whole, pieces = RoundSeries(), RoundSeries()
    whole.add(rows)
    for row in np.array_split(rows, 37):
        pieces.add(row)
    now_s = ends[-1] + 1
    for one, other in zip(whole.curves(now_s), pieces.curves(now_s), strict=True):
        np.testing.assert_allclose(one, other)


def test_prefill_rate() -> None:
    rate = PrefillRate()
    for step in range(4):
        rate.add(1, 10 + step * 0.5, step * 100)
    assert rate.rate_tps == pytest.approx(200.0)
    rate.add(2, 20.0, 0)
    assert rate.rate_tps is None, "another prompt starts anew"
