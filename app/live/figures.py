# SPDX-License-Identifier: MIT OR Apache-2.0
"""Figures that hold still: painted in fixed places, right-aligned, with their unit in the label."""

from __future__ import annotations

from PySide6.QtCore import QRect, QSize, Qt
from PySide6.QtGui import QFontMetrics, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.format import NONE
from app.theme import DRAFTER_TOKENS, Theme


class Figure(QWidget):
    """A label, a number, and a line under it. Changing the number never changes the size."""

    def __init__(
        self, theme: Theme, label: str, *, widest: str, big: bool = False, parent=None
    ) -> None:
        super().__init__(parent)
        self._theme, self._label = theme, label
        self._value, self._note, self._dim = NONE, "", True
        self._short_note = ""
        self._value_font = theme.ui_font(2.3 if big else 1.55, bold=False)
        self._label_font = theme.ui_font(0.88)
        value, small = QFontMetrics(self._value_font), QFontMetrics(self._label_font)
        self._label_px, self._value_px = small.height(), value.height()
        self._note_px = small.height()
        self._size = QSize(
            max(value.horizontalAdvance(widest), small.horizontalAdvance(label)) + 4,
            self._label_px + self._value_px + self._note_px + 2,
        )
        # In a row with taller ones it takes their height, so that labels and notes stand in line.
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Minimum)
        self.setAccessibleName(f"{label}: not measured")

    def set_value(
        self, value: str, note: str = "", *, short_note: str = "", dim: bool = False
    ) -> None:
        """Show a number; `dim` marks one no longer fresh, `short_note` serves where the note has no room."""
        self._short_note = short_note
        if (value, note, dim) == (self._value, self._note, self._dim):
            return
        self._value, self._note, self._dim = value, note, dim
        self.setAccessibleName(f"{self._label}: {value if value != NONE else 'not measured'}")
        self.update()

    @property
    def value(self) -> str:
        return self._value

    @property
    def note(self) -> str:
        return self._note

    def note_shown(self) -> str:
        """The note, or its short form where it has no room."""
        fits = QFontMetrics(self._label_font).horizontalAdvance(self._note) <= self.width()
        return self._note if fits else self._short_note or self._note

    def sizeHint(self) -> QSize:
        return self._size

    def minimumSizeHint(self) -> QSize:
        return self._size

    def paintEvent(self, _event: QPaintEvent) -> None:
        painter = QPainter(self)
        right = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        wide = self.width()
        painter.setFont(self._label_font)
        painter.setPen(self._theme.qcolor("dim"))
        painter.drawText(QRect(0, 0, wide, self._label_px), right, self._label)
        note_at = self.height() - 2 - self._note_px
        painter.drawText(QRect(0, note_at, wide, self._note_px), right, self.note_shown())
        painter.setFont(self._value_font)
        painter.setPen(self._theme.qcolor("dim" if self._dim else "text"))
        between = QRect(0, self._label_px, wide, note_at - self._label_px)
        painter.drawText(between, right, self._value)


class SplitBar(QWidget):
    """Where the time of a round goes: one bar of parts, and a row of figures under it."""

    _TOKENS = ("part_draft", "part_verify", "part_sample", "part_commit", "part_other")

    def __init__(self, theme: Theme, names: tuple[str, ...], parent=None) -> None:
        super().__init__(parent)
        self._theme, self._names = theme, names
        self._parts: tuple[float, ...] | None = None
        self._texts = [NONE] * len(names)
        self._dim = True
        self._font = theme.ui_font(0.88)
        self._line_px = QFontMetrics(self._font).height()
        self.setFixedHeight(12 + 6 + 2 * self._line_px + 2)
        self.setMinimumWidth(240)
        self.setAccessibleName("Parts of a round")

    def set_parts(self, parts_ms: tuple[float, ...] | None, *, dim: bool) -> None:
        """Milliseconds of each part, in the order of the names."""
        texts = [f"{part:.2f}" for part in parts_ms] if parts_ms else [NONE] * len(self._names)
        if texts == self._texts and dim == self._dim:
            return
        self._parts, self._texts, self._dim = parts_ms, texts, dim
        said = ", ".join(f"{n} {t} ms" for n, t in zip(self._names, texts, strict=True))
        self.setAccessibleName(f"Parts of a round: {said}")
        self.update()

    def paintEvent(self, _event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setFont(self._font)
        painter.setOpacity(0.55 if self._dim and self._parts else 1.0)
        wide = self.width()
        painter.fillRect(QRect(0, 0, wide, 12), self._theme.qcolor("line"))
        total = sum(self._parts) if self._parts else 0.0
        at = 0.0
        for index, token in enumerate(self._TOKENS):
            if total > 0:
                share = self._parts[index] / total * wide
                painter.fillRect(
                    QRect(round(at), 0, round(at + share) - round(at), 12),
                    self._theme.qcolor(token),
                )
                at += share
        painter.setOpacity(1.0)
        cell = wide / len(self._names)
        for index, (name, text) in enumerate(zip(self._names, self._texts, strict=True)):
            left = round(index * cell)
            painter.fillRect(
                QRect(left, 18 + self._line_px // 2 - 4, 7, 7),
                self._theme.qcolor(self._TOKENS[index]),
            )
            painter.setPen(self._theme.qcolor("dim"))
            painter.drawText(left + 11, 18, int(cell) - 12, self._line_px, 0, name)
            painter.setPen(self._theme.qcolor("dim" if self._dim else "text"))
            painter.drawText(
                left + 11, 18 + self._line_px, int(cell) - 12, self._line_px + 2, 0, text
            )


class DrafterLine(QWidget):
    """Which drafter the last rounds came from: a square, a name and a share for each, in fixed places."""

    NAMES = ("none", "MTP", "lookup", "block")

    def __init__(self, theme: Theme, parent=None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._texts = [NONE] * len(self.NAMES)
        self._dim = True
        self._font = theme.ui_font(0.88)
        self._line_px = QFontMetrics(self._font).height()
        self.setFixedHeight(2 * self._line_px + 2)
        self.setMinimumWidth(240)
        self.setAccessibleName("Drafters of the last rounds")

    @property
    def texts(self) -> list[str]:
        return list(self._texts)

    def set_counts(self, counts: tuple[int, ...], *, dim: bool) -> None:
        """Rounds of each drafter, in the order of the names."""
        total = sum(counts)
        texts = [f"{100 * n / total:.0f} %" if total else NONE for n in counts]
        if texts == self._texts and dim == self._dim:
            return
        self._texts, self._dim = texts, dim
        said = ", ".join(f"{n} {t}" for n, t in zip(self.NAMES, texts, strict=True))
        self.setAccessibleName(f"Drafters of the last rounds: {said}")
        self.update()

    def paintEvent(self, _event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setFont(self._font)
        cell = self.width() / len(self.NAMES)
        for index, (name, text) in enumerate(zip(self.NAMES, self._texts, strict=True)):
            left = round(index * cell)
            square = QRect(left, self._line_px // 2 - 4, 7, 7)
            painter.fillRect(square, self._theme.qcolor(DRAFTER_TOKENS[index]))
            wide = int(cell) - 12
            painter.setPen(self._theme.qcolor("dim"))
            painter.drawText(left + 11, 0, wide, self._line_px, 0, name)
            painter.setPen(self._theme.qcolor("dim" if self._dim else "text"))
            painter.drawText(left + 11, self._line_px, wide, self._line_px + 2, 0, text)


class Gauge(QWidget):
    """A thin bar with words at both ends."""

    def __init__(self, theme: Theme, label: str, parent=None) -> None:
        super().__init__(parent)
        self._theme, self._label = theme, label
        self._share, self._text = 0.0, NONE
        self._font = theme.ui_font(0.88)
        self._line_px = QFontMetrics(self._font).height()
        self.setFixedHeight(self._line_px + 9)
        self.setMinimumWidth(200)
        self.setAccessibleName(label)

    @property
    def text(self) -> str:
        return self._text

    def set_value(self, share: float, text: str) -> None:
        if (share, text) == (self._share, self._text):
            return
        self._share, self._text = share, text
        self.setAccessibleName(f"{self._label}: {text}")
        self.update()

    def paintEvent(self, _event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setFont(self._font)
        row = QRect(0, 0, self.width(), self._line_px)
        painter.setPen(self._theme.qcolor("dim"))
        painter.drawText(row, Qt.AlignmentFlag.AlignLeft, self._label)
        painter.setPen(self._theme.qcolor("text"))
        painter.drawText(row, Qt.AlignmentFlag.AlignRight, self._text)
        bar = QRect(0, self._line_px + 4, self.width(), 3)
        painter.fillRect(bar, self._theme.qcolor("line"))
        full = "warn" if self._share > 0.9 else "accent"
        bar.setWidth(round(self.width() * min(1.0, self._share)))
        painter.fillRect(bar, self._theme.qcolor(full))
