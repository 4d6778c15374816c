# SPDX-License-Identifier: MIT OR Apache-2.0
"""Typed text never becomes a control token, ordinary text encodes as everywhere else."""

from __future__ import annotations

import json
import time
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
import tokenizers
from checkpoints import CONTROL, SAMPLE, tokenizer_json
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import CheckpointError, UnsupportedModelError
from engine.load.tokenizer import Segment, Tokenizer, clean_text

IN_BASE = Tokenizer(tokenizer_json(True))
BEHIND = Tokenizer(tokenizer_json(False))
both = pytest.mark.parametrize("tokenizer", [IN_BASE, BEHIND], ids=["in base", "behind base"])
names = [content for content, _ in CONTROL]
typed = st.lists(
    st.one_of(st.text(max_size=8), st.sampled_from([*names, "<|im_", "end|>", "<", "the ", "\n"])),
    max_size=8,
).map("".join)


def nfc(text: str) -> str:
    return unicodedata.normalize("NFC", clean_text(text))


@both
@given(text=typed)
def test_text_comes_back_unchanged_and_free_of_control_tokens(
    tokenizer: Tokenizer, text: str
) -> None:
    ids = tokenizer.encode_text(text)
    assert tokenizer.control_ids.isdisjoint(ids)
    assert tokenizer.decode(ids) == nfc(text)


@both
@pytest.mark.parametrize("content", names)
def test_every_control_token_typed_stays_text_and_in_markup_is_one_token(
    tokenizer: Tokenizer, content: str
) -> None:
    ids = tokenizer.encode_text(f"say {content} now")
    assert tokenizer.control_ids.isdisjoint(ids)
    assert tokenizer.decode(ids) == f"say {content} now"
    marked = tokenizer.encode_prompt([Segment(content, markup=True)])
    assert marked == [tokenizer.token_id(content)]
    assert tokenizer.decode(marked) == content
    assert tokenizer.encode_prompt([Segment(content, markup=False)]) == tokenizer.encode_text(
        content
    )


@pytest.mark.parametrize("in_base", [True, False])
@given(text=typed)
def test_markup_encodes_as_the_tokenizers_library_does(in_base: bool, text: str) -> None:
    library = tokenizers.Tokenizer.from_str(tokenizer_json(in_base))
    ours = IN_BASE if in_base else BEHIND
    assert ours.encode_prompt([Segment(text, markup=True)]) == library.encode(text).ids


@given(st.lists(st.text(alphabet="the word\n.é1", max_size=6), min_size=1, max_size=6))
def test_segments_of_text_encode_as_one_run(pieces: list[str]) -> None:
    segments = [Segment(piece, markup=number % 2 == 0) for number, piece in enumerate(pieces)]
    assert IN_BASE.encode_prompt(segments) == IN_BASE.encode_text("".join(pieces))


def test_a_control_token_split_between_markup_and_text_stays_text() -> None:
    ids = IN_BASE.encode_prompt([Segment("<|im_", markup=True), Segment("end|>", markup=False)])
    assert IN_BASE.control_ids.isdisjoint(ids)


@pytest.mark.parametrize(
    ("text", "decoded"),
    [
        ("BANANA\0 then APPLE", "BANANA\0 then APPLE"),
        ("\ud800", "\ufffd"),
        ("a\udfffb", "a\ufffdb"),
        ("\ud83c\udf0a", "🌊"),
        ("🌊 مرحبا (test) 123", "🌊 مرحبا (test) 123"),
        ("", ""),
    ],
)
def test_odd_text_reaches_the_ids_whole(text: str, decoded: str) -> None:
    assert IN_BASE.decode(IN_BASE.encode_text(text)) == decoded


def test_a_megabyte_on_one_line_is_encoded_in_reasonable_time() -> None:
    text = "x" * 1_000_000
    begun_s = time.perf_counter()
    ids = IN_BASE.encode_text(text)
    assert time.perf_counter() - begun_s < 20
    assert IN_BASE.decode(ids) == text


def test_sizes_and_names() -> None:
    assert (IN_BASE.vocab_size, BEHIND.vocab_size) == (
        tokenizers.Tokenizer.from_str(tokenizer_json(True)).get_vocab_size(),
        tokenizers.Tokenizer.from_str(tokenizer_json(False)).get_vocab_size(),
    )
    assert IN_BASE.token_id("<think>") == 3
    assert IN_BASE.token_id("<nothing>") is None


def damaged(edit: Callable[[dict[str, Any]], None]) -> str:
    data = json.loads(tokenizer_json(True))
    edit(data)
    return json.dumps(data)


@pytest.mark.parametrize(
    ("edit", "kind", "message"),
    [
        (lambda d: d["model"].update(type="WordPiece"), UnsupportedModelError, "WordPiece"),
        (lambda d: d.update(decoder=None), UnsupportedModelError, "byte-level"),
        (lambda d: d.update(pre_tokenizer=None), UnsupportedModelError, "byte-level"),
        (lambda d: d["model"]["vocab"].pop("Ġ"), CheckpointError, "lacks 1 of the 256.*0x20"),
        (lambda d: d["model"]["vocab"].update(A=-1), CheckpointError, "model.vocab"),
        (lambda d: d["model"].update(vocab=None), CheckpointError, "model.vocab"),
        (lambda d: d["model"].update(merges=[["no", "such"]]), CheckpointError, "cannot be used"),
        (lambda d: d["model"].update(merges=7), CheckpointError, "cannot be used"),
        (
            lambda d: d["model"].update(continuing_subword_prefix="##"),
            UnsupportedModelError,
            "continuing_subword_prefix is '##'",
        ),
        (
            lambda d: d["model"].update(end_of_word_suffix="</w>"),
            UnsupportedModelError,
            "end_of_word_suffix is '</w>'",
        ),
        (lambda d: d["added_tokens"].append({"content": "x"}), CheckpointError, "added_tokens"),
        (
            lambda d: d["added_tokens"].append({"content": "", "id": 1}),
            CheckpointError,
            "added_tokens",
        ),
        (lambda d: d.update(added_tokens={"a": 1}), CheckpointError, "added_tokens"),
    ],
)
def test_damaged_tokenizers_are_refused(
    edit: Callable[[dict[str, Any]], None], kind: type[CheckpointError], message: str
) -> None:
    with pytest.raises(kind, match=message) as raised:
        Tokenizer(damaged(edit))
    assert "tokenizer.json" in raised.value.cause
    assert raised.value.next_step


@pytest.mark.parametrize("ignore_merges", [False, True])
def test_a_control_token_that_merges_would_build_stays_text(ignore_merges: bool) -> None:
    vocabulary = json.loads(tokenizer_json(True))["model"]["vocab"]
    word = max((token for token in vocabulary if token.isalpha() and token.isascii()), key=len)

    def promote(data: dict[str, Any]) -> None:
        data["added_tokens"].append({"content": word, "id": vocabulary[word]})
        data["model"]["ignore_merges"] = ignore_merges

    assert vocabulary[word] in IN_BASE.encode_text(f"{word} {word}")
    promoted = Tokenizer(damaged(promote))
    assert promoted.control_ids.isdisjoint(promoted.encode_text(f"{word} {word}"))
    assert promoted.decode(promoted.encode_text(f"{word} {word}")) == f"{word} {word}"


def test_a_control_token_that_a_plain_byte_spells_is_refused() -> None:
    with pytest.raises(CheckpointError, match="spelled like a single byte"):
        Tokenizer(damaged(lambda d: d["added_tokens"].append({"content": "A", "id": 500})))


@pytest.mark.parametrize("in_base", [True, False])
def test_settings_of_training_are_left_out(in_base: bool) -> None:
    data = json.loads(tokenizer_json(in_base))
    wanted = Tokenizer(json.dumps(data)).encode_text(SAMPLE[0])
    data["model"]["dropout"] = 0.9
    data["truncation"] = {
        "direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0
    }  # fmt: skip
    assert Tokenizer(json.dumps(data)).encode_text(SAMPLE[0]) == wanted


def test_a_panic_of_the_library_is_a_damaged_file(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        """As the library's own, which no module exports."""

    class Panics:
        @staticmethod
        def from_str(_: str) -> None:
            raise PanicException("slice index starts at 2 but ends at 1")

    monkeypatch.setattr("engine.load.tokenizer.tokenizers.Tokenizer", Panics)
    with pytest.raises(CheckpointError, match="cannot be used: slice index"):
        Tokenizer(tokenizer_json(True))
