# SPDX-License-Identifier: MIT OR Apache-2.0
"""What to compare: the values marked as side B, the workload, how many pairs."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QPlainTextEdit,
    QPushButton,
    QSpinBox,
    QVBoxLayout,
    QWidget,
)

from app.knobs.candidate import Candidate
from app.knobs.model import shown
from engine.api import DEFAULT_PAIRS, FEWEST_PAIRS, MOST_PAIRS, CompareRequest

_WORKLOADS = (
    ("mix", "all four classes"),
    ("in-domain", "in-domain answers"),
    ("copy", "copy a text"),
    ("edit", "edit a text"),
    ("out-of-domain", "out of domain"),
    ("prompt", "my own prompt"),
)
_PROMPT_LINES = 3


class CompareForm(QWidget):
    """Side A is what is in effect. Signals: knobs_wanted (to mark a value)."""

    knobs_wanted = Signal()

    def __init__(self, candidate: Candidate, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._candidate = candidate
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(8)
        sides = QGridLayout()
        sides.setHorizontalSpacing(10)
        sides.setVerticalSpacing(4)
        sides.setColumnStretch(1, 1)
        sides.addWidget(_label("A", "dim"), 0, 0, Qt.AlignmentFlag.AlignTop)
        sides.addWidget(_label("the values in effect"), 0, 1)
        sides.addWidget(_label("B", "dim"), 1, 0, Qt.AlignmentFlag.AlignTop)
        self._marks = QWidget()
        self._marks_column = QVBoxLayout(self._marks)
        self._marks_column.setContentsMargins(0, 0, 0, 0)
        self._marks_column.setSpacing(2)
        sides.addWidget(self._marks, 1, 1)
        column.addLayout(sides)
        column.addLayout(self._make_options())
        self.prompt = QPlainTextEdit()
        self.prompt.setPlaceholderText("The prompt both sides answer")
        self.prompt.setAccessibleName("Prompt for both sides")
        self.prompt.setTabChangesFocus(True)
        self.prompt.setFixedHeight(self.prompt.fontMetrics().height() * _PROMPT_LINES + 18)
        self.prompt.hide()
        column.addWidget(self.prompt)
        candidate.changed.connect(self._show_marks)
        self._show_marks()

    def _make_options(self) -> QGridLayout:
        grid = QGridLayout()
        grid.setHorizontalSpacing(10)
        grid.setVerticalSpacing(6)
        self.workload = QComboBox()
        self.workload.setAccessibleName("Workload")
        for name, words in _WORKLOADS:
            self.workload.addItem(words, name)
        self.workload.currentIndexChanged.connect(self._on_workload)
        self.pairs = QSpinBox()
        self.pairs.setAccessibleName("Pairs")
        self.pairs.setRange(FEWEST_PAIRS, MOST_PAIRS)
        self.pairs.setValue(DEFAULT_PAIRS)
        self.tokens = QSpinBox()
        self.tokens.setAccessibleName("Tokens of each answer")
        self.tokens.setRange(8, 4096)
        self.tokens.setValue(128)
        self.forced = QCheckBox("Follow one text")
        self.forced.setToolTip(
            "Both sides are led along side A's text, so that a switch that moves near ties can be timed too"
        )
        self.name = QLineEdit()
        self.name.setPlaceholderText("a name for this run")
        self.name.setAccessibleName("Name of the run")
        cells = (
            ("Workload", self.workload),
            ("Pairs", self.pairs),
            ("Tokens", self.tokens),
        )
        for at, (text, widget) in enumerate(cells):
            grid.addWidget(_label(text, "dim"), 0, 2 * at)
            grid.addWidget(widget, 0, 2 * at + 1)
        line = QHBoxLayout()
        line.setSpacing(10)
        line.addWidget(self.forced)
        line.addWidget(self.name, 1)
        grid.addLayout(line, 1, 0, 1, 6)
        grid.setColumnStretch(1, 1)
        return grid

    @property
    def ready(self) -> bool:
        """Whether there is something to compare."""
        return bool(self._candidate.values)

    def request(self) -> CompareRequest:
        """What the fields ask for."""
        workload = str(self.workload.currentData())
        return CompareRequest(
            candidate=self._candidate.values,
            workload=workload,
            pairs=self.pairs.value(),
            tokens=self.tokens.value(),
            prompt=self.prompt.toPlainText() if workload == "prompt" else "",
            forced=self.forced.isChecked(),
            label=self.name.text().strip(),
        )

    @Slot()
    def _on_workload(self, *_: object) -> None:
        self.prompt.setVisible(self.workload.currentData() == "prompt")

    @Slot()
    def _show_marks(self) -> None:
        while (item := self._marks_column.takeAt(0)) is not None:
            if widget := item.widget():
                widget.hide()
                widget.deleteLater()
        values = self._candidate.values
        for name, value in values.items():
            self._marks_column.addWidget(self._mark(name, value))
        if not values:
            button = QPushButton("Mark a value on the knobs page")
            button.clicked.connect(self.knobs_wanted)
            line = QHBoxLayout()
            line.setContentsMargins(0, 0, 0, 0)
            line.addWidget(button)
            line.addStretch(1)
            holder = QWidget()
            holder.setLayout(line)
            self._marks_column.addWidget(holder)

    def _mark(self, name: str, value: str) -> QWidget:
        holder = QWidget()
        line = QHBoxLayout(holder)
        line.setContentsMargins(0, 0, 0, 0)
        line.setSpacing(8)
        line.addWidget(_label(f"{name} = {shown(value)}"))
        remove = QPushButton("Remove")
        remove.setAccessibleName(f"Remove {name} from side B")
        remove.clicked.connect(lambda: self._candidate.unmark(name))
        line.addWidget(remove)
        line.addStretch(1)
        return holder


def _label(text: str, role: str = "") -> QLabel:
    label = QLabel(text)
    label.setTextFormat(Qt.TextFormat.PlainText)
    if role:
        label.setProperty("role", role)
    return label
