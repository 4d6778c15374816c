# SPDX-License-Identifier: MIT OR Apache-2.0
"""The text of one scripted answer as it grows."""

from __future__ import annotations

import re
from bisect import bisect_right


class TextStream:
    """The characters of one answer; appended by the engine thread, read from any position."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._starts: list[int] = []
        self._end = 0

    def append(self, piece: str) -> None:
        self._pieces.append(piece)
        self._starts.append(self._end)
        self._end += len(piece)

    def since(self, cursor: int) -> tuple[str, int]:
        count = len(self._starts)  # the piece is there before its start is
        if not count or cursor >= self._starts[count - 1] + len(self._pieces[count - 1]):
            return "", cursor
        first = max(0, bisect_right(self._starts, cursor, 0, count) - 1)
        text = "".join(self._pieces[first:count])[cursor - self._starts[first] :]
        return text, cursor + len(text)

    def text(self) -> str:
        return "".join(self._pieces)


def pieces_of(text: str) -> list[str]:
    """Token-like pieces of up to six characters."""
    return re.findall(r"\s*\S{1,6}|\s+", text)
