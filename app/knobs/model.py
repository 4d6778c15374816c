# SPDX-License-Identifier: MIT OR Apache-2.0
"""The switches as a table: one row each under its group, filtered by words."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QSortFilterProxyModel, Qt

from app.knobs.candidate import Candidate
from engine.api import KnobRow

COLUMNS = ("Switch", "Value", "From", "Side B", "Text", "Takes effect", "Group")
SOURCES = {
    "default": "default",
    "profile": "profile",
    "environment": "environment",
    "caller": "set here",
}
BITS = {
    "identical": "same bits",
    "near-tie": "may part at near ties",
    "other-weights": "other weights",
    "proposes-only": "same text, other drafts",
}
FLIPS = {"live": "next round", "recapture": "next round", "reload": "after a reload"}
EMPTY = "(empty)"
AVAILABLE_ROLE = Qt.ItemDataRole.UserRole + 1


def shown(value: str) -> str:
    """A value as a cell shows it."""
    return value or EMPTY


def same_switches(before: Sequence[KnobRow], after: Sequence[KnobRow]) -> bool:
    """Whether both list the same names in the same order."""
    return [row.name for row in before] == [row.name for row in after]


class KnobModel(QAbstractTableModel):
    """A frozen list of rows; a new one with the same names changes cells in place."""

    def __init__(self, candidate: Candidate, parent=None) -> None:
        super().__init__(parent)
        self._candidate = candidate
        self._rows: tuple[KnobRow, ...] = ()
        candidate.changed.connect(self._refresh)

    @property
    def rows(self) -> tuple[KnobRow, ...]:
        return self._rows

    def set_rows(self, rows: tuple[KnobRow, ...]) -> None:
        if rows == self._rows:
            return
        if same_switches(self._rows, rows):
            self._rows = rows
            self._refresh()
        else:
            self.beginResetModel()
            self._rows = rows
            self.endResetModel()

    def _refresh(self) -> None:
        if self._rows:
            last = self.index(len(self._rows) - 1, len(COLUMNS) - 1)
            self.dataChanged.emit(self.index(0, 0), last)

    def rowCount(self, parent: QModelIndex | None = None) -> int:
        return 0 if parent is not None and parent.isValid() else len(self._rows)

    def columnCount(self, parent: QModelIndex | None = None) -> int:
        return 0 if parent is not None and parent.isValid() else len(COLUMNS)

    def data(self, index: QModelIndex, role: int = Qt.ItemDataRole.DisplayRole):
        if not index.isValid():
            return None
        row = self._rows[index.row()]
        if role == Qt.ItemDataRole.DisplayRole:
            return self._text(row, index.column())
        if role == AVAILABLE_ROLE:
            return row.available
        if role == Qt.ItemDataRole.ToolTipRole:
            return row.effect if row.available else f"{row.effect}\n\nNot available: {row.reason}"
        return None

    def _text(self, row: KnobRow, column: int) -> str:
        match column:
            case 0:
                return row.name.removeprefix("QWEN38_")
            case 1:
                return shown(row.value) if row.available else "not available"
            case 2:
                return SOURCES.get(row.source, row.source) if row.available else ""
            case 3:
                marked = self._candidate.value(row.name)
                return "" if marked is None else shown(marked)
            case 4:
                return BITS.get(row.bits, row.bits)
            case 5:
                return FLIPS.get(row.flip, row.flip)
        return row.group

    def headerData(
        self, section: int, way: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole
    ):
        if way == Qt.Orientation.Horizontal and role == Qt.ItemDataRole.DisplayRole:
            return COLUMNS[section]
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        return None


class KnobFilter(QSortFilterProxyModel):
    """Rows whose name, group or effect holds every word, of one group, changed ones only, usable ones only."""

    def __init__(self, source: KnobModel, parent=None) -> None:
        super().__init__(parent)
        self._words: tuple[str, ...] = ()
        self._group = ""
        self._changed_only = False
        self._usable_only = False
        self.setSourceModel(source)

    def set_filter(self, text: str, group: str, *, changed_only: bool, usable_only: bool) -> None:
        """`group` empty takes all."""
        self.beginFilterChange()
        self._words = tuple(text.lower().split())
        self._group, self._changed_only, self._usable_only = group, changed_only, usable_only
        self.endFilterChange(QSortFilterProxyModel.Direction.Rows)

    def filterAcceptsRow(self, source_row: int, source_parent: QModelIndex) -> bool:
        row = self.sourceModel().rows[source_row]
        if self._group and row.group != self._group:
            return False
        if self._changed_only and (row.value == row.default or not row.available):
            return False
        if self._usable_only and not row.available:
            return False
        text = f"{row.name} {row.group} {row.effect}".lower()
        return all(word in text for word in self._words)
