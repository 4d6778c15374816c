# SPDX-License-Identifier: MIT OR Apache-2.0
"""Stop strings: what is shown does not depend on how the stream was cut, and nothing leaks early."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.spec.stopping import StopScanner

ALPHABET = "abc"
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=4), min_size=1, max_size=3).map(tuple)


def until_stop(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """The text before the stop string that is complete first, by trying every end."""
    for end in range(1, len(text) + 1):
        met = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if met:
            return text[: min(met)], True
    return text, False


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    """`text` cut at the given places, empty pieces included."""
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[a:b] for a, b in zip(places, places[1:], strict=False)]


@given(text=st.text(ALPHABET, max_size=24), stops=STOPS, cuts=st.lists(st.integers(0, 24)))
@example(text="abcd", stops=("abcd", "bc"), cuts=[3])
@example(text="abcdab", stops=("abcdabx",), cuts=[4])
def test_any_split_shows_the_same_text(text: str, stops: tuple[str, ...], cuts: list[int]) -> None:
    expected, stopped = until_stop(text, stops)
    scanner = StopScanner(stops)
    shown = "".join(scanner.feed(piece) for piece in pieces_of(text, cuts))
    assert scanner.stopped == stopped
    assert shown + scanner.flush() == expected


@given(text=st.text(ALPHABET, max_size=24), stops=STOPS, more=st.text(ALPHABET, max_size=6))
def test_what_is_shown_is_right_whatever_follows(
    text: str, stops: tuple[str, ...], more: str
) -> None:
    scanner = StopScanner(stops)
    shown = ""
    for end in range(1, len(text) + 1):
        shown += scanner.feed(text[end - 1])
        assert until_stop(text[:end] + more, stops)[0].startswith(shown)


@given(text=st.text(ALPHABET, max_size=24), stops=STOPS)
def test_only_what_could_become_a_stop_string_is_held_back(
    text: str, stops: tuple[str, ...]
) -> None:
    scanner = StopScanner(stops)
    shown = scanner.feed(text)
    held = scanner.flush()
    assert any(stop.startswith(held) and stop != held for stop in stops)
    if not scanner.stopped:
        assert shown + held == text


def test_text_held_at_the_end_is_not_lost() -> None:
    scanner = StopScanner(("DEFGHIJ",))
    assert scanner.feed("ABCDEFGH") == "ABC"
    assert scanner.flush() == "DEFGH"
    assert scanner.flush() == ""


@pytest.mark.parametrize("stops", [(), ("",)])
def test_no_stop_string_holds_nothing_back(stops: tuple[str, ...]) -> None:
    scanner = StopScanner(stops)
    assert scanner.feed("any text") == "any text"
    assert not scanner.stopped


def test_nothing_follows_a_stop_string() -> None:
    scanner = StopScanner(("\n\n",))
    assert scanner.feed("one\n\ntwo") == "one"
    assert scanner.feed("three") == ""
    assert scanner.flush() == ""


def test_a_stop_string_of_wide_characters() -> None:
    scanner = StopScanner(("終わり🛑",))
    assert "".join(map(scanner.feed, "これで終わり🛑次")) == "これで"
    assert scanner.stopped
