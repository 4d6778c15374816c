# SPDX-License-Identifier: MIT OR Apache-2.0
"""Which thread count a measurement leads to."""

from __future__ import annotations

import pytest

from engine.model.threads import candidates, fastest


@pytest.mark.parametrize(
    ("cores", "expected"),
    [
        (1, [1]),
        (2, [1, 2]),
        (3, [1, 2, 3]),
        (4, [1, 2, 4]),
        (6, [1, 2, 4, 6]),
        (20, [1, 2, 4, 8, 16, 20]),
    ],
)
def test_candidates_are_powers_of_two_and_all_cores(cores: int, expected: list[int]) -> None:
    assert candidates(cores) == expected


@pytest.mark.parametrize(
    ("round_ms", "expected"),
    [
        ([(1, 10.0)], 1),
        ([(1, 10.0), (2, 5.5)], 2),
        ([(1, 10.0), (2, 9.9)], 1),
        ([(1, 0.2), (2, 0.5)], 1),
        ([(1, 10.0), (2, 5.0), (4, 4.95)], 2),
        ([(1, 10.0), (2, 12.0), (4, 6.0)], 4),
    ],
)
def test_more_threads_have_to_be_clearly_faster(
    round_ms: list[tuple[int, float]], expected: int
) -> None:
    assert fastest(round_ms) == expected
