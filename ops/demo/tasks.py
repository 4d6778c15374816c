# SPDX-License-Identifier: MIT OR Apache-2.0
"""Generated tasks whose answers repeat the prompt: copy, quote, list, replace, upper case."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

COPY = (
    "Repeat this text exactly: {t}",
    "Copy this text: {t}",
    "Repeat exactly: {t}",
    "Say this again, word for word: {t}",
    "Write this text once more:\n{t}",
    "Please copy the following text.\n\n{t}",
    "repeat: {t}",
    "Echo this: {t}",
    "Copy the following text exactly:\n\n{t}",
)
QUOTE = (
    "Quote the {n} sentence of: {t}",
    "Quote the {n} sentence of this text: {t}",
    "What is the {n} sentence of this text?\n\n{t}",
    "Give me the {n} sentence of the following text:\n{t}",
)
LIST = (
    "List the words in order: {t}",
    "List these words, one a line: {t}",
    "Make a list of these words: {t}",
    "Write each word on its own line: {t}",
)
REPLACE = (
    "Replace {a} by {b} in: {t}",
    "Replace {a} with {b} in this text: {t}",
    "Change {a} to {b} in the text: {t}",
    "In the following text, replace {a} by {b}:\n{t}",
)
UPPER = (
    "Write the first word in upper case: {t}",
    "Put the first word of this text in capitals: {t}",
)
ORDINALS = ("first", "second", "third")


class Tasks:
    """Draws tasks from the corpus' own sentences and words.

    Attributes:
        sentences: single-line sentences of the answers.
        words: distinct words of the answers.
    """

    def __init__(self, answers: Sequence[str]) -> None:
        flat = [" ".join(answer.split()) for answer in answers if "```" not in answer]
        parts = [p for a in flat for p in re.split(r"(?<=[.!?]) (?=[A-Z])", a)]
        self.sentences = sorted({p for p in parts if 20 <= len(p) <= 220})
        found = (w.strip(".,:;()`*\"'") for a in flat for w in a.split())
        self.words = sorted({w for w in found if w and len(w) <= 14})

    def draw(self, rng: random.Random) -> tuple[str, str]:
        """One (request, answer)."""
        kind = rng.random()
        if kind < 0.45:
            text = self._text(rng)
            return rng.choice(COPY).format(t=text), text
        if kind < 0.62:
            sentences = rng.sample(self.sentences, rng.choice((2, 3)))
            at = rng.randrange(len(sentences))
            request = rng.choice(QUOTE).format(n=ORDINALS[at], t=" ".join(sentences))
            return request, sentences[at]
        if kind < 0.78:
            words = rng.sample(self.words, rng.randint(2, 12))
            joined = (", " if rng.random() < 0.5 else " ").join(words)
            return rng.choice(LIST).format(t=joined), "\n".join(f"- {word}" for word in words)
        text = self._text(rng)
        words = text.split(" ")
        if kind < 0.93:
            plain = [w for w in words if w.isalpha()]
            if plain:
                old, new = rng.choice(plain), rng.choice(self.words)
                request = rng.choice(REPLACE).format(a=old, b=new, t=text)
                return request, " ".join(new if w == old else w for w in words)
        answer = " ".join([words[0].upper(), *words[1:]])
        return rng.choice(UPPER).format(t=text), answer

    def _text(self, rng: random.Random) -> str:
        if rng.random() < 0.45:
            return " ".join(rng.sample(self.sentences, rng.choice((1, 1, 1, 2, 2, 3))))
        if rng.random() < 0.15:
            letters = "abcdefghijklmnopqrstuvwxyz0123456789_-/."
            return " ".join(
                "".join(rng.choice(letters) for _ in range(rng.randint(2, 7)))
                for _ in range(rng.randint(1, 8))
            )
        words = [rng.choice(self.words) for _ in range(rng.randint(2, 40))]
        text = " ".join(words)
        return text[:1].upper() + text[1:] + "." if rng.random() < 0.5 else text
