# SPDX-License-Identifier: MIT OR Apache-2.0
"""The index of a text against the definition: the longest n-gram at its end that stood before."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.spec.lookup_index import MAX_ORDER, MOST_POSITIONS, LocalIndex

TEXTS = st.lists(st.integers(0, 2), max_size=80) | st.lists(
    st.sampled_from([0, 1, (1 << 24) - 1]), max_size=40
)


def longest_match(text: list[int], min_order: int) -> tuple[int, list[int]]:
    """By definition, from the longest n-gram down, every place of the text looked at."""
    for order in range(MAX_ORDER, min_order - 1, -1):
        if len(text) < order:
            continue
        gram = text[-order:]
        places = [at for at in range(order, len(text)) if text[at - order : at] == gram]
        if places:
            return order, places[::-1][:MOST_POSITIONS]
    return 0, []


@given(TEXTS, st.integers(2, 8))
def test_the_longest_match_is_found_at_every_length(text: list[int], min_order: int) -> None:
    index = LocalIndex(min_order)
    assert index.match() == (0, [])
    for length, token in enumerate(text, 1):
        index.extend((token,))
        assert index.match() == longest_match(text[:length], min_order)
    assert index.tokens == text


@given(TEXTS, st.lists(TEXTS, max_size=4))
def test_a_text_that_is_cut_or_replaced_leaves_no_trace(
    text: list[int], others: list[list[int]]
) -> None:
    index = LocalIndex(2)
    index.extend(text)
    for number, other in enumerate(others):
        text = text[: (number * 7) % (len(text) + 1)] + other
        index.restart(text)
        assert index.tokens == text
        for more in range(6):
            assert index.match() == longest_match(index.tokens, 2)
            index.extend((more % 3,))
        index.cut(len(text))
        assert index.match() == longest_match(text, 2)
    index.cut(0)
    assert index.match() == (0, [])
    assert index.tokens == []


def test_a_restart_keeps_what_both_texts_share(monkeypatch: pytest.MonkeyPatch) -> None:
    index = LocalIndex(3)
    index.restart(range(1000))
    added: list[int] = []
    extend = LocalIndex.extend
    monkeypatch.setattr(LocalIndex, "extend", lambda self, t: (added.extend(t), extend(self, t)))
    index.restart([*range(990), 5, 6, 7])
    assert added == [5, 6, 7]
    assert index.match() == (3, [8])


def test_at_most_24_places_are_given_and_they_are_the_newest() -> None:
    index = LocalIndex(3)
    index.extend([1, 2, 3, 9] * 40 + [1, 2, 3])
    order, places = index.match()
    assert order == MAX_ORDER
    assert places == [159 - 4 * each for each in range(MOST_POSITIONS)]


def test_entries_stay_bounded_over_a_long_text() -> None:
    draw = random.Random(7)
    novel = [draw.randrange(200_000) for _ in range(100_000)]
    index = LocalIndex(3)
    index.extend(novel)
    assert index.entries() <= 1.01 * len(novel)  # one n-gram each; a few by chance twice
    copied = LocalIndex(3)
    copied.extend(novel[:50_000] * 2)
    # At worst one entry for the place and one for the link, in each of the six orders.
    assert copied.entries() <= 12 * 100_000
    copied.cut(0)
    assert copied.entries() <= 6 * 50_000


@pytest.mark.parametrize("order", [1, 9])
def test_orders_outside_2_to_8_are_refused(order: int) -> None:
    with pytest.raises(ValueError, match="2 to 8"):
        LocalIndex(order)
