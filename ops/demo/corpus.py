# SPDX-License-Identifier: MIT OR Apache-2.0
"""The written questions and answers: parsing, duplicate removal and the held-out phrasing."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Entry:
    """One subject: the phrasings to train on, the one kept for validation, and the answer."""

    questions: tuple[str, ...]
    held_out: str
    answer: str


def normalised(question: str) -> str:
    """A question without case and punctuation, for finding duplicates."""
    return " ".join(re.sub(r"[^\w/.:+-]+", " ", question.lower()).split()).rstrip(".")


def parse(text: str, source: str) -> list[tuple[list[str], str]]:
    """Blank-line separated entries of `Q: ` lines and one `A: ` that runs to the blank line.

    Lines that start with `#` outside an answer are comments. A fenced block may hold blank lines.

    Raises:
        ValueError: an entry lacks a question or an answer; names source and line.
    """
    entries: list[tuple[list[str], str]] = []
    questions: list[str] = []
    answer: list[str] | None = None
    fenced = False

    def close(line_number: int) -> None:
        nonlocal questions, answer
        if answer is not None and questions:
            entries.append((questions, "\n".join(answer).strip()))
        elif answer is not None or questions:
            raise ValueError(f"{source}:{line_number}: an entry needs `Q:` lines and one `A:`")
        questions, answer = [], None

    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if answer is not None and line.startswith("```"):
            fenced = not fenced
        if not line.strip() and not fenced:
            close(number)
        elif answer is not None:
            answer.append(line.rstrip())
        elif line.startswith("Q: "):
            questions.append(line[3:].strip())
        elif line.startswith("A: "):
            answer = [line[3:].rstrip()]
        elif not line.startswith("#"):
            raise ValueError(f"{source}:{number}: expected `Q: `, `A: `, `#` or a blank line")
    close(len(lines))
    return entries


def read_corpus(folder: Path, seed: int) -> tuple[list[Entry], int]:
    """Every entry of the folder's text files, and how many repeated phrasings were dropped.

    A phrasing that occurs twice stays with the entry that had it first, so no question has two
    answers. One phrasing of each entry, drawn by seed, is held out; never the first.
    """
    seen: set[str] = set()
    entries, dropped = [], 0
    for path in sorted(folder.glob("*.txt")):
        for questions, answer in parse(path.read_text(encoding="utf-8"), path.name):
            fresh = []
            for question in questions:
                key = normalised(question)
                if key in seen:
                    dropped += 1
                else:
                    seen.add(key)
                    fresh.append(question)
            if len(fresh) < 3:
                dropped += len(fresh)
                continue
            pick = 1 + random.Random(f"{seed}:{fresh[0]}").randrange(len(fresh) - 1)
            kept = tuple(q for i, q in enumerate(fresh) if i != pick)
            entries.append(Entry(kept, fresh[pick], answer))
    return entries, dropped
