# SPDX-License-Identifier: MIT OR Apache-2.0
"""The strip under an answer: one tick a round, as tall as the tokens it committed, coloured by drafter."""

from __future__ import annotations

import numpy as np
from PySide6.QtCore import QEvent, QRect, QSize
from PySide6.QtGui import QHelpEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from app.theme import DRAFTER_TOKENS, Theme
from engine.api import DRAFTERS

HEIGHT_PX = 24
_PITCHES_PX = (4, 3, 2, 1)
_NAMES = ("no draft", "MTP draft", "lookup draft", "block draft")


class RoundStrip(QWidget):
    """Ticks of one answer; where they do not fit, the latest ones are shown and the tool tip says so."""

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._committed = np.zeros(256, np.int32)
        self._drafter = np.zeros(256, np.int8)
        self.count = 0
        self._tallest = 4
        self.setFixedHeight(HEIGHT_PX)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setAccessibleName("Rounds of this answer")

    def sizeHint(self) -> QSize:
        return QSize(200, HEIGHT_PX)

    def add(self, rows: np.ndarray) -> None:
        """Append round records (dtype ROUND_DTYPE)."""
        end = self.count + len(rows)
        if end > len(self._committed):
            size = max(end, 2 * len(self._committed))
            self._committed = np.resize(self._committed, size)
            self._drafter = np.resize(self._drafter, size)
        self._committed[self.count : end] = rows["committed_tokens"]
        self._drafter[self.count : end] = rows["drafter"]
        self.count = end
        self._tallest = max(self._tallest, int(rows["committed_tokens"].max(initial=0)))
        self.update()

    def visible_range(self) -> tuple[int, int]:
        """(first round shown, pixels a round)."""
        for pitch in _PITCHES_PX:
            if self.count * pitch <= self.width():
                return 0, pitch
        return max(0, self.count - self.width()), 1

    def describe(self, index: int) -> str:
        """What a tick says: "round 12: 3 tok, MTP draft"."""
        drafter = int(self._drafter[index])
        name = _NAMES[drafter] if drafter < len(DRAFTERS) else "unknown drafter"
        return f"round {index + 1} of {self.count}: {int(self._committed[index])} tok, {name}"

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        ground = HEIGHT_PX - 1
        painter.fillRect(QRect(0, ground, self.width(), 1), self._theme.qcolor("line"))
        first, pitch = self.visible_range()
        if self.count == first:
            return
        wide = max(1, pitch - 1)
        heights = np.maximum(
            2, (self._committed[first : self.count] * (HEIGHT_PX - 4)) // self._tallest
        )
        kinds = self._drafter[first : self.count]
        for kind, token in enumerate(DRAFTER_TOKENS):
            color = self._theme.qcolor(token)
            for at in np.nonzero(kinds == kind)[0].tolist():
                tall = int(heights[at])
                painter.fillRect(at * pitch, ground - tall, wide, tall, color)

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            first, pitch = self.visible_range()
            index = first + event.pos().x() // pitch
            text = self.describe(index) if index < self.count else ""
            if text and first:
                text += f"\nshown: the last {self.count - first} rounds"
            QToolTip.showText(event.globalPos(), text, self)
            return True
        return super().event(event)
