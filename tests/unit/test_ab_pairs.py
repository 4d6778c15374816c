# SPDX-License-Identifier: MIT OR Apache-2.0
"""The figures of a pair: which rounds count, by which time, and that neither side is preferred."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import CompareBlock
from engine.measure.ab_pairs import (
    SETTLING_ROUNDS,
    estimator_words,
    fitting_repeats,
    interrupted_share,
    pairs_of,
    wants_more,
)
from engine.measure.interruptions import interruptions

OTHER = {"base": "candidate", "candidate": "base"}


def block(
    side: str, times: list[float], cut: tuple[int, ...] = (), **changes: object
) -> CompareBlock:
    values = {
        "pair_index": 1, "order_in_pair": int(side == "candidate"), "side": side, "workload": "copy",
        "prompt_tokens": 9, "tokens": 2 * len(times) + 1, "rounds": len(times), "drafted_tokens": 0,
        "accepted_tokens": 0, "round_ms": tuple(times), "draft_ms": 0.0, "verify_ms": 0.0, "other_ms": 0.0,
        "ttft_ms": 1.0, "prefill_tps": None, "decode_tps": None, "bytes_per_round": 0,
        "tokens_sha256_12": "0" * 12, "finish_reason": "length", "test_time": "", "interrupted": cut,
    }  # fmt: skip
    return CompareBlock(**{**values, **changes})


def only(blocks: list[CompareBlock], metric: str = "ms_per_round") -> tuple[float, float]:
    [pair] = pairs_of(blocks, metric)
    assert pair.log_ratio == pytest.approx(math.log(pair.candidate_ms / pair.base_ms))
    return pair.base_ms, pair.candidate_ms


def test_the_first_rounds_do_not_count() -> None:
    first = [50.0] * SETTLING_ROUNDS
    pair = only([block("base", [*first, 1, 2, 3]), block("candidate", [9, 9, 2, 4, 6])])
    assert pair == (2, 4)
    # In an answer of three rounds, one of them.
    assert only([block("base", [50, 1, 2]), block("candidate", [9, 2, 3])]) == (1.5, 2.5)


def test_an_interrupted_round_is_left_out_on_both_sides() -> None:
    base = block("base", [1, 1, 1, 2, 90, 4], (4,))
    candidate = block("candidate", [1, 1, 2, 4, 5, 8])
    assert only([base, candidate]) == pytest.approx((7 / 3, 14 / 3))
    # One that is interrupted without having been marked counts: times are not judged by their length.
    assert only([block("base", list(base.round_ms)), candidate])[0] == pytest.approx(97 / 4)


def test_a_round_counts_by_the_median_of_the_repeats_that_are_left() -> None:
    base = [
        block("base", [1, 1, 3, 5], (2,)),
        block("base", [1, 1, 2, 6], repeat=1),
        block("base", [1, 1, 4, 70], repeat=2),
    ]
    candidate = [block("candidate", [1, 1, 6, 12], repeat=n) for n in range(3)]
    assert only([*base, *candidate]) == ((3 + 6) / 2, 9)


def test_where_too_few_are_left_every_round_counts() -> None:
    """Rounds longer than a time slice are all interrupted."""
    base = block("base", [1, 1, 2, 2, 2, 2], (2, 3, 4, 5))
    candidate = block("candidate", [1, 1, 3, 3, 3, 3])
    assert only([base, candidate]) == (2, 3)
    one_left = block("base", [1, 1, 2, 4, 4, 4], (3, 4, 5))
    assert only([one_left, candidate]) == (2, 3)


def test_a_change_of_a_few_rounds_counts_for_what_it_is() -> None:
    """A median over rounds would not see it."""
    base = [block("base", [10.0] * 22, repeat=n) for n in range(3)]
    slower = [10.0] * 20 + [15.0] * 2
    candidate = [block("candidate", slower, repeat=n) for n in range(3)]
    pair = only([*base, *candidate])
    assert pair[1] / pair[0] == pytest.approx(1.05)


def test_prompts_weigh_as_many_rounds_as_their_answers_have() -> None:
    blocks = [
        block("base", [1] * 12), block("candidate", [2] * 12),
        block("base", [4] * 4, workload="edit"), block("candidate", [4] * 4, workload="edit"),
    ]  # fmt: skip
    assert only(blocks) == ((12 + 16) / 16, (24 + 16) / 16)
    edit = pairs_of(blocks, "ms_per_round", "edit")
    assert [(pair.base_ms, pair.workload) for pair in edit] == [(4, "edit")]


def test_by_the_token_each_side_has_rounds_of_its_own() -> None:
    """What proposes changes how many rounds an answer takes; round i is not the same work then."""
    base = block("base", [9, 9, 2, 2, 90, 2], (4,), tokens=13)
    candidate = block("candidate", [9, 9, 3, 3], tokens=13)
    assert only([base, candidate], "ms_per_token") == (2 * 6 / 12, 3 * 4 / 12)
    assert only([base, candidate], "tokens_per_round") == (12 / 6, 12 / 4)


def test_a_pair_without_a_side_or_without_rounds_is_left_out() -> None:
    assert pairs_of([block("base", [1, 1, 1])], "ms_per_round") == ()
    assert pairs_of([block("base", [1]), block("candidate", [])], "ms_per_round") == ()
    no_tokens = [block("base", [1], tokens=1), block("candidate", [1], tokens=1)]
    assert pairs_of(no_tokens, "ms_per_token") == ()


times = st.lists(st.floats(0.5, 50.0), min_size=7, max_size=7)
cuts = st.sets(st.integers(0, 6)).map(lambda found: tuple(sorted(found)))


@given(
    st.lists(st.tuples(times, cuts), min_size=2, max_size=8).filter(lambda runs: len(runs) % 2 == 0)
)
def test_exchanging_the_sides_changes_the_sign_alone(
    runs: list[tuple[list[float], tuple[int, ...]]],
) -> None:
    blocks = [
        block(("base", "candidate")[n % 2], taken, cut, repeat=n // 2)
        for n, (taken, cut) in enumerate(runs)
    ]
    exchanged = [
        block(OTHER[b.side], list(b.round_ms), b.interrupted, repeat=b.repeat) for b in blocks
    ]
    base, candidate = only(blocks)
    assert only(exchanged) == (candidate, base)


def test_short_answers_are_repeated_more_often() -> None:
    assert fitting_repeats([block("base", [1.0] * 20)]) == 9
    assert fitting_repeats([block("base", [10.0] * 13)]) == 5
    assert fitting_repeats([block("base", [10.0] * 40), block("base", [10.0] * 40)]) == 3
    assert fitting_repeats([block("base", [90.0] * 60)]) == 1
    assert fitting_repeats([block("base", [900.0, *[10.0] * 12])]) == 5  # a slow first round
    assert fitting_repeats([]) == 3


def test_more_repeats_are_wanted_while_half_of_the_rounds_are_missing() -> None:
    whole = [block("base", [1.0] * 10), block("candidate", [1.0] * 10)]
    cut = [block("base", [1.0] * 10, (2, 3, 4, 5, 6)), block("candidate", [1.0] * 10)]
    assert not wants_more(whole * 3, 3)
    assert wants_more(cut * 3, 3)
    assert not wants_more(cut * 9, 3)  # three times as many are the most
    assert not wants_more(cut, 1)
    assert not wants_more([*cut * 3, *whole], 3)
    hopeless = [block("base", [1.0] * 10, tuple(range(10))), block("candidate", [1.0] * 10)]
    assert not wants_more(hopeless * 3, 3)
    assert not wants_more([block("base", []), block("candidate", [])] * 3, 3)


def test_the_share_of_interrupted_rounds() -> None:
    assert interrupted_share([block("base", [1, 1, 1], (0, 2)), block("base", [1])]) == 0.5
    assert interrupted_share([]) is None


def test_the_estimator_in_words() -> None:
    assert "each by its time" in estimator_words(1)
    assert "each by the median of its 5 or more repeats" in estimator_words(5)


def test_interruptions_are_those_of_every_thread() -> None:
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        pytest.skip("needs /proc")
    counted = 0
    for task in tasks.iterdir():
        lines = (task / "status").read_text().splitlines()
        [line] = [line for line in lines if line.startswith("nonvoluntary_ctxt_switches")]
        counted += int(line.split()[1])
    assert interruptions() >= counted
