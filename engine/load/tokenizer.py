# SPDX-License-Identifier: MIT OR Apache-2.0
"""Byte-level BPE in which typed text can never become a control token.

Every added token of tokenizer.json, marked special or not, counts as a control token. Text is encoded by a
tokenizer that does not know them; only the markup of a chat template may produce them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from engine.errors import CheckpointError, UnsupportedModelError
from engine.load.detokenise import Detokeniser, byte_of_character
from engine.load.files import parse_json_object, read_text

FILE = "tokenizer.json"
_MAX_ID = 1 << 24
_AGAIN = "Use the tokenizer.json that was published with this model."


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a prompt; only a piece of `markup` may hold control tokens."""

    text: str
    markup: bool


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A control token; `lstrip` and `rstrip` let it swallow the white space beside it."""

    content: str
    token_id: int
    lstrip: bool
    rstrip: bool


class Tokenizer:
    """Text to ids and back.

    `vocab_size` is the largest id plus one (rows of the embedding behind it are never produced),
    `control_ids` the ids that text can never become.
    """

    def __init__(self, text: str) -> None:
        """Build from the text of a tokenizer.json.

        Raises:
            CheckpointError: damaged or incomplete.
            UnsupportedModelError: not a byte-level BPE.
        """
        data = parse_json_object(text, FILE)
        vocabulary = _vocabulary(data)
        added = _added_tokens(data)
        self._ids_by_control = {token.content: token.token_id for token in added}
        self.control_ids = frozenset(self._ids_by_control.values())
        self._control = _control_pattern(added)
        self._core = _text_only(data, vocabulary, set(self._ids_by_control))
        self.token_bytes = _byte_table(vocabulary, added)
        self.vocab_size = len(self.token_bytes)
        self._check_control_stays_text()

    @staticmethod
    def read(folder: Path) -> Tokenizer:
        """The tokenizer of a model folder; raises CheckpointError when it has none."""
        text = read_text(folder, FILE)
        if text is None:
            raise CheckpointError(
                f"{FILE} is missing in {str(folder)!r}.",
                next_step=f"Download {FILE} of this model into the folder.",
            )
        return Tokenizer(text)

    def token_id(self, content: str) -> int | None:
        """The id of a control token such as <think>; None when the tokenizer has none of this name."""
        return self._ids_by_control.get(content)

    def encode_text(self, text: str) -> list[int]:
        """Ids of plain text, control tokens never among them; lone surrogates become U+FFFD."""
        return self._core.encode(clean_text(text), add_special_tokens=False).ids

    def encode_prompt(self, segments: Iterable[Segment]) -> list[int]:
        """Ids of a rendered prompt.

        Text between two control tokens is encoded as one run across the borders of segments, as if the
        whole prompt had been encoded at once.
        """
        ids: list[int] = []
        run: list[str] = []

        def end_run() -> None:
            if run:
                ids.extend(self.encode_text("".join(run)))
                run.clear()

        for segment in segments:
            if not segment.markup or self._control is None:
                run.append(segment.text)
                continue
            position = 0
            for match in self._control.finditer(segment.text):
                run.append(segment.text[position : match.start()])
                end_run()
                ids.append(self._ids_by_control[match[match.lastgroup]])
                position = match.end()
            run.append(segment.text[position:])
        end_run()
        return ids

    def detokeniser(self) -> Detokeniser:
        """A decoder for one stream of ids."""
        return Detokeniser(self.token_bytes)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of all ids, control tokens by their names; broken bytes become U+FFFD."""
        stream = self.detokeniser()
        return stream.feed_all(token_ids) + stream.flush()

    def _check_control_stays_text(self) -> None:
        for content in self._ids_by_control:
            if not self.control_ids.isdisjoint(self.encode_text(content)):
                raise UnsupportedModelError(
                    f"{FILE}: typed text {content!r} would become a control token.",
                    next_step=_AGAIN,
                )


def clean_text(text: str) -> str:
    """The text with surrogate pairs joined and lone surrogates replaced by U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _vocabulary(data: dict[str, Any]) -> dict[str, int]:
    """Base tokens by their byte-level spelling, after the kind of the model has been checked."""
    model = data.get("model")
    kind = model.get("type") if isinstance(model, dict) else None
    if kind != "BPE" or not (
        _has_byte_level(data, "pre_tokenizer") and _has_byte_level(data, "decoder")
    ):
        raise UnsupportedModelError(
            f"{FILE} holds a tokenizer of the kind {kind!r}; this engine reads byte-level BPE.",
            next_step=_AGAIN,
        )
    for field in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(field):
            raise UnsupportedModelError(
                f"{FILE}: model.{field} is {model[field]!r}; byte-level BPE marks no parts of words.",
                next_step=_AGAIN,
            )
    vocabulary = model.get("vocab")
    if not isinstance(vocabulary, dict) or not all(map(_is_id, vocabulary.values())):
        raise CheckpointError(f"{FILE}: model.vocab must map tokens to ids.", next_step=_AGAIN)
    lacking = [byte for spelling, byte in byte_of_character().items() if spelling not in vocabulary]
    if lacking:
        raise CheckpointError(
            f"{FILE}: the vocabulary lacks {len(lacking)} of the 256 single bytes (the first is "
            f"0x{min(lacking):02x}), so not every text could be encoded.",
            next_step=_AGAIN,
        )
    return vocabulary


def _has_byte_level(data: dict[str, Any], field: str) -> bool:
    part = data.get(field)
    if not isinstance(part, dict):
        return False
    members = part.get("pretokenizers") or part.get("decoders") or [part]
    return any(isinstance(member, dict) and member.get("type") == "ByteLevel" for member in members)


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MAX_ID


def _added_tokens(data: dict[str, Any]) -> list[AddedToken]:
    listed = data.get("added_tokens") or []
    if not isinstance(listed, list):
        raise CheckpointError(f"{FILE}: added_tokens must be a list.", next_step=_AGAIN)
    added = []
    for item in listed:
        content = item.get("content") if isinstance(item, dict) else None
        if not isinstance(content, str) or not content or not _is_id(item.get("id")):
            raise CheckpointError(
                f"{FILE}: added_tokens holds {item!r}, which has no content or no id.",
                next_step=_AGAIN,
            )
        strips = bool(item.get("lstrip")), bool(item.get("rstrip"))
        added.append(AddedToken(content, item["id"], *strips))
    return added


def _control_pattern(added: list[AddedToken]) -> re.Pattern[str] | None:
    """Finds control tokens in markup, the longest first; the named group is the token itself."""
    if not added:
        return None
    longest_first = sorted(added, key=lambda token: -len(token.content))
    choices = [
        (r"\s*" if token.lstrip else "")
        + f"(?P<t{number}>{re.escape(token.content)})"
        + (r"\s*" if token.rstrip else "")
        for number, token in enumerate(longest_first)
    ]
    return re.compile("|".join(choices))


def _text_only(
    data: dict[str, Any], vocabulary: dict[str, int], control: set[str]
) -> tokenizers.Tokenizer:
    """The same tokenizer without its control tokens, neither as added tokens nor in the vocabulary."""
    text_only = {**data, "added_tokens": [], "post_processor": None}
    text_only |= {"truncation": None, "padding": None}
    # Dropped merges are for training: they would give one text other ids each time.
    text_only["model"] = model = {**data["model"], "dropout": None}
    in_base = control & vocabulary.keys()
    if not in_base.isdisjoint(byte_of_character()):
        raise UnsupportedModelError(
            f"{FILE}: a control token is spelled like a single byte, so typed text would become one.",
            next_step=_AGAIN,
        )
    try:
        if in_base:
            model["vocab"] = {token: i for token, i in vocabulary.items() if token not in in_base}
            model["merges"] = [m for m in model.get("merges") or [] if _keeps(m, in_base)]
        return tokenizers.Tokenizer.from_str(json.dumps(text_only))
    except (
        BaseException
    ) as error:  # merges may be anything, and a panic of the library is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise CheckpointError(f"{FILE} cannot be used: {error}.", next_step=_AGAIN) from error


def _keeps(merge: Any, removed: set[str]) -> bool:
    """Whether a merge, ["a", "b"] or "a b", neither makes nor takes a removed token."""
    pair = merge.split(" ") if isinstance(merge, str) else list(merge)
    return removed.isdisjoint(pair) and "".join(pair) not in removed


def _byte_table(vocabulary: dict[str, int], added: list[AddedToken]) -> list[bytes]:
    """The bytes of every id; ids that no token has give U+FFFD."""
    by_character = byte_of_character()
    largest = max([*vocabulary.values(), *(token.token_id for token in added)])
    table = ["\ufffd".encode()] * (largest + 1)
    for spelling, token_id in vocabulary.items():
        try:
            table[token_id] = bytes([by_character[character] for character in spelling])
        except KeyError:  # a token that is spelled plainly, not byte by byte
            table[token_id] = clean_text(spelling).encode()
    for token in added:
        table[token.token_id] = clean_text(token.content).encode()
    return table
