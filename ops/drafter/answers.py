# SPDX-License-Identifier: MIT OR Apache-2.0
"""Lets the demo model answer the test prompts greedily, to measure drafters on.

    python -m ops.drafter.answers --out FILE

Writes one JSON object a line: ids (prompt and answer), start (first token of the answer), kind (corpus, copy or
outside).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

from engine import Engine
from engine.api import GenerateRequest, Message
from ops.demo.corpus import normalised, parse

ROOT = Path(__file__).resolve().parents[2]
_TASKS = ("Repeat this text", "Replace ", "List the words", "Quote the ")


def read_prompts(path: Path) -> list[str]:
    """The prompts of a file, one a line; lines that start with # are comments."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def corpus_questions(folder: Path) -> frozenset[str]:
    """Every phrasing of the corpus, normalised."""
    found = set()
    for path in sorted(folder.glob("*.txt")):
        for questions, _ in parse(path.read_text(encoding="utf-8"), path.name):
            found.update(map(normalised, questions))
    return frozenset(found)


def kind_of(prompt: str, known: frozenset[str]) -> str:
    """The class of a prompt: a copy task, a question of the corpus, or outside of both."""
    if prompt.startswith(_TASKS):
        return "copy"
    return "corpus" if normalised(prompt) in known else "outside"


def answers(
    engine: Engine, prompts: Iterable[str], known: frozenset[str], max_tokens: int
) -> Iterable[dict[str, object]]:
    """One record a prompt."""
    for prompt in prompts:
        request = GenerateRequest(
            messages=(Message("user", prompt),), max_tokens=max_tokens, temperature=0.0
        )
        ids, _ = engine.prompt_ids(request)
        done = engine.generate(request)
        yield {"ids": [*ids, *done.token_ids], "start": len(ids), "kind": kind_of(prompt, known)}


def main() -> None:
    """Parses the command line and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", type=Path, default=ROOT / "assets" / "demo-model")
    parser.add_argument("--prompts", type=Path, default=ROOT / "assets" / "prompts.txt")
    parser.add_argument("--corpus", type=Path, default=ROOT / "assets" / "demo-corpus")
    parser.add_argument("--max-tokens", type=int, default=128)
    options = parser.parse_args()
    known = corpus_questions(options.corpus)
    with Engine.open(options.model) as engine, options.out.open("w", encoding="utf-8") as file:
        prompts = read_prompts(options.prompts)
        for record in answers(engine, prompts, known, options.max_tokens):
            file.write(json.dumps(record) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
