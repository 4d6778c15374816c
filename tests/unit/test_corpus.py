# SPDX-License-Identifier: MIT OR Apache-2.0
"""The corpus: its order and its answers by definition, and every folder that must be refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cli import FAILED, OK, USAGE, main
from engine.paths import demo_model
from engine.spec.corpus import (
    MOST_SAMPLES,
    SEPARATOR,
    CorpusError,
    SuffixIndex,
    build_corpus,
    joined,
    open_corpus,
    suffix_order,
    tokenizer_sha256,
)

SHA = "ab" * 32
DOCUMENTS = st.lists(st.lists(st.integers(0, 2), max_size=40), min_size=1, max_size=4)


def build(folder: Path, *documents: list[int]) -> Path:
    build_corpus(folder, documents, tokenizer_sha256=SHA)
    return folder


def opened(folder: Path, *, sha: str = SHA, vocab_size: int = 100) -> SuffixIndex:
    return open_corpus(folder, tokenizer_sha256=sha, vocab_size=vocab_size)


@given(st.lists(st.integers(0, 2) | st.just(SEPARATOR), max_size=80))
def test_positions_are_sorted_by_eight_tokens_and_then_by_place(tokens: list[int]) -> None:
    expected = sorted(range(len(tokens)), key=lambda at: (tokens[at : at + 8], at))
    order = suffix_order(np.array(tokens, np.int32))
    assert order.dtype == np.int32
    assert order.tolist() == expected


@given(DOCUMENTS, st.lists(st.integers(0, 2), min_size=1, max_size=8), st.integers(1, 20))
def test_every_place_of_an_ngram_is_found_and_read_to_the_document_s_end(
    documents: list[list[int]], gram: list[int], length: int
) -> None:
    tokens = joined(documents)
    found = SuffixIndex(tokens, suffix_order(tokens), 3).continuations(gram, length)
    expected = [
        tuple(document[at + len(gram) : at + len(gram) + length])
        for document in documents
        for at in range(len(document) - len(gram))
        if document[at : at + len(gram)] == gram
    ]
    if (
        len(expected) <= MOST_SAMPLES // 2
    ):  # places at a document's end are sampled too, and say nothing
        assert sorted(found) == sorted(expected)
    else:
        assert set(found) <= set(expected)


def test_sixty_four_samples_are_spread_over_all_places(tmp_path: Path) -> None:
    documents = [[5, 6, 10 + each // 10, each % 10] for each in range(640)]
    index = opened(build(tmp_path / "c", *documents))
    found = index.continuations([5, 6], 9)
    assert found == [(10 + each, 0) for each in range(64)]
    assert opened(tmp_path / "c").continuations([6, 5], 9) == []


def test_what_is_built_says_what_it_is(tmp_path: Path) -> None:
    folder = build(tmp_path / "deep" / "corpus", [1, 2], [], [3])
    assert json.loads((folder / "meta.json").read_text()) == {
        "format": 1, "max_order": 8, "separator": SEPARATOR, "tokenizer_sha256": SHA,
        "tokens": 5, "documents": 2,
    }  # fmt: skip
    assert np.load(folder / "tokens.npy").tolist() == [1, 2, SEPARATOR, 3, SEPARATOR]
    assert sorted(each.name for each in folder.iterdir()) == ["meta.json", "sa.npy", "tokens.npy"]
    assert opened(folder).continuations([1], 9) == [(2,)]


def test_tokens_outside_the_vocabulary_never_come_out(tmp_path: Path) -> None:
    folder = build(tmp_path / "c", [1, 2, 3, 150, 4], [1, 2, 160], [1, 2, -7, 5])
    assert sorted(opened(folder).continuations([1, 2], 9)) == [(3,)]
    assert (3, 150, 4) in opened(folder, vocab_size=200).continuations([1, 2], 9)


def test_a_corpus_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="another tokenizer"):
        opened(build(tmp_path / "c", [1, 2]), sha="cd" * 32)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"meta\.json is missing"):
        opened(tmp_path / "none")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"format": 2}, "format 2"),
        ({"format": "1"}, "format '1'"),
        ({"max_order": 4}, "max_order 4"),
        ({"separator": 0}, "separator 0"),
        ({"tokens": 4}, "names 4"),
    ],
)
def test_a_note_that_does_not_fit_is_refused(
    tmp_path: Path, change: dict[str, object], named: str
) -> None:
    folder = build(tmp_path / "c", [1, 2, 3], [4])
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, **change}))
    with pytest.raises(CorpusError) as caught:
        opened(folder)
    assert named in caught.value.cause
    assert caught.value.next_step


@pytest.mark.parametrize("name", ["meta.json", "tokens.npy", "sa.npy"])
@pytest.mark.parametrize("kept", [0, 0.1, 0.6, 0.95])
def test_a_file_that_was_cut_short_is_refused(tmp_path: Path, name: str, kept: float) -> None:
    folder = build(tmp_path / "c", list(range(90)))
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: int(kept * len(data))])
    with pytest.raises(CorpusError, match="damaged"):
        opened(folder)


def _archive(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, tokens=np.arange(6, dtype=np.int32))


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: np.save(folder / "tokens.npy", np.zeros(6, np.int64)),
        lambda folder: np.save(folder / "tokens.npy", np.zeros(6, ">i4")),
        lambda folder: np.save(folder / "sa.npy", np.zeros((6, 1), np.int32)),
        lambda folder: np.save(folder / "sa.npy", np.zeros(6, np.float32)),
        lambda folder: np.save(folder / "sa.npy", np.arange(5, dtype=np.int32)),
        lambda folder: np.save(folder / "sa.npy", np.arange(6, dtype=np.int32)),
        lambda folder: np.save(folder / "sa.npy", np.arange(6, dtype=np.int32) + 1),
        lambda folder: np.save(folder / "sa.npy", np.arange(6, dtype=np.int32) - 1),
        lambda folder: np.save(folder / "sa.npy", np.array([None] * 6), allow_pickle=True),
        lambda folder: _archive(folder / "tokens.npy"),
        lambda folder: (folder / "sa.npy").unlink(),
        lambda folder: (folder / "meta.json").write_text("[]"),
        lambda folder: (folder / "meta.json").write_bytes(b"\xff{"),
    ],
)
def test_a_damaged_corpus_is_refused(tmp_path: Path, damage: object) -> None:
    folder = build(tmp_path / "c", [3, 2, 1], [4])
    damage(folder)  # type: ignore[operator]
    with pytest.raises(CorpusError, match="damaged"):
        opened(folder)


def test_nothing_is_written_over_and_nothing_is_built_from_nothing(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "mine.txt").write_text("mine")
    for folder in (tmp_path / "kept", tmp_path / "kept" / "mine.txt"):
        with pytest.raises(CorpusError, match="already exists"):
            build(folder, [1])
    assert [each.name for each in (tmp_path / "kept").iterdir()] == ["mine.txt"]
    with pytest.raises(CorpusError, match="no token"):
        build(tmp_path / "new", [], [])
    assert not (tmp_path / "new").exists()


def test_the_command_builds_what_the_drafter_opens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "A round drafts, verifies and commits. " * 3
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text(text, "utf-8")
    second.write_text("\ufeff" + "<|im_end|> is only text here.", "utf-8")
    command = ["corpus", "build", "--text", str(first), str(second), "--out", str(tmp_path / "c")]
    assert main([*command, "--json"]) == OK
    report = json.loads(capsys.readouterr().out)
    assert report["documents"] == 2
    assert report["out"] == str(tmp_path / "c")
    index = open_corpus(
        tmp_path / "c", tokenizer_sha256=tokenizer_sha256(demo_model()), vocab_size=1 << 20
    )
    assert len(index) == report["tokens"]
    tokens = np.load(tmp_path / "c" / "tokens.npy").tolist()
    again = index.continuations(tokens[1:5], 2)
    assert len(again) == 3  # the sentence stands three times
    assert len(set(again)) == 1
    assert main([*command, "--json"]) == FAILED
    assert "already exists" in json.loads(capsys.readouterr().out)["error"]["cause"]


@pytest.mark.parametrize("content", [None, b"caf\xe9"])
def test_the_command_names_a_text_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "a.txt").write_bytes(content)
    command = ["corpus", "build", "--text", str(tmp_path / "a.txt"), "--out", str(tmp_path / "c")]
    assert main(command) == USAGE
    assert "a.txt: cannot read the text" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()
