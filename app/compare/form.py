# SPDX-License-Identifier: MIT OR Apache-2.0
"""What to compare: the values marked as side B, or A against A; the workload; how many pairs."""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QGridLayout,
    QHBoxLayout,
    QLineEdit,
    QPlainTextEdit,
    QPushButton,
    QSizePolicy,
    QSpinBox,
    QVBoxLayout,
    QWidget,
)

from app.compare.sides import SidesTable, label
from app.knobs.candidate import Candidate
from app.labels import name_choice
from engine.api import (
    DEFAULT_PAIRS,
    DEFAULT_TOKENS,
    FEWEST_PAIRS,
    FEWEST_TOKENS,
    MOST_LABEL,
    MOST_PAIRS,
    MOST_TOKENS,
    CompareRequest,
    KnobRow,
)

_WORKLOADS = (
    ("mix", "all four"),
    ("in-domain", "in domain"),
    ("copy", "copy a text"),
    ("edit", "edit a text"),
    ("out-of-domain", "out of domain"),
    ("prompt", "own prompt"),
)
_PROMPT_LINES = 3
_STEPS_PX = 36  # the buttons and the frame of a spin box


class CompareForm(QWidget):
    """Side A is what is in effect. Signals: knobs_wanted (to mark a value), changed."""

    knobs_wanted = Signal()
    changed = Signal()

    def __init__(self, candidate: Candidate, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._candidate = candidate
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(8)
        self.sides = SidesTable(candidate)
        column.addWidget(self.sides)
        column.addLayout(self._make_subject())
        column.addLayout(self._make_options())
        self.prompt = QPlainTextEdit()
        self.prompt.setPlaceholderText("The prompt both sides answer")
        self.prompt.setAccessibleName("Prompt for both sides")
        self.prompt.setTabChangesFocus(True)
        self.prompt.setFixedHeight(self.prompt.fontMetrics().height() * _PROMPT_LINES + 18)
        self.prompt.textChanged.connect(self.changed)
        self.prompt.hide()
        column.addWidget(self.prompt)
        candidate.changed.connect(self._show_subject)
        self._show_subject()

    def _make_subject(self) -> QHBoxLayout:
        self.mark_button = QPushButton()
        self.mark_button.setToolTip("On the knobs page, with the box Side B")
        self.mark_button.clicked.connect(self.knobs_wanted)
        self.same = QCheckBox("A against A: this machine's noise")
        self.same.setToolTip(
            "Both sides are the values in effect: it shows which differences this machine can tell at all"
        )
        self.same.toggled.connect(self._show_subject)
        line = QHBoxLayout()
        line.setSpacing(12)
        line.addWidget(self.mark_button)
        line.addWidget(self.same)
        line.addStretch(1)
        return line

    def _make_options(self) -> QGridLayout:
        grid = QGridLayout()
        grid.setHorizontalSpacing(6)
        grid.setVerticalSpacing(6)
        self.workload = QComboBox()
        name_choice(self.workload, "Workload")
        self.workload.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.workload.setMinimumWidth(104)
        for name, words in _WORKLOADS:
            self.workload.addItem(words, name)
        self.workload.currentIndexChanged.connect(self._on_workload)
        self.pairs = _spin("Pairs", FEWEST_PAIRS, MOST_PAIRS, DEFAULT_PAIRS)
        self.pairs.setToolTip(
            "One pair is both sides on every prompt of the workload, in turn AB and BA"
        )
        self.tokens = _spin("Tokens of each answer", FEWEST_TOKENS, MOST_TOKENS, DEFAULT_TOKENS)
        self.forced = QCheckBox("Follow one text")
        self.forced.setToolTip(
            "Both sides are led along side A's text, so that a switch that changes near ties can be timed too"
        )
        self.name = QLineEdit()
        self.name.setPlaceholderText("a name for this run")
        self.name.setAccessibleName("Name of the run")
        self.name.setMaxLength(MOST_LABEL)
        cells = (
            ("Workload", self.workload),
            ("Pairs", self.pairs),
            ("Tokens", self.tokens),
        )
        for at, (text, widget) in enumerate(cells):
            grid.addWidget(label(text, "dim"), 0, 2 * at)
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
        return not self.why_not()

    def why_not(self) -> str:
        """What is missing, empty where nothing is."""
        if not self.same.isChecked() and not self._candidate.values:
            return "Mark a value as side B on the knobs page first, or measure A against A"
        if self.workload.currentData() == "prompt" and not self.prompt.toPlainText().strip():
            return "Write the prompt that both sides answer"
        return ""

    def request(self) -> CompareRequest:
        """What the fields ask for."""
        workload = str(self.workload.currentData())
        return CompareRequest(
            candidate={} if self.same.isChecked() else self._candidate.values,
            workload=workload,
            pairs=self.pairs.value(),
            tokens=self.tokens.value(),
            prompt=self.prompt.toPlainText() if workload == "prompt" else "",
            forced=self.forced.isChecked(),
            label=self.name.text().strip(),
        )

    def show_values(self, rows: Mapping[str, KnobRow]) -> None:
        """The switches in effect, by name: what side A is."""
        self.sides.show_values(rows)

    @Slot()
    def _on_workload(self, *_: object) -> None:
        self.prompt.setVisible(self.workload.currentData() == "prompt")
        self.changed.emit()

    @Slot()
    def _show_subject(self, *_: object) -> None:
        marked = bool(self._candidate.values)
        same = self.same.isChecked()
        self.sides.show_sides(same=same)
        self.mark_button.setText("Mark another…" if marked else "Mark a value…")
        self.mark_button.setVisible(not same)
        self.changed.emit()


def _spin(name: str, low: int, high: int, value: int) -> QSpinBox:
    box = QSpinBox()
    box.setAccessibleName(name)
    box.setRange(low, high)
    box.setValue(value)
    box.setAlignment(Qt.AlignmentFlag.AlignRight)
    box.setFixedWidth(box.fontMetrics().horizontalAdvance(f" {high} ") + _STEPS_PX)
    return box
