# SPDX-License-Identifier: MIT OR Apache-2.0
"""A conversation as a Markdown file for reading. No Qt.

A thinking part stands quoted in front of its answer. Raw HTML and images, which the window shows as text, stay
text for whatever renders the file.
"""

from __future__ import annotations

import re

from app.chat.readout import readout
from app.chat.transcript import Conversation, Turn, clean

_FENCE = re.compile(r"^(\s*)(`{3,}(?=[^`]*$)|~{3,})(.*)$")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# What a viewer would make HTML or an image of, behind what is passed over: an escaped character, a code span.
_LIVE = r"(?P<live><(?=[A-Za-z/!?])(?!(?:https?://|mailto:)[^\s<>]*>)|!(?=\[))"
_LIVE_IN_LINE = re.compile(r"\\.|(?<!`)(`+)(?!`)(?:.*?[^`])\1(?!`)|" + _LIVE)
_LIVE_IN_LONG_LINE = re.compile(r"\\.|" + _LIVE)  # spans are found in quadratic time
_LONG_LINE = 4000
_MARKS = re.compile(r"([\\`*_\[\]<>#|~&!])")


def to_markdown(conversation: Conversation) -> str:
    """Model and date, then each question, the thinking quoted, the answer and its line of figures."""
    models = list(dict.fromkeys(_models(conversation)))
    parts = [
        f"# Conversation of {conversation.saved:%Y-%m-%d %H:%M}",
        f"{'Models' if len(models) > 1 else 'Model'}: {', '.join(map(_inline, models)) or 'not known'}",
    ]
    for turn in conversation.turns:
        if turn.role == "user":
            parts += ["## You", _lines_kept(_body(turn.text))]
            continue
        by = f" ({_inline(turn.model)})" if len(models) > 1 and turn.model else ""
        parts.append(f"## Rondo{by}")
        if turn.reasoning.strip():
            parts.append(_quote("**Thinking**\n\n" + _body(turn.reasoning)))
        parts += [_body(turn.text), _ending(turn)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _models(conversation: Conversation) -> list[str]:
    wrote = [turn.model for turn in conversation.turns if turn.role != "user" and turn.model]
    return wrote or [name for name in [conversation.model] if name]


def _ending(turn: Turn) -> str:
    if turn.generation is not None:
        return f"*{readout(turn.generation, turn.speculated)}*"
    if turn.error is not None:
        return f"*ended by an error: {_inline(turn.error.title)}.* {_inline(turn.error.cause)}"
    return ""


def _body(text: str) -> str:
    """Text with dead control characters, without live HTML and images; a code fence left open is closed."""
    lines = _shown(text).strip("\n").split("\n")
    in_code, left_open = _code_lines(lines)
    for index, line in enumerate(lines):
        if not in_code[index]:
            live = _LIVE_IN_LINE if len(line) <= _LONG_LINE else _LIVE_IN_LONG_LINE
            lines[index] = live.sub(_dead, line)
    return "\n".join([*lines, left_open] if left_open else lines)


def _code_lines(lines: list[str]) -> tuple[list[bool], str]:
    """Which lines are of code, their fences included, and the line that closes a fence left open."""
    indent = fence = ""
    in_code = []
    for line in lines:
        found = _FENCE.match(line)
        in_code.append(bool(fence or found))
        if not found:
            continue
        if not fence:
            indent, fence = found[1], found[2]
        elif found[2].startswith(fence) and not found[3].strip():
            fence = ""
    return in_code, f"{indent}{fence}" if fence else ""


def _dead(match: re.Match[str]) -> str:
    return f"\\{match[0]}" if match["live"] else match[0]


def _lines_kept(text: str) -> str:
    """Typed lines stay lines: a break behind each that another one follows, outside of code."""
    lines = text.split("\n")
    in_code, _ = _code_lines(lines)
    for index, (line, after) in enumerate(zip(lines, lines[1:], strict=False)):
        if not in_code[index] and line.strip() and after.strip():
            lines[index] = line.rstrip() + "  "
    return "\n".join(lines)


def _quote(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.split("\n"))


def _inline(text: str) -> str:
    """Words of one line that no mark in them turns into anything else."""
    return _MARKS.sub(r"\\\1", " ".join(_shown(text).split()))


def _shown(text: str) -> str:
    return _CONTROL.sub("\ufffd", clean(text).replace("\r\n", "\n").replace("\r", "\n"))
