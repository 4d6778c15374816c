# SPDX-License-Identifier: MIT OR Apache-2.0
"""The conversation as a scrolling column of messages, and what it shows while it is empty."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSize, Qt, Signal, Slot
from PySide6.QtWidgets import (
    QAbstractSlider,
    QHBoxLayout,
    QLabel,
    QPushButton,
    QScrollArea,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from app.chat.message import AnswerMessage, UserMessage, drawing_cost
from app.chat.transcript import Turn
from app.theme import Theme

COLUMN_PX = 860
# Older messages stay in the conversation but lose their widgets: each is a text document of its own.
WIDGET_LIMIT = 120
FILL_LIMIT = 600_000  # drawing cost of what is shown of a file at once, about a second
_AT_END_PX = 12
_FILLS = 10_000  # stretch of what takes all the room up to its greatest width

EXAMPLES = (
    "Why is decoding memory bound?",
    "Does speculative decoding change the answer?",
    "What does the acceptance figure tell me?",
)


class ConversationView(QScrollArea):
    """Message widgets in order. Scrolls along only while its end is in view."""

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._follow = True
        self.messages: list[UserMessage | AnswerMessage] = []
        self._hidden_count = 0
        self.setWidgetResizable(True)
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOn)
        self.setAccessibleName("Conversation")
        body = _Body()
        body.setObjectName("scrollBody")
        outer = QVBoxLayout(body)
        outer.setContentsMargins(18, 16, 8, 16)
        column = QWidget()
        column.setMaximumWidth(COLUMN_PX)
        column.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        self._column = QVBoxLayout(column)
        self._column.setContentsMargins(0, 0, 0, 0)
        self._column.setSpacing(16)
        self._earlier = QLabel()
        self._earlier.setProperty("role", "small")
        self._earlier.hide()
        self._column.addWidget(self._earlier)
        middle = QHBoxLayout()
        middle.addStretch(1)
        middle.addWidget(column, _FILLS)
        middle.addStretch(1)
        outer.addLayout(middle)
        outer.addStretch(1)
        self.setWidget(body)
        bar = self.verticalScrollBar()
        bar.rangeChanged.connect(self._on_range)
        bar.valueChanged.connect(self._on_value)

    def add(self, turn: Turn) -> UserMessage | AnswerMessage:
        """Append the widget of a turn."""
        kind = UserMessage if turn.role == "user" else AnswerMessage
        message = kind(self._theme, turn)
        self.messages.append(message)
        self._column.addWidget(message)
        while len(self.messages) > WIDGET_LIMIT:
            self._remove(0)
            self._hidden_count += 1
        self._say_earlier()
        return message

    def fill(self, turns: Sequence[Turn]) -> None:
        """Show finished turns in place of what was there, from the latest back to where it would take long."""
        self.clear()
        shown, left = 0, FILL_LIMIT
        for turn in reversed(turns[-WIDGET_LIMIT:]):
            left -= drawing_cost(turn)
            if left < 0 and shown >= 2:
                break
            shown += 1
        self._hidden_count = len(turns) - shown
        for turn in turns[self._hidden_count :]:
            message = self.add(turn)
            if isinstance(message, AnswerMessage):
                message.settle()
        self._say_earlier()

    def cut(self, message: UserMessage | AnswerMessage) -> None:
        """Remove `message` and all after it."""
        at = self.messages.index(message)
        while len(self.messages) > at:
            self._remove(len(self.messages) - 1)

    def clear(self) -> None:
        while self.messages:
            self._remove(0)
        self._hidden_count = 0
        self._say_earlier()

    def follow(self) -> None:
        """Go to the end and stay there."""
        self._follow = True
        self.verticalScrollBar().setValue(self.verticalScrollBar().maximum())

    @Slot(int)
    def page(self, way: int) -> None:
        """Turn a page back (-1) or on (1)."""
        action = QAbstractSlider.SliderAction
        step = action.SliderPageStepSub if way < 0 else action.SliderPageStepAdd
        self.verticalScrollBar().triggerAction(step)

    @property
    def is_following(self) -> bool:
        return self._follow

    def restyle(self) -> None:
        for message in self.messages:
            message.restyle()

    def _remove(self, index: int) -> None:
        message = self.messages.pop(index)
        self._column.removeWidget(message)
        message.hide()
        message.deleteLater()

    def _say_earlier(self) -> None:
        self._earlier.setVisible(self._hidden_count > 0)
        self._earlier.setText(
            f"{self._hidden_count} earlier messages are part of the conversation but not shown."
        )

    @Slot(int, int)
    def _on_range(self, _low: int, high: int) -> None:
        bar = self.verticalScrollBar()
        bar.setEnabled(high > 0)  # a handle as long as the bar would move nothing
        if self._follow:
            bar.setValue(high)

    @Slot(int)
    def _on_value(self, value: int) -> None:
        self._follow = value >= self.verticalScrollBar().maximum() - _AT_END_PX


class _Body(QWidget):
    """As high as its messages are at its width; at their narrowest they are higher, which left a blank end."""

    def minimumSizeHint(self) -> QSize:
        least = super().minimumSizeHint()
        if self.layout().hasHeightForWidth():
            least.setHeight(self.layout().totalHeightForWidth(max(self.width(), least.width())))
        return least


class EmptyState(QWidget):
    """What the chat shows before the first message. Signals: asked(question), demo_wanted, folder_wanted."""

    asked = Signal(str)
    demo_wanted = Signal()
    folder_wanted = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("page")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(16, 16, 16, 16)
        outer.addStretch(2)
        column = QWidget()
        column.setFixedWidth(440)
        inner = QVBoxLayout(column)
        inner.setContentsMargins(0, 0, 0, 0)
        inner.setSpacing(9)
        self.title = QLabel()
        self.title.setProperty("role", "headline")
        self.hint = QLabel()
        self.hint.setWordWrap(True)
        self.hint.setProperty("role", "dim")
        self.hint.setMinimumHeight(self.hint.fontMetrics().lineSpacing() * 4)
        self.hint.setAlignment(Qt.AlignmentFlag.AlignTop)
        inner.addWidget(self.title)
        inner.addWidget(self.hint)
        self.demo_button = QPushButton("Open the demo model")
        self.demo_button.setObjectName("primary")
        self.demo_button.clicked.connect(self.demo_wanted)
        self.folder_button = QPushButton("Open a folder…")
        self.folder_button.clicked.connect(self.folder_wanted)
        self._openers = QWidget()
        line = QHBoxLayout(self._openers)
        line.setContentsMargins(0, 0, 0, 0)
        line.addWidget(self.demo_button)
        line.addWidget(self.folder_button)
        line.addStretch(1)
        inner.addWidget(self._openers)
        self.examples: list[QPushButton] = []
        for question in EXAMPLES:
            button = QPushButton(question)
            button.setObjectName("example")
            button.setProperty("question", question)
            button.clicked.connect(self._ask)
            policy = button.sizePolicy()
            policy.setRetainSizeWhenHidden(True)
            button.setSizePolicy(policy)
            inner.addWidget(button)
            self.examples.append(button)
        outer.addWidget(column, 0, Qt.AlignmentFlag.AlignHCenter)
        outer.addStretch(3)
        self.show_state("", "", examples=False, enabled=False)

    def show_state(
        self, title: str, hint: str, *, examples: bool, enabled: bool, openers: bool = False
    ) -> None:
        self.title.setText(title)
        self.hint.setText(hint)
        self._openers.setVisible(openers)
        for button in self.examples:
            button.setVisible(examples)
            button.setEnabled(enabled)

    @Slot()
    def _ask(self) -> None:
        self.asked.emit(self.sender().property("question"))
