# SPDX-License-Identifier: MIT OR Apache-2.0
"""Numbers beyond what can be done: refused with the limit named, or cut with a line that says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checkpoints import make_checkpoint

from engine.cli import OK, USAGE, main
from engine.numbers import grouped


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    make_checkpoint(folder, max_position_embeddings=128)
    return str(folder)


@pytest.mark.parametrize("context", [128, 100_000])
def test_a_context_beyond_the_model_is_cut_in_words(
    capsys: pytest.CaptureFixture[str], model: str, context: int
) -> None:
    words = ["--prompt", "the", "--raw", "--max-tokens", "2", "--threads", "1"]
    assert main(["generate", "--model", model, *words, "--context", str(context)]) == OK
    told = "note: The context holds 128 tokens, the model's limit; 100\u202f000 were asked for.\n"
    assert (told in capsys.readouterr().err) == (context > 128)


def test_a_cut_prompt_is_counted(capsys: pytest.CaptureFixture[str], model: str) -> None:
    words = ["--prompt", "the pace " * 200, "--raw", "--truncate", "--max-tokens", "2", "--json"]
    assert main(["generate", "--model", model, *words]) == OK
    dropped = json.loads(capsys.readouterr().out)["dropped_prompt_tokens"]
    assert dropped > 0
    assert main(["generate", "--model", model, *words[:-1]]) == OK
    assert f"2 tokens, {grouped(dropped)} tokens of the prompt cut, " in capsys.readouterr().err


def test_answers_that_the_context_cuts_short_are_told(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("the pace\nthe lamp\n")
    common = ["--model", model, "--threads", "1", "--prompts", str(prompts)]
    agree = ["agree", *common, "--configs", "served", "--tokens"]
    assert main([*agree, "5000"]) == OK
    told = "2 of 2 answers ended before 5\u202f000 tokens, because the context was full\n"
    assert told in capsys.readouterr().out
    assert main([*agree, "4"]) == OK
    assert "ended before" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (["--tokens", "500"], ": the context was full."),
        (["--tokens", "30", "--reference"], " tokens, not 30: the text they follow ends there."),
        (["--tokens", "8"], ""),
    ],
)
def test_an_ab_notes_answers_that_are_shorter_than_asked(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path, words: list[str], note: str
) -> None:
    if "--reference" in words:
        (tmp_path / "text").write_text("the lamp and the pace")
        words = [*words, str(tmp_path / "text")]
    common = ["--model", model, "--threads", "1", "--prompt", "the pace", "--repeats", "1"]
    assert main(["ab", *common, "--pairs", "6", *words, "--json"]) == OK
    notes = json.loads(capsys.readouterr().out)["notes"]
    short = [text for text in notes if text.startswith("Answers (prompt) have ")]
    assert len(short) == bool(note)
    assert all(text.endswith(note) for text in short)


@pytest.mark.parametrize(
    ("words", "cause", "limit"),
    [
        (["bench", "--turns", "51"], "Turns 51", "from 1 to 50"),
        (["bench", "--budget", "-1"], "Budget -1.0", "0 seconds or more"),
        (["bench", "--budget", "nan"], "Budget nan", "0 seconds or more"),
        (["bench", "--case-limit", "0"], "Case limit 0.0", "seconds above 0"),
        (["bench", "--seed", "-1"], "--seed -1 is negative", "0 or more"),
        (["bench", "--suite", "plan", "--context", "0"], "A context of 0", "1 to 4096"),
        (["bench", "--suite", "plan", "--context", "9999"], "A context of 9\u202f999", "1 to 4096"),
        (
            ["bench", "--suite", "policies", "--accept", "0.5", "--context", "9000"],
            "demo has 4\u202f096",
            "--context or --tokens",
        ),
        (
            ["bench", "--suite", "policies", "--tokens", "9000"],
            "9\u202f000 tokens do not",
            "--tokens ",
        ),
        (
            ["generate", "--prompt", "a", "--seed", str(1 << 64)],
            "seed 18446744073709551616",
            "64 bits",
        ),
    ],
)
def test_an_impossible_number_is_refused_with_its_limit(
    capsys: pytest.CaptureFixture[str], words: list[str], cause: str, limit: str
) -> None:
    assert main([*words, "--json"]) == USAGE
    error = json.loads(capsys.readouterr().out)["error"]
    assert cause in error["cause"]
    assert limit in error["next_step"]
