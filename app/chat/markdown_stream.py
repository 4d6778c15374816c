# SPDX-License-Identifier: MIT OR Apache-2.0
"""Parts a markdown stream into settled blocks and a tail, in time proportional to what arrives. No Qt.

A block is settled when no later character can change how it looks: at a blank line, at the next list item,
at a heading, at each line of a code fence. The result does not depend on how the stream was chunked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# Beyond this a paragraph or a code line is broken for display: layout cost grows with paragraph length.
LINE_LIMIT = 4000

_FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})\s*([^`]*)$")
_HEADING = re.compile(r"^ {0,3}#{1,6}(\s|$)")
_ITEM = re.compile(r"^ {0,1}([-*+]|\d{1,9}[.)])(\s|$)")
_ITEM_IN_PARAGRAPH = re.compile(r"^ {0,1}([-*+]|1[.)])\s+\S")
_RULE = re.compile(r"^ {0,3}([-*_])( *\1){2,} *$")
_CONTINUES = re.compile(r"^( {2,}|\t)\S")
# Characters that a text document takes for structure, or that cannot be shown.
_UNSAFE = re.compile("[\x00\ud800-\udfff\ufdd0\ufdd1\ufffc]")


@dataclass(frozen=True, slots=True)
class Block:
    """A settled markdown block (paragraph, heading, list item, quote, table)."""

    text: str


@dataclass(frozen=True, slots=True)
class CodeStart:
    language: str


@dataclass(frozen=True, slots=True)
class CodeText:
    """A piece of code; `ends_line` is False where a very long line was broken for display."""

    text: str
    ends_line: bool = True


@dataclass(frozen=True, slots=True)
class CodeEnd:
    pass


Op = Block | CodeStart | CodeText | CodeEnd


class MarkdownStream:
    """Feed it deltas; it returns what became settled. `tail` is the rest, `in_code` says of which kind."""

    def __init__(self) -> None:
        self._lines: list[str] = []  # complete lines of the block that is not settled
        self._size = 0  # characters in them, line ends included
        self._partial: list[str] = []  # pieces of the line that is not complete
        self._partial_size = 0
        self._fence = ""  # the mark that opened the code
        self._indent = 0
        self._carry = False  # a carriage return may be followed by a line feed

    @property
    def in_code(self) -> bool:
        return bool(self._fence)

    @property
    def tail(self) -> str:
        """The text that is not settled."""
        return "\n".join([*self._lines, "".join(self._partial)])

    def feed(self, delta: str) -> list[Op]:
        if not delta:
            return []
        delta = _UNSAFE.sub("\ufffd", delta)
        if self._carry:
            delta = "\r" + delta
        self._carry = delta.endswith("\r")
        if self._carry:
            delta = delta[:-1]
        delta = re.sub("\r\n?|\u2029|\u2028", "\n", delta)
        ops: list[Op] = []
        first, *rest = delta.split("\n")
        self._extend(first, ops)
        for piece in rest:
            line = "".join(self._partial)
            self._partial, self._partial_size = [], 0
            self._line(line, ops)
            self._extend(piece, ops)
        return ops

    def finish(self) -> list[Op]:
        """Settle everything; an open fence is closed."""
        ops: list[Op] = []
        if self._carry:
            self._carry = False
            ops += self.feed("\n")
        line = "".join(self._partial)
        self._partial, self._partial_size = [], 0
        if self._fence:
            if line and not self._closes(line):
                ops.append(CodeText(self._unindented(line)))
            self._fence = ""
            ops.append(CodeEnd())
        elif line:
            self._line(line, ops)
        if self._fence:
            self._fence = ""
            ops.append(CodeEnd())
        self._settle(ops)
        return ops

    def _extend(self, piece: str, ops: list[Op]) -> None:
        """Grow the line that is not complete, breaking what passes LINE_LIMIT."""
        if piece:
            self._partial.append(piece)
            self._partial_size += len(piece)
        while self._size + self._partial_size >= LINE_LIMIT:
            whole = self.tail
            if self._fence:
                ops.append(CodeText(whole[:LINE_LIMIT], ends_line=False))
                self._partial, self._partial_size = [whole[LINE_LIMIT:]], len(whole) - LINE_LIMIT
                continue
            at = max(whole.rfind(mark, LINE_LIMIT // 2, LINE_LIMIT) for mark in " \n") + 1
            at = at or LINE_LIMIT
            *self._lines, last = whole[at:].split("\n")
            self._size = sum(len(line) + 1 for line in self._lines)
            self._partial, self._partial_size = [last], len(last)
            ops.append(Block(whole[:at].rstrip("\n")))

    def _line(self, line: str, ops: list[Op]) -> None:
        """Take one complete line."""
        if self._fence:
            if self._closes(line):
                self._fence = ""
                ops.append(CodeEnd())
            else:
                ops.append(CodeText(self._unindented(line)))
            return
        opening = _FENCE.match(line)
        if opening:
            self._settle(ops)
            self._indent, self._fence = len(opening[1]), opening[2]
            ops.append(CodeStart(opening[3].split(" ")[0].strip()))
        elif not line.strip():
            if self._lines and _ITEM.match(self._lines[0]):
                self._push("")  # an indented line may still continue the item
            else:
                self._settle(ops)
        elif _HEADING.match(line) or _RULE.match(line):
            if _RULE.match(line) and self._lines and self._lines[-1] and "-" in line:
                self._push(line)  # the underline of a heading
            else:
                self._settle(ops)
                self._push(line)
            self._settle(ops)
        else:
            if self._breaks_before(line):
                self._settle(ops)
            self._push(line)

    def _breaks_before(self, line: str) -> bool:
        if not self._lines:
            return False
        if _ITEM.match(self._lines[0]):
            if _ITEM.match(line):
                return True
            return self._lines[-1] == "" and not _CONTINUES.match(line)
        return bool(_ITEM_IN_PARAGRAPH.match(line))

    def _push(self, line: str) -> None:
        self._lines.append(line)
        self._size += len(line) + 1

    def _settle(self, ops: list[Op]) -> None:
        text = "\n".join(self._lines).rstrip("\n")
        self._lines, self._size = [], 0
        if text.strip():
            ops.append(Block(text))

    def _closes(self, line: str) -> bool:
        mark = line.strip()
        return len(mark) >= len(self._fence) and set(mark) == {self._fence[0]}

    def _unindented(self, line: str) -> str:
        lead = len(line) - len(line.lstrip(" "))
        return line[min(lead, self._indent) :]
