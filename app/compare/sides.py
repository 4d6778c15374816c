# SPDX-License-Identifier: MIT OR Apache-2.0
"""Both sides of the next A/B before it starts: every marked switch, its value now and on side B."""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QGridLayout, QLabel, QPushButton, QWidget

from app.format import NONE
from app.knobs.candidate import Candidate
from app.knobs.model import shown
from engine.api import KnobRow

_NOTHING = (
    "Side A is what is in effect now. Mark a value on the knobs page: it becomes side B. "
    "Or measure A against A."
)
_SAME = "Both sides are the values in effect now."
_VALUE_PX = 90


class SidesTable(QWidget):
    """A line a switch: name, A now, B, what to know about it, Remove."""

    def __init__(self, candidate: Candidate, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._candidate = candidate
        self._rows: Mapping[str, KnobRow] = {}
        self._same = False
        self._drawn: object = None
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(12)
        self._grid.setVerticalSpacing(3)
        self._grid.setColumnStretch(3, 1)
        self._draw()

    def show_values(self, rows: Mapping[str, KnobRow]) -> None:
        """The switches in effect, by name."""
        self._rows = rows
        self._draw()

    def show_sides(self, *, same: bool) -> None:
        """Draw the marks anew; `same` means that side B is side A."""
        self._same = same
        self._draw()

    def lines(self) -> list[tuple[str, str, str, str]]:
        """(switch, A, B, remark) of every marked switch; empty for A against A."""
        if self._same:
            return []
        return [self._line(name, value) for name, value in self._candidate.values.items()]

    def _line(self, name: str, value: str) -> tuple[str, str, str, str]:
        row = self._rows.get(name)
        if row is None:
            return name, NONE, shown(value), ""
        remark = ""
        if not row.available:
            remark = f"◆ not available: {row.reason}"
        elif row.value == value:
            remark = "◆ the same on both sides"
        elif row.flip == "reload":
            remark = "the model is loaded anew for every block"
        return name, shown(row.value), shown(value), remark

    def _draw(self) -> None:
        lines = self.lines()
        if (lines, self._same) == self._drawn:
            return
        self._drawn = (lines, self._same)
        while (item := self._grid.takeAt(0)) is not None:
            if widget := item.widget():
                widget.hide()
                widget.deleteLater()
        if not lines:
            said = label(_SAME if self._same else _NOTHING, "dim")
            said.setWordWrap(True)
            self._grid.addWidget(said, 0, 0, 1, 5)
            return
        for column, text in enumerate(("Switch", "A now", "B")):
            self._grid.addWidget(label(text, "small"), 0, column)
        for number, (name, base, candidate, remark) in enumerate(lines, 1):
            remove = QPushButton("Remove")
            remove.setAccessibleName(f"Remove {name} from side B")
            remove.clicked.connect(lambda _=False, name=name: self._candidate.unmark(name))
            for column, widget in enumerate((label(name), _value(base), _value(candidate))):
                self._grid.addWidget(widget, 2 * number, column)
            self._grid.addWidget(remove, 2 * number, 4)
            if remark:
                said = label(remark, "warn" if remark.startswith("◆") else "dim")
                said.setWordWrap(True)
                self._grid.addWidget(said, 2 * number + 1, 0, 1, 5)


def _value(text: str) -> QLabel:
    """A value, cut to a width that leaves room for the rest; the whole of it in the tool tip."""
    made = label("")
    cut = made.fontMetrics().elidedText(text, Qt.TextElideMode.ElideMiddle, _VALUE_PX)
    made.setText(cut)
    if cut != text:
        made.setToolTip(text)
    return made


def label(text: str, role: str = "") -> QLabel:
    """Plain text in the given role of the style sheet."""
    made = QLabel(text)
    made.setTextFormat(Qt.TextFormat.PlainText)
    if role:
        made.setProperty("role", role)
    return made
