# SPDX-License-Identifier: MIT OR Apache-2.0
"""A loaded model answers: figures, stops, limits and every kind of odd prompt."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoints import make_checkpoint, write_shards

from engine import Engine
from engine.answer import AnswerStream
from engine.api import GenerateRequest, Message
from engine.errors import LongPromptError, NumericsError, PromptError, UsageError
from engine.numbers import grouped


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("model")
    make_checkpoint(folder, max_position_embeddings=256)
    # One stop id: a random model happens upon two of them too soon.
    (folder / "generation_config.json").write_text('{"eos_token_id": [0]}')
    with Engine.open(
        folder, profile=None, knobs={"QWEN38_CPU_ISA": "reference"}, threads=1
    ) as opened:
        yield opened


def ask(text: str, **changes: object) -> GenerateRequest:
    return GenerateRequest(messages=(Message("user", text),), **{"max_tokens": 12, **changes})


def test_the_streamed_text_is_the_answer_and_the_figures_add_up(engine: Engine) -> None:
    parts: list[str] = []
    rounds = []
    done = engine.generate(
        ask("the engine reads"), on_text=parts.append, on_round=lambda *r: rounds.append(r)
    )
    assert "".join(parts) == done.text
    assert len(done.token_ids) == 12
    assert done.finish_reason == "length"
    assert done.rounds == len(rounds)
    assert sum(len(each.tokens) for each, _, _ in rounds) == len(done.token_ids) - 1
    assert done.drafted_tokens == sum(each.drafted for each, _, _ in rounds)
    assert done.tokens_per_round == pytest.approx(11 / done.rounds)
    assert done.prompt_tokens + 11 == rounds[-1][2]


@pytest.mark.parametrize("depth", ["1", "2", "3", "4"])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_drafting_never_changes_the_text(tmp_path: Path, depth: str, temperature: float) -> None:
    make_checkpoint(tmp_path, mtp=True)
    knobs = {"QWEN38_CPU_ISA": "reference", "QWEN38_MTP_DEPTH": depth}
    request = ask("a draft of three", max_tokens=40, temperature=temperature, seed=3)
    with Engine.open(tmp_path, profile=None, knobs=knobs, threads=1) as opened:
        drafted = opened.generate(request)
        plain = opened.generate(
            ask(
                "a draft of three",
                max_tokens=40,
                temperature=temperature,
                seed=3,
                speculate=False,
            )
        )
    assert drafted.drafted_tokens > 0
    assert plain.drafted_tokens == 0
    assert drafted.token_ids == plain.token_ids


def test_a_seed_fixes_the_text_and_another_seed_changes_it(engine: Engine) -> None:
    first, again, other = (
        engine.generate(ask("the", temperature=1.0, seed=seed, max_tokens=30)).token_ids
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_a_stop_string_cuts_exactly_before_it(engine: Engine) -> None:
    whole = engine.generate(ask("the engine", max_tokens=30)).text
    stop = whole[5:8]
    cut = engine.generate(ask("the engine", max_tokens=30, stop=(stop,)))
    assert cut.finish_reason == "stop"
    assert cut.text == whole[: whole.index(stop)]


def test_the_tokens_of_a_stopped_answer_do_not_depend_on_the_drafter(engine: Engine) -> None:
    """A stop string that ends inside a round cuts the tokens the round committed behind it."""
    ids = engine.encode("the engine reads the pace of memory")
    in_one_round = AnswerStream(engine._checkpoint, ("reads",), False, None)
    assert in_one_round.add(ids)
    one_by_one = AnswerStream(engine._checkpoint, ("reads",), False, None)
    for token in ids:
        if one_by_one.add((token,)):
            break
    assert in_one_round.ids == one_by_one.ids
    assert len(one_by_one.ids) < len(ids)
    assert in_one_round.split() == one_by_one.split() == ("the engine ", "")


def test_a_stop_token_ends_the_answer_and_is_not_part_of_it(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    knobs = {"QWEN38_CPU_ISA": "reference"}
    with Engine.open(tmp_path, profile=None, knobs=knobs, threads=1) as opened:
        ids = opened.generate(ask("the pace", max_tokens=20)).token_ids
    stop = next(token for token in ids[3:] if token not in ids[:3])
    (tmp_path / "generation_config.json").write_text(f'{{"eos_token_id": [{stop}]}}')
    with Engine.open(tmp_path, profile=None, knobs=knobs, threads=1) as opened:
        done = opened.generate(ask("the pace", max_tokens=20))
    assert done.finish_reason == "stop"
    assert done.token_ids == ids[: ids.index(stop)]


def test_generation_runs_into_the_context_and_says_so(engine: Engine) -> None:
    done = engine.generate(ask("the pace", max_tokens=1000))
    assert done.finish_reason == "context"
    assert done.prompt_tokens + len(done.token_ids) == 256 + 1


def test_a_prompt_that_does_not_fit_is_refused_with_the_numbers_or_cut_on_request(
    engine: Engine,
) -> None:
    long = "memory " * 600
    with pytest.raises(PromptError, match="256") as refused:
        engine.generate(ask(long))
    tokens, _ = engine.prompt_ids(ask(long))
    assert f"{grouped(len(tokens))}" in refused.value.cause
    cut = engine.generate(ask(long, truncate=True, max_tokens=1))
    assert cut.prompt_tokens == 255
    assert cut.dropped_prompt_tokens == len(tokens) - 255
    # A cut prompt leaves room for the answer, but keeps at least half of the context.
    assert engine.generate(ask(long, truncate=True, max_tokens=20)).finish_reason == "length"
    cut = engine.generate(ask(long, truncate=True, max_tokens=1000, stop=("zz",)))
    assert cut.prompt_tokens == 128


def test_token_ids_that_do_not_fit_are_refused_or_cut_likewise(engine: Engine) -> None:
    ids = tuple(at % 600 for at in range(300))
    with pytest.raises(LongPromptError, match="300 tokens; the context holds 256"):
        engine.generate(GenerateRequest(token_ids=ids))
    cut = engine.generate(GenerateRequest(token_ids=ids, truncate=True, max_tokens=1))
    assert (cut.prompt_tokens, cut.dropped_prompt_tokens) == (255, 45)
    with pytest.raises(LongPromptError) as refused:
        engine.generate(GenerateRequest(token_ids=ids[:256]))
    assert refused.value.next_step == "Shorten it by 1 token."
    with pytest.raises(PromptError, match="300 tokens do not fit the context of 256"):
        engine.logits(ids)


@pytest.mark.parametrize(
    "text",
    [
        "a\0b",
        "\ud800 alone",
        "🙂👩‍👩‍👧 漢字 é",
        "مرحبا (test) 123",
        "<script>alert(1)</script>",
        "<|im_end|><|im_start|>system",
        "x" * 200,
    ],
    ids=["nul", "surrogate", "emoji", "arabic", "script", "control", "one line"],
)
def test_odd_prompts_are_answered(engine: Engine, text: str) -> None:
    assert engine.generate(ask(text, max_tokens=3, truncate=True)).token_ids


def test_a_hundred_kilobyte_prompt_is_refused_quickly(engine: Engine) -> None:
    with pytest.raises(PromptError, match="context"):
        engine.generate(ask("kilobyte " * 11_000))


@pytest.mark.parametrize("text", ["", "   \n"])
def test_an_empty_prompt_is_refused(engine: Engine, text: str) -> None:
    with pytest.raises(PromptError, match="empty"):
        engine.generate(ask(text))
    with pytest.raises(PromptError, match="exactly one"):
        engine.generate(GenerateRequest())


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_k": -1},
        {"min_p": 2.0},
        {"max_tokens": 0},
        {"stop": ("zz", "")},
    ],
)
def test_values_outside_their_range_are_refused(engine: Engine, changes: dict) -> None:
    with pytest.raises(UsageError):
        engine.generate(ask("hello", **changes))


def test_token_ids_outside_the_vocabulary_are_refused(engine: Engine) -> None:
    with pytest.raises(PromptError, match="640"):
        engine.generate(GenerateRequest(token_ids=(1, 640)))


def test_cancel_ends_within_a_round_and_keeps_the_text(engine: Engine) -> None:
    cancel = threading.Event()
    seen = []

    def stop_after_three(*_: object) -> None:
        seen.append(1)
        if len(seen) == 3:
            cancel.set()

    done = engine.generate(ask("the", max_tokens=100), on_round=stop_after_three, cancel=cancel)
    assert done.finish_reason == "cancelled"
    assert done.rounds == 3
    assert done.token_ids
    before = engine.generate(ask("the"), cancel=cancel)
    assert before.finish_reason == "cancelled"
    assert before.token_ids == ()


def test_a_weight_that_went_bad_is_named(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    knobs = {"QWEN38_CPU_ISA": "reference"}
    with Engine.open(tmp_path, profile=None, knobs=knobs, threads=1) as opened:
        opened._backend._weights.layers[2].gate.weight[0, 0] = float("nan")
        with pytest.raises(NumericsError, match="layer 2"):
            opened.generate(ask("hello"))


def test_switches_flip_between_answers_and_keep_the_text(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    request = ask("the engine", max_tokens=20)
    with Engine.open(tmp_path, profile=None, threads=1) as opened:
        before = opened.generate(request)
        recorded = len(opened._backend._graphs)
        opened.set_knobs({"QWEN38_MTP_DEPTH": "1", "QWEN38_VERIFY_GRAPH": "0"})
        after = opened.generate(request)
        assert after.token_ids == before.token_ids
        assert after.drafted_tokens <= after.rounds < before.drafted_tokens
        assert len(opened._backend._graphs) == recorded
        for changes, says in (
            ({"QWEN38_CPU_ISA": "avx2"}, "loaded"),
            ({"QWEN38_MTP_DEPTH": "x"}, "MTP_DEPTH"),
            ({"QWEN38_MTP_DEPTH": "2", "QWEN38_NOPE": "1"}, "NOPE"),
        ):
            with pytest.raises(UsageError, match=says):
                opened.set_knobs(changes)
        assert opened.generate(request).drafted_tokens == after.drafted_tokens


@pytest.mark.parametrize("isa", ["reference", ""])
def test_padded_vocabulary_rows_are_never_chosen(tmp_path: Path, isa: str) -> None:
    """Rows behind the tokenizer's last id win every logit, and still no such id appears."""
    tensors = make_checkpoint(tmp_path, tied=False)
    tensors["lm_head.weight"][380:] = tensors["lm_head.weight"][7] * 8
    tensors["lm_head.weight"][380::2] *= -1
    write_shards(tmp_path, tensors, 1)
    knobs = {"QWEN38_CPU_ISA": isa}
    with Engine.open(tmp_path, profile=None, knobs=knobs, threads=1) as opened:
        assert opened.logits([1, 2, 3]).argmax(-1).min() >= 380
        for temperature in (0.0, 2.0):
            done = opened.generate(ask("the pace", max_tokens=12, temperature=temperature, seed=1))
            assert done.token_ids
            assert max(done.token_ids) < 380


def test_thinking_is_kept_apart_from_the_answer(engine: Engine) -> None:
    parts: list[str] = []
    done = engine.generate(ask("the engine", thinking=True), on_text=parts.append)
    assert "".join(parts).startswith("<think>\n")
    assert done.text == ""
    assert done.reasoning
