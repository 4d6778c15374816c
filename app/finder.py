# SPDX-License-Identifier: MIT OR Apache-2.0
"""The palette (a filterable list of actions), the list of keys and the About box."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

from PySide6 import __version__ as pyside_version
from PySide6.QtCore import QEvent, QModelIndex, QObject, QPoint, Qt, Slot
from PySide6.QtGui import QAction, QKeyEvent, QPainter
from PySide6.QtWidgets import (
    QDialog,
    QFrame,
    QGridLayout,
    QLabel,
    QLineEdit,
    QListWidget,
    QListWidgetItem,
    QPushButton,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QVBoxLayout,
    QWidget,
)

from app.actions import ACTIONS, FIELD_KEYS, MENUS, key_text, native_text

_WIDE_PX = 460
_ACTION_ROLE = Qt.ItemDataRole.UserRole
_KEYS_ROLE = Qt.ItemDataRole.UserRole + 1


class Palette(QFrame):
    """Type to filter, Up and Down to choose, Enter to run, Esc to leave."""

    def __init__(self, actions: dict[str, QAction], window: QWidget) -> None:
        super().__init__(window, Qt.WindowType.Popup | Qt.WindowType.FramelessWindowHint)
        self.setObjectName("popover")
        self._actions = actions
        column = QVBoxLayout(self)
        column.setContentsMargins(8, 8, 8, 8)
        column.setSpacing(6)
        self.filter = QLineEdit()
        self.filter.setPlaceholderText("Find an action")
        self.filter.setAccessibleName("Find an action")
        self.filter.textChanged.connect(self._fill)
        self.filter.returnPressed.connect(self._run)
        self.filter.installEventFilter(self)
        column.addWidget(self.filter)
        self.list = QListWidget()
        self.list.setAccessibleName("Actions")
        self.list.setUniformItemSizes(True)
        self.list.setItemDelegate(_KeysAtTheEnd(self.list))
        self.list.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.list.itemClicked.connect(self._run)
        column.addWidget(self.list)
        self.setFixedSize(_WIDE_PX, 380)

    def open(self) -> None:
        """Show over the upper middle of the window."""
        self.filter.clear()
        self._fill("")
        parent = self.parentWidget()
        self.move(parent.mapToGlobal(QPoint((parent.width() - _WIDE_PX) // 2, 70)))
        self.show()
        self.filter.setFocus()

    @Slot(str)
    def _fill(self, wanted: str) -> None:
        self.list.clear()
        words = wanted.lower().split()
        for spec in ACTIONS:
            action = self._actions[spec.name]
            line = f"{spec.menu}: {spec.text}"
            if spec.name == "palette" or not action.isEnabled():
                continue
            if all(word in line.lower() for word in words):
                keys = key_text(spec)
                item = QListWidgetItem(line)
                item.setData(_ACTION_ROLE, spec.name)
                item.setData(_KEYS_ROLE, keys)
                if keys:
                    said = Qt.ItemDataRole.AccessibleTextRole
                    item.setData(said, f"{line}, {keys}")
                self.list.addItem(item)
        self.list.setCurrentRow(0)

    @Slot()
    def _run(self, *_: object) -> None:
        item = self.list.currentItem()
        if item is not None:
            self.hide()
            self._actions[item.data(_ACTION_ROLE)].trigger()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress:
            step = {Qt.Key.Key_Down: 1, Qt.Key.Key_Up: -1}.get(event.key())
            if step and self.list.count():
                self.list.setCurrentRow((self.list.currentRow() + step) % self.list.count())
                return True
        return super().eventFilter(watched, event)


class _KeysAtTheEnd(QStyledItemDelegate):
    """Draws the keys of an action at the right end of its line."""

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: QModelIndex) -> None:
        super().paint(painter, option, index)
        rect = option.rect.adjusted(0, 0, -10, 0)
        side = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        painter.setPen(option.palette.placeholderText().color())
        painter.drawText(rect, side, index.data(_KEYS_ROLE) or "")


def product_version() -> str:
    try:
        return version("rondo")
    except PackageNotFoundError:
        return "(not installed)"


class KeysDialog(QDialog):
    """Every action that has a key, by menu, and the keys of the message field."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle("Keys")
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        column = QVBoxLayout(self)
        column.setContentsMargins(22, 18, 22, 16)
        grid = QGridLayout()
        grid.setHorizontalSpacing(40)
        grid.setVerticalSpacing(5)
        for menu in MENUS:
            specs = [spec for spec in ACTIONS if spec.menu == menu and spec.keys]
            _add_keys(grid, menu, [(spec.text, key_text(spec)) for spec in specs])
        _add_keys(grid, "Message field", [(text, native_text(key)) for text, key in FIELD_KEYS])
        column.addLayout(grid)
        close = QPushButton("Close")
        close.clicked.connect(self.accept)
        column.addSpacing(8)
        column.addWidget(close, 0, Qt.AlignmentFlag.AlignRight)


def _add_keys(grid: QGridLayout, title: str, keys: list[tuple[str, str]]) -> None:
    """Rows of what a key does and the key, under a title."""
    top = grid.rowCount()
    head = QLabel(title)
    head.setProperty("role", "small")
    grid.setRowMinimumHeight(top, 26)
    grid.addWidget(head, top, 0, Qt.AlignmentFlag.AlignBottom)
    for row, (text, key) in enumerate(keys, top + 1):
        grid.addWidget(QLabel(text), row, 0)
        grid.addWidget(QLabel(key), row, 1, Qt.AlignmentFlag.AlignRight)


class AboutDialog(QDialog):
    """What this is and what it runs on."""

    def __init__(self, version: str, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle("About Rondo")
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        column = QVBoxLayout(self)
        column.setContentsMargins(22, 18, 22, 16)
        column.setSpacing(8)
        title = QLabel(f"Rondo {version}")
        title.setProperty("role", "headline")
        column.addWidget(title)
        for line in (
            "A desktop console that hosts a complete local inference engine.",
            f"Python {sys.version.split()[0]}, PySide6 {pyside_version}, "
            f"thread switch interval {sys.getswitchinterval() * 1e3:g} ms",
            "MIT or Apache-2.0. Nothing you write leaves this machine.",
        ):
            column.addWidget(QLabel(line))
        close = QPushButton("Close")
        close.clicked.connect(self.accept)
        column.addWidget(close, 0, Qt.AlignmentFlag.AlignRight)
