# SPDX-License-Identifier: MIT OR Apache-2.0
"""The answer of an A/B on the page: verdict, evidence, pairs, figures of both sides, kernels."""

from __future__ import annotations

from PySide6.QtCore import Qt, Slot
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QHBoxLayout, QPushButton, QTabWidget, QVBoxLayout, QWidget

from app.chat.readout import NBSP
from app.compare import text
from app.compare.plot import PairPlot
from app.compare.table import TextTable, table_view
from app.labels import text_label
from app.theme import Theme
from engine.api import CompareProgress, CompareReport

_ROLES = {"better": "ok", "worse": "bad", "invalid": "bad"}


class ReportView(QWidget):
    """Follows a run that is being measured, then shows its report."""

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self.report: CompareReport | None = None
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(6)
        self.headline = text_label(role="headline")
        self.reason = text_label()
        self.sides = text_label(role="dim")
        self.evidence = text_label(role="small")
        self.tokens = text_label()
        self.more = text_label(role="dim")
        self._labels = (
            self.headline, self.reason, self.sides, self.tokens, self.evidence, self.more
        )  # fmt: skip
        for label in self._labels:
            column.addWidget(label)
        self.actions = QHBoxLayout()
        self.actions.setSpacing(8)
        self.copy_button = QPushButton("Copy as text")
        self.copy_button.clicked.connect(self.copy_text)
        self.actions.addWidget(self.copy_button)
        self.actions.addStretch(1)
        column.addLayout(self.actions)
        self.plot = PairPlot(theme)
        column.addWidget(self.plot, 2)
        self._figures = TextTable(("Figure", "A", "B", "B against A"), self)
        self._kernels = TextTable(
            ("Operation", "A, ms a round", "B, ms a round", "B - A, ms"), self
        )
        self._workloads = TextTable(text.WORKLOAD_HEAD, self)
        self.tabs = QTabWidget()
        self.tabs.setDocumentMode(True)
        self.tabs.addTab(
            table_view(self._figures, "Figures of both sides", (20, 13, 13, 14)), "Figures"
        )
        self.tabs.addTab(
            table_view(self._kernels, "Time of each operation on both sides", (24, 15, 15, 13)),
            "Kernels",
        )
        self.tabs.addTab(
            table_view(self._workloads, "Each class of prompts", (16, 7, 15, 15, 14, 19, 8, 14, 9)),
            "By class of prompt",
        )
        self.tabs.setMinimumHeight(190)
        self._notes = text_label()
        self._notes.setAlignment(Qt.AlignmentFlag.AlignTop)
        self._notes.setMargin(10)
        self.tabs.addTab(self._notes, "Notes")
        column.addWidget(self.tabs, 3)
        theme.changed.connect(self._restyle)
        self.clear()

    def clear(self) -> None:
        """Nothing to show."""
        self.report = None
        self.plot.show()
        self.plot.set_pairs((), planned=1)
        self._figures.set_rows([])
        self._kernels.set_rows([])
        self._notes.setText("")
        self._workloads.set_rows([])
        self.copy_button.hide()
        self.tabs.hide()
        for label in self._labels:
            label.hide()

    def show_progress(self, progress: CompareProgress) -> None:
        """The pairs so far of a run that goes on."""
        self.report = None
        self.plot.set_pairs(progress.pairs, planned=progress.planned_pairs)

    def show_report(self, report: CompareReport) -> None:
        """The whole answer."""
        self.report = report
        said = {
            self.headline: text.headline(report),
            self.reason: report.reason,
            self.sides: text.request_line(report),
            self.tokens: ""
            if report.base is None and report.tokens_identical
            else text.tokens_line(report),
            self.evidence: text.evidence(report),
            self.more: text.resolvable(report),
        }
        for label, words in said.items():
            label.setText(words.replace(" %", f"{NBSP}%"))  # no line begins with the sign
            label.setVisible(bool(words))
        self.plot.set_pairs(report.pairs, planned=max(report.planned_pairs, 1))
        self.plot.setVisible(bool(report.pairs))
        median = None if report.ratio_median is None else 100 * (report.ratio_median - 1)
        self.plot.set_verdict(
            median, report.ci95_low_pct, report.ci95_high_pct, report.noise_floor_pct
        )
        self._figures.set_rows(text.figure_rows(report))
        self._kernels.set_rows(text.kernel_rows(report.kernels))
        self._workloads.set_rows(text.workload_rows(report))
        self.copy_button.show()
        self._notes.setText("\n\n".join(_notes(report)))
        # A run that measured no pair has notes alone.
        for place, table in enumerate((self._figures, self._kernels, self._workloads)):
            self.tabs.setTabVisible(place, bool(table.rowCount()))
        self.tabs.show()
        self._restyle()

    @Slot()
    def copy_text(self) -> None:
        """The report as plain text on the clipboard."""
        if self.report is not None:
            QGuiApplication.clipboard().setText(text.as_text(self.report))

    @Slot()
    def _restyle(self) -> None:
        self.plot.restyle()
        if self.report is not None:
            token = _ROLES.get(self.report.verdict, "text")
            self.headline.setStyleSheet(f"color: {self._theme.color(token)};")
            same = "ok" if self.report.tokens_identical else "bad"
            self.tokens.setStyleSheet(f"color: {self._theme.color(same)};")


def _notes(report: CompareReport) -> list[str]:
    notes = [f"Switches of A: {text.switches(report.base_knobs)}"]
    notes.append(f"Switches of B: {text.switches(report.candidate_knobs)}")
    if report.noise_source:
        notes.append(f"Noise floor: {report.noise_source}")
    if report.estimator and report.pairs:
        notes.append(f"Figures of a pair: {report.estimator}")
    if report.reloaded:
        notes.append("The model was loaded anew for every block, because a switch needs it.")
    notes += report.notes
    if report.run_id:
        notes.append(f"Stored as run {report.run_id}.")
    if report.not_stored:
        notes.append(f"Not stored: {report.not_stored}")
    return notes
