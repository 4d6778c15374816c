# SPDX-License-Identifier: MIT OR Apache-2.0
"""The status bar: state in a glyph and a word, how fresh the display is, its cost, memory and model."""

from __future__ import annotations

import statistics

from PySide6.QtCore import Qt, QTimer, Slot
from PySide6.QtGui import QFontMetrics, QResizeEvent
from PySide6.QtWidgets import QLabel, QSizePolicy, QStatusBar, QWidget

from app.bridge import Bridge
from app.format import byte_size
from app.live.now import GLYPHS, WORDS
from app.theme import Theme

_EVERY_MS = 500
_TICKS = 60


class StatusBar(QStatusBar):
    """Its own timer, so that it can tell when the pull itself has stopped."""

    def __init__(self, bridge: Bridge, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._bridge, self._theme = bridge, theme
        self.setSizeGripEnabled(False)
        self.state = self._cell("Engine state", *map(_state_text, WORDS))
        self.freshness = self._cell("Freshness of the display", "▲  no sign of life for 888 s")
        self.cost = self._cell("Cost of the display", "888.8 ms a refresh")
        self.memory = self._cell("Memory of the process", "memory 888.88 GB")
        self.model = self._cell("Model")
        self.model.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.model.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        for label, stretch in (
            (self.state, 0), (self.freshness, 0), (self.cost, 0), (self.memory, 0), (self.model, 1)
        ):  # fmt: skip
            self.addWidget(label, stretch)
        self.freshness.setToolTip(
            "How often this window took the engine's figures in the last second"
        )
        self.memory.setToolTip("Memory of this process, the window and the engine together")
        self._timer = QTimer(self)
        self._timer.timeout.connect(self.refresh)
        self._timer.start(_EVERY_MS)
        bridge.state_changed.connect(self.refresh)
        theme.changed.connect(self.refresh)
        self.refresh()

    def _cell(self, name: str, *widest: str) -> QLabel:
        """A label as wide as the widest of what it may say, so that its neighbours hold still."""
        label = QLabel()
        label.setProperty("role", "small")
        label.setAccessibleDescription(name)  # its name is what it says
        label.setTextFormat(Qt.TextFormat.PlainText)
        label.setContentsMargins(10, 2, 6, 2)
        metrics = QFontMetrics(self._theme.ui_font(0.9))
        if widest:
            label.setFixedWidth(max(map(metrics.horizontalAdvance, widest)) + 26)
        return label

    @property
    def silence_level(self) -> int:
        """0 fresh, 1 silent (amber), 2 lost (red)."""
        return self._bridge.silence_level()

    @Slot()
    def refresh(self, *_: object) -> None:
        snapshot = self._bridge.snapshot
        self.state.setText(_state_text(snapshot.state))
        level = self.silence_level
        if level:
            text = f"▲  no sign of life for {self._bridge.silence_s():.0f} s"
        else:
            count = self._bridge.ticks_per_second()
            text = f"{count} refresh{'' if count == 1 else 'es'}/s"
        self._paint(self.freshness, text, ("dim", "warn", "bad")[level])
        ticks = list(self._bridge.tick_ms)[-_TICKS:]
        self.cost.setText(f"{statistics.median(ticks) if ticks else 0.0:.1f} ms a refresh")
        self.cost.setToolTip(
            f"Median time of the last {_TICKS} refreshes on the window's own thread; "
            f"the longest took {max(ticks, default=0.0):.1f} ms"
        )
        self.memory.setText(f"memory {byte_size(snapshot.memory_bytes or None)}")
        card = snapshot.model
        self._say_model(f"{card.name} · {card.weight_format} · {card.speculation}" if card else "")

    def _say_model(self, text: str) -> None:
        """As much of it as there is room for, from its beginning; all of it in the tool tip.

        One line: the name is that of a folder, which may hold a line break.
        """
        text = " ".join(text.split())
        margins = self.model.contentsMargins()
        room = self.model.width() - margins.left() - margins.right()
        metrics = self.model.fontMetrics()
        self.model.setText(metrics.elidedText(text, Qt.TextElideMode.ElideRight, room))
        self.model.setToolTip(text)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.refresh()

    def _paint(self, label: QLabel, text: str, token: str) -> None:
        label.setText(text)
        style = "" if token == "dim" else f"color: {self._theme.color(token)};"
        if label.styleSheet() != style:
            label.setStyleSheet(style)


def _state_text(state: str) -> str:
    return f"{GLYPHS.get(state, '○')}  engine: {WORDS.get(state, state)}"
