# SPDX-License-Identifier: MIT OR Apache-2.0
"""Lookup in a loaded model: the text never depends on it, and the suffix store only on being asked for."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoints import make_checkpoint

from engine import Engine
from engine.api import GenerateRequest
from engine.spec.corpus import CorpusError, build_corpus, tokenizer_sha256
from engine.spec.decode import Round

LOOKUP, DEPTH, CORPUS, STORE = (
    f"QWEN38_{name}" for name in ("LOOKUP", "MTP_DEPTH", "CORPUS", "SUFFIX_STORE")
)
PROMPT = (*([10, 11, 12, 13] * 6), 10, 11, 12, 20, 10, 11, 12)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_checkpoint(folder, max_position_embeddings=512)
    return folder


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[Engine]:
    with Engine.open(model, profile=None, threads=1) as opened:
        yield opened


def ask(*, temperature: float = 0.0, speculate: bool = True, tokens: int = 60) -> GenerateRequest:
    return GenerateRequest(
        token_ids=PROMPT,
        max_tokens=tokens,
        temperature=temperature,
        seed=5,
        speculate=speculate,
        ignore_stop_tokens=True,
    )


@pytest.fixture(scope="module")
def corpus(model: Path, engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The answers to come, greedy and drawn, and the same with every twelfth token changed."""
    folder = tmp_path_factory.mktemp("corpus") / "made"
    answers = [
        (*PROMPT, *engine.generate(ask(temperature=each, speculate=False)).token_ids)
        for each in (0.0, 1.2)
    ]
    wrong = [[(t + 1) % 40 if n % 12 == 0 else t for n, t in enumerate(each)] for each in answers]
    build_corpus(folder, [*answers, *wrong], tokenizer_sha256=tokenizer_sha256(model))
    return folder


def lookup_tokens(engine: Engine) -> int:
    return engine.engaged().get("tokens drafted by lookup", 0)


def test_lookup_never_changes_the_text(model: Path, engine: Engine, corpus: Path) -> None:
    with Engine.open(
        model, profile=None, knobs={LOOKUP: "1", CORPUS: str(corpus)}, threads=1
    ) as opened:
        for temperature in (0.0, 1.2):
            plain = engine.generate(ask(temperature=temperature, speculate=False))
            for depth in ("0", "2"):
                opened.set_knobs({DEPTH: depth})
                before = lookup_tokens(opened)
                drafted = opened.generate(ask(temperature=temperature))
                assert drafted.token_ids == plain.token_ids
                assert 0 < drafted.accepted_tokens < drafted.drafted_tokens
                assert lookup_tokens(opened) > before
        opened.set_knobs({LOOKUP: "0", DEPTH: "0"})
        drafted_tokens: list[int] = []

        def flip(done: Round, *_: object) -> None:
            drafted_tokens.append(done.drafted)
            if len(drafted_tokens) == 5:
                opened.set_knobs({LOOKUP: "1"})

        assert opened.generate(ask(temperature=1.2), on_round=flip).token_ids == plain.token_ids
        assert sum(drafted_tokens[:5]) == 0
        assert sum(drafted_tokens[5:]) > 0


def test_a_copy_is_drafted_from_the_text_and_goes_deep(engine: Engine) -> None:
    engine.set_knobs({LOOKUP: "1", DEPTH: "0"})
    draw = random.Random(1)
    text = [draw.randrange(10, 200) for _ in range(150)]
    copied = engine.generate(
        GenerateRequest(token_ids=(*text, *text[:8]), max_tokens=140), follow=text[8:148]
    )
    assert copied.tokens_per_round is not None
    assert copied.tokens_per_round > 10
    assert engine.engaged()["deep lookup rounds"] > 1


def test_the_store_is_used_only_where_it_is_asked_for(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    knobs = {LOOKUP: "1", DEPTH: "0", STORE: str(folder)}
    with Engine.open(model, profile=None, knobs=knobs, threads=1) as measuring:
        measuring.generate(ask(tokens=5), remember=True)
    assert not folder.exists()  # it was not opened
    with Engine.open(model, profile=None, knobs=knobs, threads=1, remember=True) as opened:
        opened.generate(ask(tokens=20))
        cancel = threading.Event()
        cancel.set()
        opened.generate(ask(tokens=20), remember=True, cancel=cancel)
        assert (folder / "tokens.bin").stat().st_size == 0
        first = opened.generate(ask(tokens=20), remember=True)
        assert (folder / "tokens.bin").stat().st_size == 4 * 21
    for remember in (False, True):
        with Engine.open(model, profile=None, knobs=knobs, threads=1, remember=True) as opened:
            while threads_of_the_store():
                time.sleep(0.01)
            again = opened.generate(ask(tokens=20), remember=remember)
            assert again.token_ids == first.token_ids
            assert ("tokens drafted from the store" in opened.engaged()) == remember


def threads_of_the_store() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "suffix-store"]


def test_a_store_that_cannot_be_written_leaves_the_answer(model: Path, tmp_path: Path) -> None:
    troubles: list[str] = []
    (tmp_path / "file").write_text("")
    knobs = {LOOKUP: "1", STORE: str(tmp_path / "file" / "store")}
    with Engine.open(
        model, profile=None, knobs=knobs, threads=1, remember=True, on_trouble=troubles.append
    ) as opened:
        for _ in range(2):
            assert len(opened.generate(ask(tokens=5), remember=True).token_ids) == 5
    assert len(troubles) == 1


def test_a_corpus_of_another_tokenizer_is_refused(model: Path, tmp_path: Path) -> None:
    build_corpus(tmp_path / "other", [[1, 2]], tokenizer_sha256="ab" * 32)
    with pytest.raises(CorpusError, match="another tokenizer"):
        Engine.open(model, profile=None, knobs={CORPUS: str(tmp_path / "other")}, threads=1)
