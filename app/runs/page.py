# SPDX-License-Identifier: MIT OR Apache-2.0
"""The runs page: every stored A/B and bench; read, label, run again, diff two, export, delete."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from PySide6.QtCore import QItemSelectionModel, Qt, Signal, Slot
from PySide6.QtWidgets import (
    QAbstractItemView,
    QFileDialog,
    QHBoxLayout,
    QInputDialog,
    QLabel,
    QLineEdit,
    QMessageBox,
    QPushButton,
    QScrollArea,
    QSplitter,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from app.bridge import Bridge
from app.compare.report import ReportView
from app.compare.table import TextTable, table_view
from app.errors import ErrorPlace
from app.labels import text_label, title_row
from app.runs.text import COLUMNS, bench_rows, difference_rows, summary_row
from app.theme import Theme
from engine.api import MOST_LABEL, RunRecord, RunSummary

_PAGE = 200  # runs read at a time
_EMPTY = "Runs appear here: start one on the compare page, or with `rondo ab` and `rondo bench`."
_WHOLE_ROW = QItemSelectionModel.SelectionFlag.Select | QItemSelectionModel.SelectionFlag.Rows
_UNREADABLE = "What is chosen cannot be shown."
# Why a button has no effect at the moment.
_NO_RUN = "There is no stored run yet"
_SOME_RUN = "Choose one or more runs in the list first"
_ONE_RUN = "Choose one run in the list first"
_DAMAGED = "What is chosen is damaged and cannot be read"
_NO_RERUN = "A bench runs again on the command line alone: `rondo runs rerun ID`"
_NO_MODEL = "No model is loaded yet"
_BUSY = "The engine is busy"
_CHOOSE = "Choose a run to read it; choose two to see what differs."


class RunsPage(QWidget):
    """Signals: rerun_wanted(run_id)."""

    rerun_wanted = Signal(str)

    def __init__(self, bridge: Bridge, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("page")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self._bridge = bridge
        self._summaries: tuple[RunSummary, ...] = ()
        self._more = False  # there are older ones
        self._dialog: QFileDialog | QInputDialog | QMessageBox | None = None
        column = QVBoxLayout(self)
        column.setContentsMargins(18, 14, 18, 14)
        column.setSpacing(10)
        column.addLayout(self._make_header())
        self.notice = text_label()
        self.notice.hide()
        column.addWidget(self.notice)
        self.errors = ErrorPlace(lambda: bridge.snapshot)
        column.addWidget(self.errors)
        self.model = TextTable(COLUMNS, self, words=len(COLUMNS))
        self.list = table_view(self.model, "Stored runs", (18, 11, 11, 26, 17), stretch=3)
        self.list.setMinimumHeight(5 * self.list.verticalHeader().defaultSectionSize())
        self.list.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.list.selectionModel().selectionChanged.connect(self._on_selection)
        self.older_button = QPushButton("Show older runs")
        self.older_button.clicked.connect(self._show_older)
        above = QWidget()
        upper = QVBoxLayout(above)
        upper.setContentsMargins(0, 0, 0, 0)
        upper.setSpacing(4)
        upper.addWidget(self.list, 1)
        upper.addWidget(self.older_button, 0, Qt.AlignmentFlag.AlignLeft)
        self._above = above
        self._split = QSplitter(Qt.Orientation.Vertical)
        self._split.setChildrenCollapsible(False)
        self._split.setHandleWidth(9)
        self._split.addWidget(above)
        self._split.addWidget(self._make_detail(theme))
        self._split.setStretchFactor(0, 1)
        self._split.setStretchFactor(1, 2)
        self._split.setSizes([240, 520])
        column.addWidget(self._split, 1)
        bridge.busy_changed.connect(self._refresh_buttons)
        bridge.loaded.connect(self._refresh_buttons)
        self.entry = self.list
        self._refresh_buttons()

    def _make_header(self) -> QHBoxLayout:
        row = title_row("Runs")
        self.label_button = QPushButton("Label…")
        self.rerun_button = QPushButton("Run again")
        self.export_button = QPushButton("Export CSV…")
        self.delete_button = QPushButton("Delete…")
        self.label_button.clicked.connect(self._ask_label)
        self.rerun_button.clicked.connect(self._rerun)
        self.export_button.clicked.connect(self.choose_folder)
        self.delete_button.clicked.connect(self._ask_delete)
        for button in (
            self.label_button, self.rerun_button, self.export_button, self.delete_button
        ):  # fmt: skip
            row.addWidget(button)
        return row

    def _make_detail(self, theme: Theme) -> QWidget:
        self.words = QLabel()
        self.words.setProperty("role", "dim")
        self.words.setWordWrap(True)
        self.words.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.report = ReportView(theme)
        reading = QScrollArea()
        reading.setWidgetResizable(True)
        reading.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        reading.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        body = QWidget()
        body.setObjectName("scrollBody")
        column = QVBoxLayout(body)
        column.setContentsMargins(0, 8, 8, 0)
        column.addWidget(self.report, 1)
        reading.setWidget(body)
        self._bench = TextTable(("Case", "Engine", "ms", "tok/s", "GB/s"), self, words=2)
        self._differences = TextTable(("Value", "Older", "Newer", "Change"), self)
        self.detail = QStackedWidget()
        for widget in (
            self.words,
            reading,
            table_view(self._bench, "Figures of the bench", (16, 24, 12, 12, 10)),
            table_view(self._differences, "What differs", (34, 24, 24, 12)),
        ):
            self.detail.addWidget(widget)
        return self.detail

    def showEvent(self, event) -> None:
        super().showEvent(event)
        self._summaries = self._summaries[:_PAGE]
        self.reload()

    @Slot()
    def reload(self) -> None:
        """Read the list anew; a selection of runs that are still there is kept."""
        kept = set(self.selected())
        shown = max(_PAGE, len(self._summaries))
        found: list[RunSummary] = []
        if self._try(lambda: found.extend(self._bridge.runs(limit=shown + 1))):
            self._list(found, shown, kept)

    @Slot()
    def _show_older(self) -> None:
        found = list(self._summaries)
        more = partial(self._bridge.runs, offset=len(found), limit=_PAGE + 1)
        if self._try(lambda: found.extend(more())):
            self._list(found, len(self._summaries) + _PAGE, set(self.selected()))

    def _list(
        self, found: list[RunSummary], shown: int, kept: set[str], *, more: bool = False
    ) -> None:
        """Show the first `shown` of the runs that were read; one beyond them tells of older ones."""
        self._summaries = tuple(found[:shown])
        self._more = more or len(found) > shown
        self.older_button.setVisible(self._more)
        self._above.setVisible(bool(self._summaries))
        chooser = self.list.selectionModel()
        blocked = chooser.blockSignals(True)
        self.model.set_rows([summary_row(summary) for summary in self._summaries])
        for number, summary in enumerate(self._summaries):
            if summary.run_id in kept:
                chooser.select(self.model.index(number, 0), _WHOLE_ROW)
        chooser.blockSignals(blocked)
        self.list.viewport().update()
        self._on_selection()

    def selected(self) -> tuple[str, ...]:
        """Ids of the selected runs, in the order of the list."""
        rows = sorted(index.row() for index in self.list.selectionModel().selectedRows())
        return tuple(self._summaries[row].run_id for row in rows if row < len(self._summaries))

    def select(self, run_id: str) -> None:
        """Make one run the selected one."""
        for number, summary in enumerate(self._summaries):
            if summary.run_id == run_id:
                self.list.selectRow(number)

    @Slot()
    def _on_selection(self, *_: object) -> None:
        chosen = self.selected()
        self._say("")
        self._refresh_buttons()
        self.detail.setCurrentIndex(0)
        if len(chosen) == 1:
            self.words.setText(_UNREADABLE)
            self._try(lambda: self._show_run(self._bridge.run(chosen[0])))
        elif len(chosen) == 2:
            self.words.setText(_UNREADABLE)
            self._try(lambda: self._show_differences(*chosen))
        elif chosen:
            self.words.setText(f"{len(chosen)} runs chosen.")
        else:
            self.words.setText(_CHOOSE if self._summaries else _EMPTY)

    def _show_run(self, record: RunRecord) -> None:
        if record.compare is not None:
            self.report.show_report(record.compare)
            self.detail.setCurrentIndex(1)
        else:
            self._bench.set_rows(bench_rows(record))
            self.detail.setCurrentIndex(2)

    def _show_differences(self, newer: str, older: str) -> None:
        rows = difference_rows(self._bridge.diff_runs(older, newer))
        self._differences.set_rows(rows or [("nothing differs", "", "", "")])
        self.detail.setCurrentIndex(3)

    @Slot()
    def _refresh_buttons(self, *_: object) -> None:
        chosen = set(self.selected())
        kinds = [s for s in self._summaries if s.run_id in chosen]
        readable = [s for s in kinds if not s.damaged]
        alone = "" if len(kinds) == 1 else _ONE_RUN if self._summaries else _NO_RUN
        some = "" if kinds else _SOME_RUN if self._summaries else _NO_RUN
        damaged = "" if readable else _DAMAGED
        bench = "" if readable and readable[0].kind == "compare" else _NO_RERUN
        _allow(self.rerun_button, alone or damaged or bench or self._why_not_now())
        _allow(self.label_button, alone or damaged)
        _allow(self.export_button, some or damaged)
        _allow(self.delete_button, some)

    def _why_not_now(self) -> str:
        if self._bridge.model is None:
            return _NO_MODEL
        return _BUSY if self._bridge.is_busy else ""

    # Commands.

    @Slot()
    def _rerun(self) -> None:
        chosen = self.selected()
        if len(chosen) == 1:
            self.rerun_wanted.emit(chosen[0])

    @Slot()
    def _ask_label(self) -> None:
        chosen = set(self.selected())
        before = next((s.label for s in self._summaries if s.run_id in chosen), "")
        dialog = QInputDialog(self)
        dialog.setWindowTitle("Label of the run")
        dialog.setLabelText("Label")
        dialog.setTextValue(before)
        dialog.findChild(QLineEdit).setMaxLength(MOST_LABEL)
        dialog.textValueSelected.connect(self.set_label)
        self._open(dialog)

    @Slot(str)
    def set_label(self, label: str) -> None:
        """Give the selected run another label."""
        for run_id in self.selected()[:1]:
            if self._try(lambda run_id=run_id: self._bridge.label_run(run_id, label)):
                self._read_again(run_id)

    def _read_again(self, run_id: str) -> None:
        """One line anew; the whole list where runs came or went meanwhile."""
        at = next(n for n, summary in enumerate(self._summaries) if summary.run_id == run_id)
        found: list[RunSummary] = []
        self._try(lambda: found.extend(self._bridge.runs(offset=at, limit=1)))
        if found and found[0].run_id == run_id:
            summaries = (*self._summaries[:at], found[0], *self._summaries[at + 1 :])
            self._list(list(summaries), len(summaries), {run_id}, more=self._more)
        else:
            self.reload()

    @Slot()
    def _ask_delete(self) -> None:
        count = len(self.selected())
        box = QMessageBox(self)
        box.setWindowTitle("Delete runs")
        box.setText(f"Delete {count} stored run{'s' if count != 1 else ''}?")
        box.setInformativeText("Their reports and CSV files are removed from the store.")
        box.setStandardButtons(QMessageBox.StandardButton.Cancel)
        delete = box.addButton("Delete", QMessageBox.ButtonRole.DestructiveRole)
        delete.clicked.connect(self.delete_selected)
        self._open(box)

    @Slot()
    def delete_selected(self) -> None:
        """Remove the selected runs from the store."""
        chosen = self.selected()
        gone: set[str] = set()

        def delete() -> None:
            for run_id in chosen:
                self._bridge.delete_run(run_id)
                gone.add(run_id)

        self._try(delete)
        left = [summary for summary in self._summaries if summary.run_id not in gone]
        error = self.errors.card
        self._list(left, len(left), set(), more=self._more)
        if error is not None:
            self.errors.show_report(error.report)

    @Slot()
    def choose_folder(self) -> None:
        """Ask where the selected runs go, as CSV."""
        if not self.export_button.isEnabled():
            self._say(self.export_button.toolTip() + ".")
            return
        dialog = QFileDialog(self, "Export the CSV files into a folder")
        dialog.setFileMode(QFileDialog.FileMode.Directory)
        dialog.setOption(QFileDialog.Option.ShowDirsOnly)
        dialog.fileSelected.connect(self.export)
        self._open(dialog)

    @Slot(str)
    def export(self, folder: str) -> None:
        """Write the CSV files of the selected runs into a folder."""

        def write() -> None:
            written = self._bridge.export_runs(self.selected(), folder)
            self._say("✓ Written: " + ", ".join(written))

        self._try(write)

    def _open(self, dialog: QFileDialog | QInputDialog | QMessageBox) -> None:
        self._dialog = dialog
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.open()

    def _say(self, words: str) -> None:
        self.notice.setText(words)
        self.notice.setVisible(bool(words))

    def _try(self, action: Callable[[], object]) -> bool:
        self._say("")
        return self.errors.attempt(action)


def _allow(button: QPushButton, why_not: str) -> None:
    """Enable a button, or say on it why it has no effect."""
    button.setEnabled(not why_not)
    button.setToolTip(why_not)
