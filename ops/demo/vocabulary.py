# SPDX-License-Identifier: MIT OR Apache-2.0
"""Trains the byte-level BPE tokenizer and renders chats as token ids."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import ByteLevel as ByteLevelProcessor
from tokenizers.trainers import BpeTrainer

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)


def train_tokenizer(texts: Iterable[str], vocab: int) -> Tokenizer:
    """A tokenizer of exactly vocab ids, the added tokens last.

    Raises:
        ValueError: the text supports fewer merges than asked for.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = ByteLevelProcessor(trim_offsets=False)
    trainer = BpeTrainer(
        vocab_size=vocab - len(CONTROL) - len(MARKS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in CONTROL])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in MARKS])
    if tokenizer.get_vocab_size() != vocab:
        raise ValueError(f"the text gave {tokenizer.get_vocab_size()} ids instead of {vocab}")
    return tokenizer


class Chat:
    """Chats as token ids, equal to rendering the chat template and encoding the result.

    Message text is encoded without the added tokens, so text that spells one stays text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        ids = {token: tokenizer.token_to_id(token) for token in (*CONTROL, *MARKS)}
        self.end = ids["<|im_end|>"]
        self._start, self._think, self._done = (
            ids["<|im_start|>"],
            ids["<think>"],
            ids["</think>"],
        )
        self._plain = Tokenizer.from_str(tokenizer.to_str())
        self._plain.encode_special_tokens = True
        self._spelled = [token for token in MARKS]
        self._newline, self._blank = self.text("\n"), self.text("\n\n")

    def text(self, content: str) -> list[int]:
        """Ids of message text; a mark such as <think> inside it is split so it stays text."""
        for mark in self._spelled:
            if mark in content:
                head, tail = content.split(mark, 1)
                inner = self.text(mark[0]) + self.text(mark[1:])
                return (self.text(head) if head else []) + inner + (self.text(tail) if tail else [])
        return self._plain.encode(content, add_special_tokens=False).ids

    def turn(self, role: str, content: str) -> list[int]:
        """A complete turn with its closing token and newline."""
        return [*self.open(role), *self.text(content), self.end, *self._newline]

    def open(self, role: str) -> list[int]:
        """The header of a turn."""
        return [self._start, *self.text(role + "\n")]

    def thought(self, reasoning: str | None) -> tuple[list[int], list[int]]:
        """(ids of the generation prompt after the header, ids to be generated before the answer).

        None renders the empty thinking block that the template writes by default.
        """
        if reasoning is None:
            return [self._think, *self._blank, self._done, *self._blank], []
        head = [self._think, *self._newline]
        return head, [*self.text(reasoning + "\n"), self._done, *self._blank]


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes tokenizer.json."""
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
