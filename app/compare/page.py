# SPDX-License-Identifier: MIT OR Apache-2.0
"""The compare page: run an A/B in this process and read its answer."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtWidgets import (
    QFileDialog,
    QHBoxLayout,
    QLabel,
    QProgressBar,
    QPushButton,
    QScrollArea,
    QVBoxLayout,
    QWidget,
)

from app.bridge import Bridge
from app.compare.form import CompareForm
from app.compare.report import ReportView, copy_button
from app.errors import ErrorPlace
from app.format import duration
from app.knobs.candidate import Candidate
from app.theme import Theme
from engine.api import CompareProgress, CompareReport, ErrorReport

_STEPS = 1000
_HINT = (
    "An A/B alternates both sides in this process, compares the tokens first, and says better, worse or not "
    "resolved against the noise of this machine. Every run is kept on the runs page."
)


class ComparePage(QWidget):
    """Signals: knobs_wanted, run_stored (a run was added to the store)."""

    knobs_wanted = Signal()
    run_stored = Signal()

    def __init__(
        self, bridge: Bridge, theme: Theme, candidate: Candidate, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setObjectName("page")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self._bridge, self._candidate = bridge, candidate
        self._compare_id = 0
        self._dialog: QFileDialog | None = None
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        scroll = QScrollArea()
        scroll.setWidgetResizable(True)
        scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        outer.addWidget(scroll)
        body = QWidget()
        body.setObjectName("scrollBody")
        scroll.setWidget(body)
        column = QVBoxLayout(body)
        column.setContentsMargins(18, 14, 18, 14)
        column.setSpacing(10)
        column.addLayout(self._make_header(theme))
        self.form = CompareForm(candidate)
        self.form.knobs_wanted.connect(self.knobs_wanted)
        column.addWidget(self.form)
        column.addWidget(self._make_progress())
        self.errors = ErrorPlace(lambda: bridge.snapshot)
        column.addWidget(self.errors)
        self.hint = QLabel(_HINT)
        self.hint.setProperty("role", "dim")
        self.hint.setWordWrap(True)
        column.addWidget(self.hint)
        self.view.hide()
        column.addWidget(self.view, 1)
        column.addStretch(0)
        bridge.compare_progressed.connect(self._on_progress)
        bridge.compare_finished.connect(self._on_finished)
        bridge.compare_failed.connect(self._on_failed)
        bridge.busy_changed.connect(self._refresh)
        bridge.loaded.connect(self._refresh)
        candidate.changed.connect(self._refresh)
        self._refresh()

    def _make_header(self, theme: Theme) -> QHBoxLayout:
        row = QHBoxLayout()
        title = QLabel("Compare")
        title.setProperty("role", "title")
        row.addWidget(title)
        row.addStretch(1)
        self.view = ReportView(theme)
        self.copy_button = copy_button(self.view)
        self.export_button = QPushButton("Export CSV…")
        self.start_button = QPushButton("Start")
        self.start_button.setObjectName("primary")
        self.stop_button = QPushButton("Stop")
        self.stop_button.setToolTip("Stop and keep the pairs so far (Esc)")
        self.export_button.clicked.connect(self._choose_folder)
        self.start_button.clicked.connect(self.start)
        self.stop_button.clicked.connect(self._bridge.cancel)
        for button in (self.copy_button, self.export_button, self.stop_button, self.start_button):
            row.addWidget(button)
        return row

    def _make_progress(self) -> QWidget:
        self.progress = QWidget()
        column = QVBoxLayout(self.progress)
        column.setContentsMargins(0, 2, 0, 2)
        column.setSpacing(4)
        self.stage = QLabel()
        self.stage.setTextFormat(Qt.TextFormat.PlainText)
        self.bar = QProgressBar()
        self.bar.setRange(0, _STEPS)
        self.bar.setTextVisible(False)
        column.addWidget(self.stage)
        column.addWidget(self.bar)
        self.progress.hide()
        return self.progress

    # Commands.

    @Slot()
    def start(self) -> None:
        """Run what the form asks for."""
        if not self.start_button.isEnabled():
            return
        self._begin(self._bridge.compare(self.form.request()))

    def rerun(self, run_id: str) -> None:
        """Run a stored A/B once more."""
        self.errors.attempt(lambda: self._begin(self._bridge.rerun(run_id)))

    def _begin(self, compare_id: int) -> None:
        self.errors.clear()
        self._compare_id = compare_id
        self.hint.hide()
        self.view.clear()
        self.view.show()
        self.stage.setText("Waiting for the engine")
        self.bar.setValue(0)
        self._refresh()

    @Slot()
    def _choose_folder(self) -> None:
        self._dialog = QFileDialog(self, "Export the CSV files into a folder")
        self._dialog.setFileMode(QFileDialog.FileMode.Directory)
        self._dialog.setOption(QFileDialog.Option.ShowDirsOnly)
        self._dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self._dialog.fileSelected.connect(self.export)
        self._dialog.open()

    @Slot(str)
    def export(self, folder: str) -> None:
        """Write the report's CSV files into a folder."""
        report = self.view.report
        if report is None:
            return

        def write() -> None:
            written = self._bridge.export_report(report, folder)
            self.stage.setText("✓ Written: " + ", ".join(written))
            self.progress.show()

        self.errors.attempt(write)

    # From the engine.

    @Slot(int, object)
    def _on_progress(self, compare_id: int, progress: CompareProgress) -> None:
        if compare_id != self._compare_id:
            return
        left = f" · {duration(progress.left_s)} left" if progress.left_s is not None else ""
        done = f"pair {progress.done_pairs} of {progress.planned_pairs}"
        self.stage.setText(f"{progress.stage} · {done}{left}")
        self.bar.setValue(round(_STEPS * progress.done_pairs / max(1, progress.planned_pairs)))
        self.view.show_progress(progress)

    @Slot(int, object)
    def _on_finished(self, compare_id: int, report: CompareReport) -> None:
        if compare_id == self._compare_id:
            self._show_report(report)

    @Slot(int, object, object)
    def _on_failed(
        self, compare_id: int, error: ErrorReport, partial: CompareReport | None
    ) -> None:
        if compare_id != self._compare_id:
            return
        self.errors.show_report(error)
        if partial is None:
            self.view.hide()
        else:
            self._show_report(partial)
        self._refresh()

    def _show_report(self, report: CompareReport) -> None:
        self.view.show_report(report)
        self.view.show()
        self._refresh()
        if report.run_id:
            self.run_stored.emit()

    @Slot()
    def _refresh(self, *_: object) -> None:
        comparing = self._bridge.is_comparing
        ready = self.form.ready and self._bridge.model is not None and not self._bridge.is_busy
        self.start_button.setEnabled(ready)
        self.start_button.setToolTip("" if ready else self._why_not())
        self.stop_button.setEnabled(comparing)
        for button in (self.copy_button, self.export_button):
            button.setEnabled(self.view.report is not None)
        self.form.setEnabled(not comparing)
        self.progress.setVisible(comparing)
        self.bar.setVisible(comparing)

    def _why_not(self) -> str:
        if self._bridge.model is None:
            return "Open a model first"
        if not self.form.ready:
            return "Mark a value as side B on the knobs page first"
        return "Wait until what runs now has ended, or stop it with Esc"
