# SPDX-License-Identifier: MIT OR Apache-2.0
"""Streaming decode: whole characters only, nothing lost, however the bytes are cut into tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.load.detokenise import Detokeniser, byte_of_character

HARD = "🌊🏖️🦀🍣 👩‍👩‍👧 é 漢 مرحبا \0 \ufffd <script>"


def cut(data: bytes, borders: list[int]) -> list[bytes]:
    """`data` in pieces that end at the given places."""
    ends = sorted({border % (len(data) + 1) for border in borders} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def stream(pieces: list[bytes]) -> list[str]:
    decoder = Detokeniser(pieces)
    return [*(decoder.feed(number) for number in range(len(pieces))), decoder.flush()]


@given(st.binary(max_size=80), st.lists(st.integers(0, 1000), max_size=40))
def test_any_split_of_any_bytes_decodes_as_the_whole(data: bytes, borders: list[int]) -> None:
    assert "".join(stream(cut(data, borders))) == data.decode("utf-8", errors="replace")


@given(st.text(max_size=40).map(lambda text: text.encode("utf-8", "replace")))
def test_single_bytes_of_a_text_give_whole_characters_only(data: bytes) -> None:
    parts = stream([bytes([byte]) for byte in data])
    whole = data.decode()
    assert "".join(parts) == whole
    assert parts[-1] == ""
    assert [part for part in parts if part] == list(whole)


def test_hard_characters_never_show_a_replacement_on_the_way() -> None:
    text = HARD.replace("\ufffd", "")
    parts = stream([bytes([byte]) for byte in text.encode()])
    assert "".join(parts) == text
    assert "\ufffd" not in "".join(parts)


def test_a_stream_that_stops_inside_a_character_flushes_it_once() -> None:
    decoder = Detokeniser([b"a", "漢".encode()[:2]])
    assert (decoder.feed(0), decoder.feed(1)) == ("a", "")
    assert decoder.flush() == "\ufffd"
    assert decoder.flush() == ""


@pytest.mark.parametrize("token_id", [1, 10**9, -1])
def test_an_id_outside_the_vocabulary_is_a_replacement_character(token_id: int) -> None:
    decoder = Detokeniser([b"a"])
    assert decoder.feed(token_id) == "\ufffd"
    assert decoder.feed_all([0, token_id, 0]) == "a\ufffda"


def test_the_byte_alphabet_covers_every_byte_once() -> None:
    table = byte_of_character()
    assert sorted(table.values()) == list(range(256))
    assert (table["A"], table["Ġ"], table["Ċ"]) == (65, 32, 10)
