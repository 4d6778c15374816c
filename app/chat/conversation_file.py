# SPDX-License-Identifier: MIT OR Apache-2.0
"""A conversation as a JSON file that holds all of it, and back. No Qt.

What such a file says is not trusted: it is checked field by field, and its text is cleaned as typed text is.
"""

from __future__ import annotations

import json
import math
import re
import stat
from collections.abc import Sequence
from dataclasses import MISSING, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from app.chat.conversation_markdown import to_markdown
from app.chat.readout import ENDINGS
from app.chat.transcript import Conversation, Turn, clean
from app.format import byte_size
from engine.api import ErrorReport, Generation, replace_text, unique_keys

__all__ = [
    "LIMIT_BYTES",
    "ConversationFileError",
    "from_json",
    "proposed_name",
    "read_conversation",
    "to_json",
    "to_markdown",
    "write_conversation",
]

FORMAT, VERSION = "rondo-conversation", 1
LIMIT_BYTES = 16 << 20  # a context of 262 144 tokens is about 1 MB of text
MARKDOWN_SUFFIXES = (".md", ".markdown")
_NAME_CHARACTERS = 48
_WORDS_LIMIT = 20_000  # characters of what a label shows whole
_QUOTED = 60  # characters of the file that an error repeats
_WHOLE_LIMIT, _REAL_LIMIT = 2**53, 1e15  # figures beyond these are none
_ROLES = ("user", "assistant")
_FAILED = "error"
_ANOTHER = "Choose a .json file that Rondo saved."


class ConversationFileError(Exception):
    """A file that is no conversation, or cannot hold one: the cause in words, and what to do."""

    def __init__(self, cause: str, next_step: str = _ANOTHER) -> None:
        cause = " ".join(clean(cause).split())
        super().__init__(cause)
        self.cause, self.next_step = cause, next_step


# Writing.


def to_json(conversation: Conversation) -> str:
    """The whole conversation, one line a turn; the stacks of errors, which name folders, are left out.

    ValueError for a figure that is NaN or infinite.
    """
    head = {
        "format": FORMAT,
        "version": VERSION,
        "saved": conversation.saved.isoformat(timespec="seconds"),
        "model": clean(conversation.model),
    }
    lines = [f" {_dump(key)}: {_dump(value)}," for key, value in head.items()]
    turns = ",\n".join("  " + _dump(_turn_fields(turn)) for turn in conversation.turns)
    return "\n".join(["{", *lines, ' "turns": [', turns, " ]", "}", ""])


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _turn_fields(turn: Turn) -> dict[str, Any]:
    if turn.role == "user":
        return {"role": "user", "text": clean(turn.text)}
    made, error = turn.generation, turn.error
    return {
        "role": "assistant",
        "model": clean(turn.model),
        "text": clean(turn.text),
        "reasoning": clean(turn.reasoning),
        "ended": made.finish_reason if made is not None else _FAILED,
        "speculated": turn.speculated,
        "figures": _record_fields(made, _OF_TURN),
        "error": _record_fields(error, _OF_RUN),
    }


def _record_fields(record: Generation | ErrorReport | None, left_out: tuple[str, ...]) -> object:
    if record is None:
        return None
    found = {field.name: getattr(record, field.name) for field in fields(record)}
    return {
        name: clean(value)[:_WORDS_LIMIT] if isinstance(value, str) else value
        for name, value in found.items()
        if name not in left_out
    }


# Fields of the records that stand elsewhere in a turn, or belong to the run alone.
_OF_TURN = ("text", "reasoning", "finish_reason")
_OF_RUN = ("details",)


def proposed_name(turns: Sequence[Turn], now: datetime) -> str:
    """A file name without a suffix: the date and the first words, of letters, digits and hyphens."""
    asked = next((turn.text for turn in turns if turn.role == "user"), "")
    words = ""
    for word in re.findall(r"[^\W_]+", clean(asked[:1000])):
        longer = f"{words}-{word}"
        if len(longer) > _NAME_CHARACTERS:
            break
        words = longer
    return f"{now:%Y-%m-%d}{words or '-conversation'}"


def write_conversation(path: Path, conversation: Conversation, *, markdown: bool) -> None:
    """Put the conversation in the place of what `path` holds, all of it or nothing.

    Raises OSError where the file cannot be written, and ConversationFileError for one that could not be opened
    again for its size.
    """
    text = (to_markdown if markdown else to_json)(conversation)
    size = len(text.encode())
    if not markdown and size > LIMIT_BYTES:
        raise ConversationFileError(
            f"The conversation takes {byte_size(size)}, and a file of more than {byte_size(LIMIT_BYTES)} "
            "is not opened again.",
            "Save it as Markdown.",
        )
    replace_text(path, text)


# Reading.


def read_conversation(path: Path) -> Conversation:
    """The conversation in a file.

    Raises ConversationFileError for a file that holds none, OSError for one that cannot be read.
    """
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise ConversationFileError("It is a folder.")
    if not stat.S_ISREG(status.st_mode):
        raise ConversationFileError("It is a pipe or a device.")
    if status.st_size > LIMIT_BYTES:
        raise _too_large(status.st_size)
    with path.open("rb") as file:
        data = file.read(LIMIT_BYTES + 1)
    if len(data) > LIMIT_BYTES:
        raise _too_large(len(data))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConversationFileError(f"It is not UTF-8 text (byte {error.start}).") from error
    return from_json(text)


def _too_large(size: int) -> ConversationFileError:
    return ConversationFileError(
        f"It has {byte_size(size)}; a conversation has {byte_size(LIMIT_BYTES)} at most."
    )


def from_json(text: str) -> Conversation:
    """The conversation that `to_json` wrote; ConversationFileError names the first field that is wrong."""
    try:
        data = json.loads(text, object_pairs_hook=unique_keys, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        cause = f"It is not JSON (line {error.lineno}, column {error.colno})."
        raise ConversationFileError(cause) from error
    except (ValueError, RecursionError) as error:
        raise ConversationFileError(f"It is not read as JSON: {str(error)[:200]}.") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ConversationFileError("It is JSON, but not a conversation of Rondo.")
    if _value(data, "version", "int", "the file") != VERSION:
        raise ConversationFileError(
            f"It is of version {data['version']} of the format; this Rondo reads version {VERSION}.",
            "Open it with the Rondo that saved it.",
        )
    saved = _value(data, "saved", "str", "the file")
    try:
        when = datetime.fromisoformat(saved)
    except ValueError as error:
        raise ConversationFileError(f"“saved” is no date: {_quoted(saved)}.") from error
    turns = data.get("turns")
    if not isinstance(turns, list):
        raise ConversationFileError("“turns” is not a list.")
    if not turns or len(turns) % 2:
        raise ConversationFileError("Its turns are not a question and its answer, each in turn.")
    read = tuple(
        _turn(turn, _ROLES[index % 2], f"turn {index + 1}") for index, turn in enumerate(turns)
    )
    return Conversation(read, _value(data, "model", "str", "the file"), when)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _turn(data: object, role: str, where: str) -> Turn:
    if not isinstance(data, dict):
        raise ConversationFileError(f"{where} is not an object.")
    if data.get("role") != role:
        found = _quoted(data.get("role"))
        raise ConversationFileError(f"{where}: “role” is {found} where “{role}” is its turn.")
    text = clean(_value(data, "text", "text", where))
    if role == "user":
        if not text.strip():
            raise ConversationFileError(f"{where}: the question is empty.")
        return Turn("user", text)
    turn = Turn("assistant", text, clean(_value(data, "reasoning", "text", where)))
    turn.model = _value(data, "model", "str", where)
    turn.speculated = _value(data, "speculated", "bool", where)
    ended = _value(data, "ended", "str", where)
    if ended == _FAILED:
        turn.status = "failed"
        turn.error = ErrorReport(**_record(ErrorReport, data, "error", where, _OF_RUN))
    elif ended in ENDINGS:
        of_turn = {"text": turn.text, "reasoning": turn.reasoning, "finish_reason": ended}
        figures = _record(Generation, data, "figures", where, _OF_TURN)
        turn.generation = Generation(**of_turn, **figures)
    else:
        raise ConversationFileError(f"{where}: “ended” is {_quoted(ended)}, which is no ending.")
    return turn


def _record(
    kind: type, data: dict[str, Any], name: str, where: str, left_out: tuple[str, ...]
) -> dict[str, Any]:
    """The fields of a record, each of its type; one with a default may be missing."""
    inner = data.get(name)
    if not isinstance(inner, dict):
        raise ConversationFileError(f"{where}: “{name}” is not an object.")
    wanted = [field for field in fields(kind) if field.name not in left_out]
    return {
        field.name: _value(inner, field.name, str(field.type), f"{where}, “{name}”")
        for field in wanted
        if field.name in inner or field.default is MISSING
    }


def _is_whole(value: object) -> bool:
    return type(value) is int and 0 <= value < _WHOLE_LIMIT


def _is_real(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < _REAL_LIMIT


# By the type of a record's field: what fits, and its name. "text" is text of any length.
_KINDS = {
    "text": (lambda value: isinstance(value, str), "text"),
    "str": (lambda value: isinstance(value, str) and len(value) <= _WORDS_LIMIT, "a short text"),
    "bool": (lambda value: isinstance(value, bool), "true or false"),
    "int": (_is_whole, "a whole number"),
    "float": (_is_real, "a number"),
    "tuple[int, ...]": (
        lambda value: isinstance(value, list) and all(map(_is_whole, value)),
        "a list of whole numbers",
    ),
}


def _value(data: dict[str, Any], name: str, kind: str, where: str) -> Any:
    if name not in data:
        raise ConversationFileError(f"{where}: “{name}” is missing.")
    value = data[name]
    plain = kind.removesuffix(" | None")
    if value is None and plain != kind:
        return None
    fits, said = _KINDS[plain]
    if not fits(value):
        raise ConversationFileError(
            f"{where}: “{name}” is {_quoted(value)} where {said} is expected."
        )
    if plain == "str":
        return clean(value)
    if plain == "float":
        return float(value)
    return tuple(value) if isinstance(value, list) else value


def _quoted(value: object) -> str:
    """A value of the file as an error repeats it: short, and without going through all of it."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, str):
        return f"“{value[:_QUOTED]}”" + ("…" if len(value) > _QUOTED else "")
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= _WHOLE_LIMIT:
        return "a number too large"
    if isinstance(value, float) and not math.isfinite(value):
        return "a number too large"
    return json.dumps(value)
