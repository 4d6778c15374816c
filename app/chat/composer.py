# SPDX-License-Identifier: MIT OR Apache-2.0
"""Where the operator writes: a text field, pasted text too long to show, and the buttons of the chat."""

from __future__ import annotations

from PySide6.QtCore import QMimeData, QSize, Qt, Signal, Slot
from PySide6.QtGui import QFontMetricsF, QKeyEvent, QKeySequence
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QPlainTextEdit,
    QPushButton,
    QSizePolicy,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.chat.message import icon_button
from app.chat.sampling import SamplingButton
from app.chat.transcript import clean
from app.chat.view import COLUMN_PX
from app.format import grouped
from app.icons import icon
from app.settings import Sampling
from app.theme import Theme

# Pasted text beyond this many characters is kept beside the field: laying it out would freeze the window.
PASTE_LIMIT = 8_000
MESSAGE_LIMIT = 4_000_000
_CHARS_PER_TOKEN = 4
_LENGTH_FROM_PX = 620  # in a narrower window the buttons need the place
_LINES_MIN, _LINES_MAX = 3, 9


class Composer(QWidget):
    """Signals: send_wanted, stop_wanted, edit_cancelled, paged(up or down: -1 or 1)."""

    paged = Signal(int)
    send_wanted = Signal()
    stop_wanted = Signal()
    edit_cancelled = Signal()

    def __init__(self, theme: Theme, sampling: Sampling, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._can_send = False
        outer = QHBoxLayout(self)
        outer.setContentsMargins(18, 8, 18, 12)
        inner = QWidget()
        inner.setMaximumWidth(COLUMN_PX)
        outer.addWidget(inner)
        column = QVBoxLayout(inner)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(6)
        self.editing = _Notice(
            "Editing: sending replaces this message and all after it. Esc gives it up.", theme
        )
        self.editing.closed.connect(self.edit_cancelled)
        self.editing.hide()
        column.addWidget(self.editing)
        self.attachment = _Notice("", theme)
        self.attachment.closed.connect(self._drop_attachment)
        self.attachment.hide()
        column.addWidget(self.attachment)
        self._attached = ""
        self.note = _Notice("", theme, "Dismiss")
        self.note.closed.connect(self.note.hide)
        self.note.hide()
        column.addWidget(self.note)
        self.field = _Field()
        self.field.setPlaceholderText("Ask the model")
        self.field.setAccessibleName("Message to the model")
        self.field.textChanged.connect(self._on_text)
        self.field.long_pasted.connect(self.attach)
        self.field.escaped.connect(self._on_escape)
        self.field.paged.connect(self.paged)
        column.addWidget(self.field)
        row = QHBoxLayout()
        row.setSpacing(6)
        self.sampling = SamplingButton(theme, sampling)
        row.addWidget(self.sampling)
        self.thinking = QToolButton()
        self.thinking.setText("Thinking")
        self.thinking.setCheckable(True)
        self.thinking.setToolTip("Let the model think before it answers")
        self.thinking.setAccessibleName("Thinking before the answer")
        self.thinking.toggled.connect(self._say_thinking)
        self.thinking.hide()
        row.addWidget(self.thinking)
        row.addStretch(1)
        self.length = QLabel()
        self.length.setProperty("role", "small")
        self.length.setMinimumWidth(
            int(QFontMetricsF(self.length.font()).horizontalAdvance("about 1 000 000 tok"))
        )
        self.length.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        row.addWidget(self.length)
        self.stop = QPushButton("Stop")
        self.stop.setToolTip("Stop (Esc)")
        self.stop.clicked.connect(self.stop_wanted)
        self.stop.setEnabled(False)
        row.addWidget(self.stop)
        self.send = QPushButton("Send")
        self.send.setObjectName("primary")
        self.send.setToolTip("Send (Ctrl+Enter)")
        self.send.clicked.connect(self.send_wanted)
        row.addWidget(self.send)
        column.addLayout(row)
        self.setTabOrder(self.field, self.send)
        self._tint()
        self._on_text()

    def resizeEvent(self, event) -> None:
        super().resizeEvent(event)
        self.length.setVisible(self.width() >= _LENGTH_FROM_PX)

    # Content.

    def text(self) -> str:
        """What would be sent: the field, then the long pasted text."""
        typed = self.field.toPlainText()
        return clean("\n\n".join(part for part in (typed, self._attached) if part.strip()))

    def set_text(self, text: str) -> None:
        """Fill the field; a text too long to show is kept beside it."""
        text = clean(text)
        self._drop_attachment()
        self.field.clear()
        if len(text) > PASTE_LIMIT:
            self.attach(text)
        else:
            self.field.setPlainText(text)
            self.field.moveCursor(self.field.textCursor().MoveOperation.End)

    def clear(self) -> None:
        self.set_text("")

    @Slot(str)
    def attach(self, text: str) -> None:
        """Keep a long text beside the field; it is sent after what is typed."""
        whole = f"{self._attached}\n\n{text}" if self._attached else text
        if len(whole) > MESSAGE_LIMIT:
            self.attachment.say(
                f"Not added: {grouped(len(whole))} characters, the most is {grouped(MESSAGE_LIMIT)}."
            )
            self.attachment.show()
            return
        self._attached = clean(whole)
        begin = " ".join(self._attached[:60].split())
        self.attachment.say(
            f"Pasted text of {grouped(len(self._attached))} characters, sent with the message: “{begin}…”"
        )
        self.attachment.show()
        self._on_text()

    @Slot()
    def _drop_attachment(self) -> None:
        self._attached = ""
        self.attachment.hide()
        self._on_text()

    @Slot()
    def _on_escape(self) -> None:
        if self.editing.isVisible():
            self.edit_cancelled.emit()

    def say(self, words: str) -> None:
        """A quiet line above the field, until it is closed or another takes its place; none for no words."""
        self.note.say(words)
        self.note.setVisible(bool(words))

    # State.

    def set_state(self, *, can_send: bool, can_stop: bool, why_not: str = "") -> None:
        """Which of the two buttons work, and why sending does not."""
        self._can_send = can_send
        self.stop.setEnabled(can_stop)
        self.send.setToolTip(why_not or "Send (Ctrl+Enter)")
        self._on_text()

    @property
    def is_ready(self) -> bool:
        return self._can_send and bool(self._attached or self.field.toPlainText().strip())

    def set_thinks(self, thinks: bool, by_default: bool) -> None:
        self.thinking.setVisible(thinks)
        self.thinking.setChecked(by_default)
        self._say_thinking(by_default)

    def thinking_choice(self) -> bool | None:
        """True or False where the model has a thinking switch, None where it has none."""
        return self.thinking.isChecked() if self.thinking.isVisibleTo(self) else None

    def restyle(self) -> None:
        self._tint()
        self.sampling.restyle()
        for notice in (self.editing, self.attachment, self.note):
            notice.restyle()

    def _tint(self) -> None:
        theme = self._theme
        self.send.setIcon(icon("send", theme.color("on_accent"), theme.color("edge")))
        self.stop.setIcon(icon("stop", theme.color("bad"), theme.color("edge")))
        for button in (self.send, self.stop):
            button.setIconSize(QSize(13, 13))

    @Slot(bool)
    def _say_thinking(self, on: bool) -> None:
        self.thinking.setText("● Thinking on" if on else "○ Thinking off")

    @Slot()
    def _on_text(self) -> None:
        count = self.field.document().characterCount() - 1 + len(self._attached)
        tokens = -(-count // _CHARS_PER_TOKEN)
        self.length.setText(f"about {grouped(tokens)} tok" if count else "")
        self.send.setEnabled(self.is_ready)


class _Field(QPlainTextEdit):
    """A plain text field that grows from three to nine lines and hands long pastes and Esc on."""

    long_pasted = Signal(str)
    escaped = Signal()
    paged = Signal(int)

    def __init__(self) -> None:
        super().__init__()
        self.setTabChangesFocus(True)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.document().documentLayout().documentSizeChanged.connect(self._fit)
        self._fit()

    def insertFromMimeData(self, source: QMimeData) -> None:
        text = source.text()
        if len(text) > PASTE_LIMIT:
            self.long_pasted.emit(text)
        elif text:
            self.insertPlainText(clean(text))

    def canInsertFromMimeData(self, source: QMimeData) -> bool:
        return source.hasText()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.modifiers() == Qt.KeyboardModifier.ShiftModifier and event.key() in (
            Qt.Key.Key_Return,
            Qt.Key.Key_Enter,
        ):
            self.insertPlainText("\n")  # a line separator would come out as U+2028
            return
        if event.key() == Qt.Key.Key_Escape:
            self.escaped.emit()
            return
        back = event.matches(QKeySequence.StandardKey.MoveToPreviousPage)
        on = event.matches(QKeySequence.StandardKey.MoveToNextPage)
        if (back or on) and not self.verticalScrollBar().maximum():
            self.paged.emit(-1 if back else 1)  # nothing to turn over here
            return
        super().keyPressEvent(event)

    def resizeEvent(self, event) -> None:
        super().resizeEvent(event)
        self._fit()

    @Slot()
    def _fit(self) -> None:
        line = self.fontMetrics().lineSpacing()
        lines = int(self.document().size().height())
        shown = max(_LINES_MIN, min(_LINES_MAX, lines))
        self.setFixedHeight(shown * line + 2 * int(self.document().documentMargin()) + 12)


class _CutLabel(QLabel):
    """One line of plain text, cut with an ellipsis where it has no room; a screen reader is told all of it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.say(text)

    def say(self, text: str) -> None:
        self.whole = text
        self.setAccessibleName(text)
        self._cut()

    def resizeEvent(self, event) -> None:
        super().resizeEvent(event)
        self._cut()

    def _cut(self) -> None:
        right = Qt.TextElideMode.ElideRight
        self.setText(self.fontMetrics().elidedText(self.whole, right, self.width()))


class _Notice(QFrame):
    """One line above the field with a close button. Signal: closed."""

    closed = Signal()

    def __init__(self, text: str, theme: Theme, close_tip: str = "Remove") -> None:
        super().__init__()
        self._theme = theme
        self.setObjectName("chip")
        row = QHBoxLayout(self)
        row.setContentsMargins(10, 3, 4, 3)
        self._label = _CutLabel(text)
        row.addWidget(self._label, 1)
        self.close_button = icon_button(theme, "close", close_tip)
        self.close_button.clicked.connect(self.closed)
        row.addWidget(self.close_button)

    def say(self, text: str) -> None:
        self._label.say(text)

    def text(self) -> str:
        return self._label.whole

    def restyle(self) -> None:
        self.close_button.setIcon(icon("close", self._theme.color("dim")))
