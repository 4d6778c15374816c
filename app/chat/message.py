# SPDX-License-Identifier: MIT OR Apache-2.0
"""The widgets of one turn: what the user asked, and an answer with its thinking, strip and readout."""

from __future__ import annotations

import numpy as np
from PySide6.QtCore import QSize, Qt, Signal, Slot
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QSizePolicy,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.chat.body import MessageBody
from app.chat.readout import details, readout
from app.chat.strip import RoundStrip
from app.chat.transcript import Turn
from app.errors import ErrorCard
from app.format import grouped
from app.icons import icon
from app.theme import Theme
from engine.api import Snapshot

# A user message is shown up to here; all of it is sent.
SHOWN_LIMIT = 1500
# The same for a text that is shown whole at once, as one from a file is: well under a second of work.
DRAWN_LIMIT = 200_000
_LINE_COST = 64  # of a line, in characters that take as long


def icon_button(theme: Theme, name: str, tip: str) -> QToolButton:
    """A small icon button with an accessible name and a tool tip."""
    button = QToolButton()
    button.setProperty("icon_name", name)
    button.setIcon(icon(name, theme.color("dim"), theme.color("edge")))
    button.setIconSize(QSize(15, 15))
    button.setToolTip(tip)
    button.setAccessibleName(tip)
    return button


def drawing_cost(turn: Turn) -> int:
    """How much work it is to show a turn at once, as a number of characters; its limits count."""
    if turn.role == "user":
        return SHOWN_LIMIT
    return sum(min(_cost(text), DRAWN_LIMIT) for text in (turn.text, turn.reasoning))


def _cost(text: str) -> int:
    return len(text) + _LINE_COST * text.count("\n")


def _drawn_part(text: str) -> str:
    """As much of a text as is shown at once, from its beginning."""
    if _cost(text) <= DRAWN_LIMIT:
        return text
    left, size = DRAWN_LIMIT, 0
    for line in text[:DRAWN_LIMIT].split("\n"):
        left -= len(line) + _LINE_COST
        if left < 0:
            break
        size += len(line) + 1
    return text[:size] or text[: DRAWN_LIMIT - _LINE_COST]


def _speaker(text: str) -> QLabel:
    label = QLabel(text)
    label.setProperty("role", "small")
    return label


class UserMessage(QFrame):
    """A question, shown as the plain text it is. Signals: edit_wanted."""

    edit_wanted = Signal()

    def __init__(self, theme: Theme, turn: Turn, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("userCard")
        self.setAccessibleName("Your message")
        self.turn = turn
        self._theme = theme
        column = QVBoxLayout(self)
        column.setContentsMargins(14, 4, 8, 10)
        column.setSpacing(0)
        row = QHBoxLayout()
        row.addWidget(_speaker("You"))
        row.addStretch()
        self.edit_button = icon_button(theme, "edit", "Edit and send again")
        self.copy_button = icon_button(theme, "copy", "Copy message")
        self.edit_button.clicked.connect(self.edit_wanted)
        self.copy_button.clicked.connect(self._copy)
        row.addWidget(self.edit_button)
        row.addWidget(self.copy_button)
        column.addLayout(row)
        self.body = MessageBody(theme, "Text of your message")
        self.body.set_plain(turn.text[:SHOWN_LIMIT])
        column.addWidget(self.body)
        if len(turn.text) > SHOWN_LIMIT:
            note = (
                f"Shown: the first {grouped(SHOWN_LIMIT)} of {grouped(len(turn.text))} characters. "
                "All of it was sent."
            )
            column.addWidget(_speaker(note))

    @Slot()
    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self.turn.text)

    def set_free(self, free: bool) -> None:
        """Whether the engine is free for what the buttons ask."""
        self.edit_button.setEnabled(free)

    def restyle(self) -> None:
        self.body.restyle()
        _retint(self, self._theme)


class AnswerMessage(QWidget):
    """An answer while it is written and after. Signals: retry_wanted, cut_wanted, link_clicked(address)."""

    retry_wanted = Signal()
    cut_wanted = Signal()
    link_clicked = Signal(str)

    def __init__(self, theme: Theme, turn: Turn, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.turn = turn
        self._theme = theme
        self.may_be_cut = False
        self.setAccessibleName("Answer")
        column = QVBoxLayout(self)
        column.setContentsMargins(14, 0, 8, 6)
        column.setSpacing(6)
        column.addWidget(_speaker("Rondo"))
        self.thinking = ThinkingSection(theme)
        self.thinking.hide()
        column.addWidget(self.thinking)
        self.body = MessageBody(theme, "Text of the answer")
        self.body.link_clicked.connect(self.link_clicked)
        column.addWidget(self.body)
        self.error_card: ErrorCard | None = None
        self.strip = RoundStrip(theme)
        column.addWidget(self.strip)
        row = QHBoxLayout()
        row.setSpacing(2)
        self.figures = QLabel()
        self.figures.setProperty("role", "small")
        self.figures.setTextFormat(Qt.TextFormat.PlainText)
        self.figures.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.figures.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Minimum)
        self.figures.setWordWrap(True)
        row.addWidget(self.figures, 1)
        self.retry_button = icon_button(theme, "retry", "Write this answer again")
        self.copy_button = icon_button(theme, "copy", "Copy answer")
        self.retry_button.clicked.connect(self.retry_wanted)
        self.copy_button.clicked.connect(self._copy)
        row.addWidget(self.retry_button)
        row.addWidget(self.copy_button)
        column.addLayout(row)
        self._column = column
        self.retry_button.setEnabled(False)

    def feed(self, thinking: str, answer: str) -> None:
        """Show what arrived."""
        if thinking:
            self.thinking.show()
            self.thinking.body.feed(thinking)
        if answer:
            if self.thinking.isVisibleTo(self) and not self.body.source:
                self.thinking.set_open(False)
            self.body.feed(answer)

    def add_rounds(self, rows: np.ndarray) -> None:
        self.strip.add(rows)

    def show_running(self, snapshot: Snapshot) -> None:
        """The footer while the answer is not there yet."""
        if snapshot.state == "prefilling" and snapshot.prompt_tokens:
            share = 100 * snapshot.prompt_done // snapshot.prompt_tokens
            text = (
                f"reading the prompt: {grouped(snapshot.prompt_done)} of "
                f"{grouped(snapshot.prompt_tokens)} tok ({share} %)"
            )
        elif snapshot.state == "writing":
            text = f"{'thinking' if snapshot.thinking else 'writing'}: {grouped(snapshot.tokens_out)} tok"
        else:
            text = "waiting for the engine"
        if text != self.figures.text():
            self.figures.setText(text)

    def settle(self, snapshot: Snapshot | None = None) -> None:
        """Show the turn as it ended."""
        turn = self.turn
        self.strip.setVisible(self.strip.count > 0)  # of an answer from a file no round is known
        if self.body.source.strip() != turn.text.strip():
            self._draw(self.body, turn.text)
        self.body.finish()
        if turn.reasoning.strip():
            self.thinking.show()
            if self.thinking.body.source.strip() != turn.reasoning.strip():
                self._draw(self.thinking.body, turn.reasoning)
            self.thinking.body.finish()
            self.thinking.set_open(self.thinking.is_open and not turn.text)
        if turn.generation is not None:
            self.figures.setText(readout(turn.generation, turn.speculated))
            self.figures.setToolTip(details(turn.generation))
        if turn.error is not None:
            self.figures.setText(
                "refused: later messages go without this one"
                if turn.is_refused
                else "ended by an error"
            )
            may_be_cut = self.may_be_cut and turn.is_refused
            remedy = "Drop the oldest part and send again" if may_be_cut else ""
            self.body.setVisible(bool(turn.text))
            self.error_card = ErrorCard(turn.error, snapshot, dismissable=False, remedy=remedy)
            self.error_card.remedy_wanted.connect(self.cut_wanted)
            self._column.insertWidget(self._column.indexOf(self.strip), self.error_card)

    def _draw(self, body: MessageBody, text: str) -> None:
        """Show a text in place of what was there; of a very long one its beginning, and a note."""
        part = _drawn_part(text)
        body.set_source(part)
        if len(part) < len(text):
            note = (
                f"Shown: the first {grouped(len(part))} of {grouped(len(text))} characters. "
                "All of it is part of the conversation."
            )
            self._column.insertWidget(self._column.indexOf(self.strip), _speaker(note))

    def set_free(self, free: bool) -> None:
        """Whether the engine is free for what the buttons ask."""
        self.retry_button.setEnabled(free and self.turn.status in ("done", "failed"))
        if self.error_card is not None and self.error_card.remedy_button is not None:
            self.error_card.remedy_button.setEnabled(free)

    @Slot()
    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self.turn.text)

    def restyle(self) -> None:
        self.body.restyle()
        self.thinking.restyle()
        self.strip.update()
        _retint(self, self._theme)


class ThinkingSection(QWidget):
    """The thinking part: open while it is written, folded once the answer starts."""

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self.is_open = True
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(4)
        self.button = QToolButton()
        self.button.setText("Thinking")
        self.button.setObjectName("fold")
        self.button.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self.button.setIconSize(QSize(12, 12))
        self.button.setAccessibleName("Show or hide the thinking part")
        self.button.clicked.connect(self._toggle)
        column.addWidget(self.button, 0, Qt.AlignmentFlag.AlignLeft)
        self._frame = QFrame()
        self._frame.setObjectName("thinking")
        inner = QVBoxLayout(self._frame)
        inner.setContentsMargins(12, 0, 0, 0)
        self.body = MessageBody(theme, "Text of the thinking part", scale=0.94, ink="dim")
        inner.addWidget(self.body)
        column.addWidget(self._frame)
        self.set_open(True)

    def set_open(self, is_open: bool) -> None:
        self.is_open = is_open
        self._frame.setVisible(is_open)
        self.button.setIcon(icon("down" if is_open else "right", self._theme.color("dim")))

    @Slot()
    def _toggle(self) -> None:
        self.set_open(not self.is_open)

    def restyle(self) -> None:
        self.body.restyle()
        self.set_open(self.is_open)


def _retint(widget: QWidget, theme: Theme) -> None:
    for button in widget.findChildren(QToolButton):
        name = button.property("icon_name")
        if name:
            button.setIcon(icon(name, theme.color("dim"), theme.color("edge")))
