# SPDX-License-Identifier: MIT OR Apache-2.0
"""The kernels page: time of each operation, with the round as denominator."""

from __future__ import annotations

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QSortFilterProxyModel, Qt, QTimer, Slot
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHBoxLayout,
    QHeaderView,
    QLabel,
    QPushButton,
    QStackedWidget,
    QTableView,
    QVBoxLayout,
    QWidget,
)

from app.bridge import Bridge
from app.compare.table import FilledColumn
from app.format import NONE, grouped, number, significant
from engine.api import KernelTable

COLUMNS = ("Operation", "Calls a round", "ms a round", "Total, ms", "Share, %", "GB/s", "GFLOP/s")
_KEYS = (
    "operation",
    "calls_per_round",
    "ms_per_round",
    "total_ms",
    "share_pct",
    "read_gbps",
    "gflops",
)
_DECIMALS = {2: 3, 3: 1, 4: 1, 5: 1, 6: 1}
REFRESH_MS = 1000
_NAME_CHARS = 18
_REST = "not accounted for"
_HINT = "The table fills while an answer is written: one row per operation, its time in a round."
_REST_MEANS = "Mean time of a round less the time of every operation"


def table_rows(table: KernelTable) -> list[tuple[str | float | None, ...]]:
    """Rows in the order of COLUMNS, the unaccounted rest last."""
    rounds = max(table.rounds, 1)
    rows: list[tuple[str | float | None, ...]] = [
        (
            row.name,
            row.calls / rounds,
            row.total_ms / rounds,
            row.total_ms,
            row.share_pct,
            row.read_gbps,
            row.gflops,
        )
        for row in table.rows
    ]
    if rows:
        share = 100 * table.unaccounted_ms / table.round_ms if table.round_ms > 0 else None
        rest = table.unaccounted_ms
        rows.append((_REST, None, rest, rest * table.rounds, share, None, None))
    return rows


def as_text(table: KernelTable) -> str:
    """Tab-separated, full precision, empty where nothing was measured."""
    lines = ["\t".join(_KEYS)]
    for row in table_rows(table):
        lines.append(
            "\t".join("" if v is None else v if isinstance(v, str) else repr(v) for v in row)
        )
    return "\n".join(lines) + "\n"


class KernelModel(QAbstractTableModel):
    """A frozen table as precomputed strings; a new one of the same length changes cells in place."""

    def __init__(self, parent=None) -> None:
        super().__init__(parent)
        self._values: list[tuple[str | float | None, ...]] = []
        self._texts: list[list[str]] = []

    def set_table(self, table: KernelTable) -> None:
        values = table_rows(table)
        texts = [[_text(column, value) for column, value in enumerate(row)] for row in values]
        if len(values) != len(self._values):
            self.beginResetModel()
            self._values, self._texts = values, texts
            self.endResetModel()
        elif values:
            self._values, self._texts = values, texts
            last = self.index(len(values) - 1, len(COLUMNS) - 1)
            self.dataChanged.emit(self.index(0, 0), last, [Qt.ItemDataRole.DisplayRole])

    def rowCount(self, parent: QModelIndex | None = None) -> int:
        return 0 if parent is not None and parent.isValid() else len(self._values)

    def columnCount(self, parent: QModelIndex | None = None) -> int:
        return 0 if parent is not None and parent.isValid() else len(COLUMNS)

    def data(self, index: QModelIndex, role: int = Qt.ItemDataRole.DisplayRole):
        if not index.isValid():
            return None
        if role == Qt.ItemDataRole.DisplayRole:
            return self._texts[index.row()][index.column()]
        if role == Qt.ItemDataRole.UserRole:
            value = self._values[index.row()][index.column()]
            return -1.0 if value is None else value
        if role == Qt.ItemDataRole.ToolTipRole:
            return _REST_MEANS if self._values[index.row()][0] == _REST else None
        if role == Qt.ItemDataRole.TextAlignmentRole and index.column():
            return int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        return None

    def headerData(
        self, section: int, way: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole
    ):
        if way == Qt.Orientation.Horizontal:
            if role == Qt.ItemDataRole.DisplayRole:
                return COLUMNS[section]
            if role == Qt.ItemDataRole.TextAlignmentRole:
                side = Qt.AlignmentFlag.AlignRight if section else Qt.AlignmentFlag.AlignLeft
                return int(side | Qt.AlignmentFlag.AlignVCenter)
        return None


def _text(column: int, value: str | float | None) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return NONE
    if column == 1:
        return significant(value)
    decimals = _DECIMALS[column]
    least = 10.0**-decimals
    # Measured and small is not the same as nothing.
    return f"< {number(least, decimals)}" if 0 < value < least / 2 else number(value, decimals)


class SortedKernels(QSortFilterProxyModel):
    """Sorts by value. The mark stands in the heading's text: the style's arrow cuts what is right-aligned."""

    def __init__(self, source: KernelModel, parent=None) -> None:
        super().__init__(parent)
        self.setSourceModel(source)
        self.setSortRole(Qt.ItemDataRole.UserRole)

    def sort(self, column: int, order: Qt.SortOrder = Qt.SortOrder.AscendingOrder) -> None:
        super().sort(column, order)
        self.headerDataChanged.emit(Qt.Orientation.Horizontal, 0, len(COLUMNS) - 1)

    def headerData(
        self, section: int, way: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole
    ):
        found = super().headerData(section, way, role)
        sorted_here = way == Qt.Orientation.Horizontal and section == self.sortColumn()
        if sorted_here and role == Qt.ItemDataRole.DisplayRole:
            down = self.sortOrder() == Qt.SortOrder.DescendingOrder
            return f"{'▾' if down else '▴'} {found}"
        return found


class KernelsPage(QWidget):
    """Polls the table once a second while it is in view."""

    def __init__(self, bridge: Bridge, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("page")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self._bridge = bridge
        self._table = bridge.kernel_table()
        column = QVBoxLayout(self)
        column.setContentsMargins(18, 14, 18, 14)
        column.setSpacing(10)
        row = QHBoxLayout()
        title = QLabel("Kernels")
        title.setProperty("role", "title")
        row.addWidget(title)
        self.summary = QLabel()
        self.summary.setProperty("role", "dim")
        row.addWidget(self.summary, 1)
        self.copy_button = QPushButton("Copy data")
        self.reset_button = QPushButton("Start anew")
        self.reset_button.setToolTip("Forget the rounds counted so far")
        self.copy_button.clicked.connect(self.copy_data)
        self.reset_button.clicked.connect(self._reset)
        row.addWidget(self.copy_button)
        row.addWidget(self.reset_button)
        column.addLayout(row)
        self.model = KernelModel(self)
        self._sorted = SortedKernels(self.model, self)
        self.view = QTableView()
        self.view.setModel(self._sorted)
        self.view.setAccessibleName("Time of each operation")
        self.view.setTabKeyNavigation(False)  # Tab leaves the table; the arrows walk in it
        self.view.setSortingEnabled(True)
        self.view.sortByColumn(2, Qt.SortOrder.DescendingOrder)
        self.view.setShowGrid(False)
        self.view.setWordWrap(False)
        self.view.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.view.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.view.verticalHeader().hide()
        self.view.verticalHeader().setDefaultSectionSize(self.view.fontMetrics().height() + 8)
        header = self.view.horizontalHeader()
        header.setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        header.setHighlightSections(False)
        wide = self.view.fontMetrics().horizontalAdvance("0")
        for section, chars in enumerate((_NAME_CHARS, 16, 14, 13, 12, 9, 12)):
            header.resizeSection(section, wide * chars)
        header.setStretchLastSection(False)
        FilledColumn(self.view, 0, wide * _NAME_CHARS)
        self.reason = QLabel()
        self.reason.setProperty("role", "dim")
        self.reason.setWordWrap(True)
        self.reason.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._stack = QStackedWidget()
        self._stack.addWidget(self.reason)
        self._stack.addWidget(self.view)
        column.addWidget(self._stack, 1)
        self.entry = self.view
        self._timer = QTimer(self)
        self._timer.timeout.connect(self.refresh)
        self.refresh()

    def showEvent(self, event) -> None:
        super().showEvent(event)
        self.refresh()
        self._timer.start(REFRESH_MS)

    def hideEvent(self, event) -> None:
        super().hideEvent(event)
        self._timer.stop()

    @Slot()
    def refresh(self) -> None:
        self._table = table = self._bridge.kernel_table()
        self.model.set_table(table)
        self._stack.setCurrentIndex(1 if table.rows else 0)
        self.copy_button.setEnabled(bool(table.rows))
        self.reset_button.setEnabled(bool(table.rows))
        if table.rows:
            self.summary.setText(
                f"{grouped(table.rounds)} rounds, mean {significant(table.round_ms)} ms"
            )
        else:
            self.summary.setText("")
            why = f"Not available: {table.unavailable}."
            self.reason.setText(f"{why}\n\n{_HINT}" if table.waits else why)

    @Slot()
    def copy_data(self) -> None:
        QGuiApplication.clipboard().setText(as_text(self._table))

    @Slot()
    def _reset(self) -> None:
        self._bridge.reset_kernel_table()
        self.refresh()
