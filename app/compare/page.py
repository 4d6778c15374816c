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
from app.compare.report import ReportView
from app.errors import ErrorPlace
from app.format import duration
from app.knobs.candidate import Candidate
from app.labels import text_label, title_row
from app.theme import Theme
from engine.api import CompareProgress, CompareReport, ErrorReport, KnobRow

_STEPS = 1000
_NO_PAIR = "No pair was complete, so there are no figures to export"
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
        self._latest: CompareProgress | None = None
        self._applying: dict[str, str] = {}
        self._rows: dict[str, KnobRow] = {}
        self._dialog: QFileDialog | None = None
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        scroll = QScrollArea()
        scroll.setWidgetResizable(True)
        scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
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
        self.form.changed.connect(self._refresh)
        column.addWidget(self.form)
        column.addWidget(self._make_progress())
        self.errors = ErrorPlace(lambda: bridge.snapshot)
        column.addWidget(self.errors)
        self.notice = text_label()
        self.notice.hide()
        column.addWidget(self.notice)
        self.hint = QLabel(_HINT)
        self.hint.setProperty("role", "dim")
        self.hint.setWordWrap(True)
        column.addWidget(self.hint)
        self.view.hide()
        column.addWidget(self.view, 1)
        column.addStretch(0)
        bridge.compare_progressed.connect(self._on_progress)
        bridge.ticked.connect(self._on_tick)
        bridge.compare_finished.connect(self._on_finished)
        bridge.compare_failed.connect(self._on_failed)
        for signal in (bridge.busy_changed, bridge.loaded):
            signal.connect(self._on_engine)
        bridge.knobs_changed.connect(self._on_knobs)
        bridge.knobs_refused.connect(self._on_refused)
        candidate.changed.connect(self._read_values)
        self.entry = self.form.workload
        self._refresh()

    def _make_header(self, theme: Theme) -> QHBoxLayout:
        row = title_row("Compare")
        self.view = ReportView(theme)
        self.export_button = QPushButton("Export CSV…")
        self.use_button = QPushButton("Use B from now on")
        self.start_button = QPushButton("Start")
        self.start_button.setObjectName("primary")
        self.stop_button = QPushButton("Stop")
        self.stop_button.setToolTip("Stop and keep the pairs so far (Esc)")
        self.export_button.clicked.connect(self.choose_folder)
        self.use_button.clicked.connect(self.use_candidate)
        for place, button in enumerate((self.use_button, self.export_button)):
            self.view.actions.insertWidget(place, button)
        self.start_button.clicked.connect(self.start)
        self.stop_button.clicked.connect(self._bridge.cancel)
        row.addWidget(self.stop_button)
        row.addWidget(self.start_button)
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
        self._say("")
        self._compare_id = compare_id
        self.hint.hide()
        self.view.clear()
        self.view.show()
        self.stage.setText("Waiting for the engine")
        self.bar.setValue(0)
        self._refresh()

    @Slot()
    def measure_noise(self) -> None:
        """Run A against A with the form's workload and pairs."""
        self.form.same.setChecked(True)
        self.start()

    @Slot()
    def use_candidate(self) -> None:
        """Put side B of the report in effect."""
        if self.use_button.isEnabled():
            self.errors.clear()
            self._applying = self._changes_of_b()
            self._bridge.set_knobs(self._applying)

    def _changes_of_b(self) -> dict[str, str]:
        """What would have to change for side B of the report to be in effect."""
        if self.view.report is None:
            return {}
        wanted = self.view.report.request.candidate
        return {n: v for n, v in wanted if n not in self._rows or self._rows[n].value != v}

    @Slot()
    def choose_folder(self) -> None:
        if not self.export_button.isEnabled():
            self._say(self.export_button.toolTip())
            return
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
            self._say("✓ Written: " + ", ".join(written))

        self.errors.attempt(write)

    def _say(self, words: str) -> None:
        self.notice.setText(words)
        self.notice.setVisible(bool(words))

    # From the engine.

    @Slot(object)
    def _on_engine(self, *_: object) -> None:
        self._read_values()

    @Slot(object)
    def _on_knobs(self, changes: tuple[tuple[str, str], ...]) -> None:
        applied, self._applying = self._applying, {}
        if applied and applied == dict(changes):
            self._say("✓ In effect: " + ", ".join(f"{n}={v}" for n, v in changes))
            for name, value in changes:
                if self._candidate.value(name) == value:
                    self._candidate.unmark(name)
        self._read_values()

    @Slot(object, object)
    def _on_refused(self, _changes: object, report: ErrorReport) -> None:
        if self._applying:
            self._applying = {}
            self.errors.show_report(report)

    def showEvent(self, event) -> None:
        super().showEvent(event)
        self._read_values()

    @Slot()
    def _read_values(self) -> None:
        """Side A is what is in effect; while an A/B runs, what was when it began."""
        if not self._bridge.is_comparing:
            self._rows = {row.name: row for row in self._bridge.knobs()}
            self.form.show_values(self._rows)
        self._refresh()

    @Slot(int, object)
    def _on_progress(self, compare_id: int, progress: CompareProgress) -> None:
        if compare_id == self._compare_id:
            self._latest = progress

    @Slot(object)
    def _on_tick(self, _snapshot: object) -> None:
        """Show the last progress of a tick: many may arrive in one, and drawing each takes time."""
        progress, self._latest = self._latest, None
        if progress is None or self.view.report is not None:
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
        why = self._why_not()
        self.start_button.setEnabled(not why)
        self.start_button.setToolTip(why)
        self.stop_button.setEnabled(comparing)
        report = self.view.report
        self.export_button.setVisible(report is not None)
        nothing = report is not None and report.verdict == "cancelled"
        self.export_button.setEnabled(report is not None and not nothing)
        self.export_button.setToolTip(_NO_PAIR if nothing else "")
        self._refresh_use()
        self.form.setEnabled(not comparing)
        self.progress.setVisible(comparing)

    def _refresh_use(self) -> None:
        """Side B can be put in effect where all it changes is live."""
        report = self.view.report
        self.use_button.setVisible(report is not None and bool(report.request.candidate))
        changes = self._changes_of_b()
        reloads = [n for n in changes if n in self._rows and self._rows[n].flip == "reload"]
        why = ""
        if not changes:
            why = "Side B is what is in effect"
        elif reloads:
            why = f"{reloads[0]} needs a reload; set it on the knobs page"
        elif self._bridge.is_comparing or self._bridge.model is None:
            why = "Wait until the A/B has ended and a model is loaded"
        self.use_button.setEnabled(not why)
        self.use_button.setToolTip(why or ", ".join(f"{n}={v}" for n, v in changes.items()))

    def _why_not(self) -> str:
        if self._bridge.model is None:
            return "Open a model first"
        if self._bridge.is_busy:
            return "Wait until what runs now has ended, or stop it with Esc"
        return self.form.why_not()
