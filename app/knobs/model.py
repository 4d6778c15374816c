# SPDX-License-Identifier: MIT OR Apache-2.0
"""The switches as a table: one row each under the heading of its group, filtered by words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QSortFilterProxyModel, Qt

from app.knobs.candidate import Candidate
from engine.api import KnobRow

COLUMNS = ("Switch", "Value", "Side B", "From", "Takes effect", "Text")
SIDE_B = 2
SOURCES = {
    "default": "default",
    "profile": "profile",
    "environment": "environment",
    "caller": "set here",
}
BITS = {
    "identical": "same bits",
    "near-tie": "may differ at near ties",
    "other-numbers": "may differ: rounds further",
    "proposes-only": "same text, other drafts",
}
FLIPS = {"live": "next round", "recapture": "next round", "reload": "after a reload"}
EMPTY = "(empty)"
_HEAD_TIPS = {
    "From": "Where the value comes from: the default, a profile, the environment, or set here",
    "Side B": "The value marked for side B of the next A/B",
    "Text": "Same bits: every answer stays as it is. May differ at near ties: of two tokens that are almost "
    "equally likely, the other one may be written. Other drafts: the text stays, the speed may not.",
}
AVAILABLE_ROLE = Qt.ItemDataRole.UserRole + 1
HEADING_ROLE = Qt.ItemDataRole.UserRole + 2
_PREFIX = "QWEN38_"
_LONGEST_SEARCH = 1000  # characters


@dataclass(frozen=True, slots=True)
class Heading:
    """The line above the switches of a group."""

    title: str
    available: int
    total: int

    @property
    def text(self) -> str:
        return f"{self.title}  ·  {self.available} of {self.total} available"


def shown(value: str) -> str:
    """A value as a cell shows it."""
    return value or EMPTY


def short(name: str) -> str:
    """A switch's name without the prefix they all share."""
    return name.removeprefix(_PREFIX)


def lines_of(rows: Sequence[KnobRow]) -> tuple[Heading | KnobRow, ...]:
    """The rows under the headings of their groups, in order of appearance; what is not available comes last."""
    lines: list[Heading | KnobRow] = []
    for title in dict.fromkeys(row.group for row in rows):
        group = sorted((row for row in rows if row.group == title), key=lambda r: not r.available)
        lines.append(Heading(title, sum(row.available for row in group), len(group)))
        lines += group
    return tuple(lines)


def _keys(lines: Sequence[Heading | KnobRow]) -> list[str]:
    return [line.title if isinstance(line, Heading) else line.name for line in lines]


class KnobModel(QAbstractTableModel):
    """A frozen list of lines; a new one with the same names in the same order changes cells in place."""

    def __init__(self, candidate: Candidate, parent=None) -> None:
        super().__init__(parent)
        self._candidate = candidate
        self._rows: tuple[KnobRow, ...] = ()
        self._lines: tuple[Heading | KnobRow, ...] = ()
        candidate.changed.connect(self._refresh)

    @property
    def rows(self) -> tuple[KnobRow, ...]:
        """The switches, as they were given."""
        return self._rows

    @property
    def lines(self) -> tuple[Heading | KnobRow, ...]:
        """What the lines of the table stand for."""
        return self._lines

    def line_of(self, name: str) -> int | None:
        """The line of a switch."""
        keys = _keys(self._lines)
        return keys.index(name) if name in keys else None

    def set_rows(self, rows: tuple[KnobRow, ...]) -> None:
        if rows == self._rows:
            return
        lines = lines_of(rows)
        if _keys(lines) == _keys(self._lines):
            self._rows, self._lines = rows, lines
            self._refresh()
        else:
            self.beginResetModel()
            self._rows, self._lines = rows, lines
            self.endResetModel()

    def _refresh(self) -> None:
        if self._lines:
            last = self.index(len(self._lines) - 1, len(COLUMNS) - 1)
            self.dataChanged.emit(self.index(0, 0), last)

    def rowCount(self, parent: QModelIndex | None = None) -> int:
        return 0 if parent is not None and parent.isValid() else len(self._lines)

    def columnCount(self, parent: QModelIndex | None = None) -> int:
        return 0 if parent is not None and parent.isValid() else len(COLUMNS)

    def flags(self, index: QModelIndex) -> Qt.ItemFlag:
        """A heading cannot be chosen."""
        if index.isValid() and isinstance(self._lines[index.row()], Heading):
            return Qt.ItemFlag.NoItemFlags
        return super().flags(index)

    def data(self, index: QModelIndex, role: int = Qt.ItemDataRole.DisplayRole):
        if not index.isValid():
            return None
        line = self._lines[index.row()]
        if isinstance(line, Heading):
            if role == HEADING_ROLE:
                return True
            return line.text if role == Qt.ItemDataRole.DisplayRole and not index.column() else None
        if role == Qt.ItemDataRole.DisplayRole:
            return self._text(line, index.column())
        if role == AVAILABLE_ROLE:
            return line.available
        if role == Qt.ItemDataRole.ToolTipRole:
            return (
                line.effect if line.available else f"{line.effect}\n\nNot available: {line.reason}"
            )
        return None

    def _text(self, row: KnobRow, column: int) -> str:
        match column:
            case 0:
                return short(row.name)
            case 1:
                return shown(row.value) if row.available else "not available"
            case 2:
                marked = self._candidate.value(row.name)
                return "" if marked is None else shown(marked)
            case 3:
                return SOURCES.get(row.source, row.source) if row.available else ""
            case 4:
                return FLIPS.get(row.flip, row.flip)
        return BITS.get(row.bits, row.bits)

    def headerData(
        self, section: int, way: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole
    ):
        if way == Qt.Orientation.Horizontal and role == Qt.ItemDataRole.DisplayRole:
            return COLUMNS[section]
        if way == Qt.Orientation.Horizontal and role == Qt.ItemDataRole.ToolTipRole:
            return _HEAD_TIPS.get(COLUMNS[section])
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        return None


class KnobFilter(QSortFilterProxyModel):
    """Switches whose name, group or effect holds every word, of one group, changed ones only, usable ones only.

    The heading of a group stays while one of its switches does.
    """

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
        self._words = tuple(text[:_LONGEST_SEARCH].lower().split())
        self._group, self._changed_only, self._usable_only = group, changed_only, usable_only
        self.endFilterChange(QSortFilterProxyModel.Direction.Rows)

    def names(self) -> list[str]:
        """The switches that are left, from top to bottom."""
        lines = self.sourceModel().lines
        at = (self.mapToSource(self.index(row, 0)).row() for row in range(self.rowCount()))
        return [lines[row].name for row in at if not isinstance(lines[row], Heading)]

    def filterAcceptsRow(self, source_row: int, source_parent: QModelIndex) -> bool:
        model = self.sourceModel()
        line = model.lines[source_row]
        if isinstance(line, Heading):
            return any(self._takes(row) for row in model.rows if row.group == line.title)
        return self._takes(line)

    def _takes(self, row: KnobRow) -> bool:
        if self._group and row.group != self._group:
            return False
        if self._changed_only and (row.value == row.default or not row.available):
            return False
        if self._usable_only and not row.available:
            return False
        text = f"{row.name} {row.group} {row.effect}".lower()
        return all(word in text for word in self._words)
