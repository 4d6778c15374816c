# SPDX-License-Identifier: MIT OR Apache-2.0
"""A small read-only table of texts: words on the left, figures on the right."""

from __future__ import annotations

from PySide6.QtCore import QAbstractTableModel, QEvent, QModelIndex, QObject, Qt
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableView


class TextTable(QAbstractTableModel):
    """Rows of strings under fixed headings; the first `words` columns are aligned to the left."""

    def __init__(self, columns: tuple[str, ...], parent=None, *, words: int = 1) -> None:
        super().__init__(parent)
        self._columns, self._words = columns, words
        self._rows: list[tuple[str, ...]] = []

    def set_rows(self, rows: list[tuple[str, ...]]) -> None:
        if rows == self._rows:
            return
        self.beginResetModel()
        self._rows = rows
        self.endResetModel()

    def rowCount(self, parent: QModelIndex | None = None) -> int:
        return 0 if parent is not None and parent.isValid() else len(self._rows)

    def columnCount(self, parent: QModelIndex | None = None) -> int:
        return 0 if parent is not None and parent.isValid() else len(self._columns)

    def data(self, index: QModelIndex, role: int = Qt.ItemDataRole.DisplayRole):
        if not index.isValid():
            return None
        if role in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.ToolTipRole):
            return self._rows[index.row()][index.column()]
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return self._alignment(index.column())
        return None

    def headerData(
        self, section: int, way: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole
    ):
        if way == Qt.Orientation.Horizontal:
            if role == Qt.ItemDataRole.DisplayRole:
                return self._columns[section]
            if role == Qt.ItemDataRole.TextAlignmentRole:
                return self._alignment(section)
        return None

    def _alignment(self, column: int) -> int:
        left = column < self._words
        side = Qt.AlignmentFlag.AlignLeft if left else Qt.AlignmentFlag.AlignRight
        return int(side | Qt.AlignmentFlag.AlignVCenter)


def table_view(
    model: TextTable, name: str, chars: tuple[int, ...], *, stretch: int = 0
) -> QTableView:
    """A plain view of `model` called `name`, columns `chars` digits wide; `stretch` takes what is left."""
    view = QTableView()
    view.setModel(model)
    view.setAccessibleName(name)
    view.setShowGrid(False)
    view.setWordWrap(False)  # a line that is cut shows its beginning, not its first word
    view.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
    view.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
    view.setTabKeyNavigation(False)
    view.verticalHeader().hide()
    view.verticalHeader().setDefaultSectionSize(view.fontMetrics().height() + 8)
    header = view.horizontalHeader()
    header.setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
    header.setHighlightSections(False)
    wide = view.fontMetrics().horizontalAdvance("0")
    for section, count in enumerate(chars):
        header.resizeSection(section, wide * count)
    header.setMinimumSectionSize(wide * 6)
    FilledColumn(view, stretch, wide * chars[stretch])
    return view


class FilledColumn(QObject):
    """Keeps one column as wide as the view leaves room for, and no narrower than `least_px`."""

    def __init__(self, view: QTableView, column: int, least_px: int) -> None:
        super().__init__(view)
        self._view, self._column, self._least_px = view, column, least_px
        view.viewport().installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Resize:
            header = self._view.horizontalHeader()
            others = header.length() - header.sectionSize(self._column)
            room = self._view.viewport().width() - others
            header.resizeSection(self._column, max(self._least_px, room))
        return super().eventFilter(watched, event)
