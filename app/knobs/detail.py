# SPDX-License-Identifier: MIT OR Apache-2.0
"""One switch in full: what it does, its value and where that came from, an editor, and its mark for side B."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtWidgets import (
    QCheckBox,
    QFormLayout,
    QFrame,
    QHBoxLayout,
    QLabel,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from app.format import grouped
from app.knobs.candidate import Candidate
from app.knobs.editor import ValueEditor
from app.knobs.model import BITS, FLIPS, SOURCES, shown
from app.labels import text_label
from engine.api import KnobRow

_HINT = (
    "Choose a switch to see what it does and to change it. Mark a value as side B to measure it against the "
    "present one."
)

_MARK = "Use the value in the field as side B of the next A/B"
_SAME = "Enter another value than the present one: it can be side B of the next A/B"


def value_line(row: KnobRow) -> str:
    """The value, where it comes from, and the default and the served value where they are others."""
    source = SOURCES.get(row.source, row.source)
    parts = [shown(row.value), source]
    if row.value != row.default:
        parts.append(f"default {shown(row.default)}")
    elif row.source != "default":
        parts.append("the default too")
    if row.served not in (row.default, row.value):
        parts.append(f"served {shown(row.served)}")
    return "  ·  ".join(parts)


class KnobDetail(QFrame):
    """Signals: change_wanted(name, value), reload_wanted(name, value)."""

    change_wanted = Signal(str, str)
    reload_wanted = Signal(str, str)

    def __init__(self, candidate: Candidate, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("card")
        self._candidate = candidate
        self._locked = ""
        self.row: KnobRow | None = None
        self.editor: ValueEditor | None = None
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(14, 10, 14, 12)
        self._column.setSpacing(7)
        self.title = text_label("", "title")
        self.effect = text_label(_HINT)
        self.reason = text_label("", "warn")
        self._form = QFormLayout()
        self._form.setContentsMargins(0, 0, 0, 0)
        self._form.setHorizontalSpacing(22)
        self._form.setVerticalSpacing(3)
        self._facts: dict[str, QLabel] = {}
        for name in ("Value", "Accepts", "Text", "Takes effect", "Rules", "Engaged"):
            self._facts[name] = text_label("")
            self._form.addRow(text_label(name, "dim", wrap=False), self._facts[name])
        self._line = QHBoxLayout()
        self._line.setSpacing(8)
        self.set_button = QPushButton("Set")
        self.reset_button = QPushButton("Reset")
        self.mark_box = QCheckBox("Side B")
        self.set_button.clicked.connect(self._set)
        self.reset_button.clicked.connect(self._reset)
        self.mark_box.clicked.connect(self._mark)
        for widget in (self.set_button, self.reset_button, self.mark_box):
            self._line.addWidget(widget)
        self._line.addStretch(1)
        for widget in (self.title, self.effect, self.reason):
            self._column.addWidget(widget)
        self._column.addLayout(self._line)
        self._column.addLayout(self._form)
        self._column.addStretch(1)
        candidate.changed.connect(self._refresh_controls)
        self.show_row(None)

    def show_row(self, row: KnobRow | None) -> None:
        """Show a switch; what the operator has typed stays while its name and value do."""
        before, self.row = self.row, row
        known = row is not None
        for name in self._facts:
            self._form.setRowVisible(self._facts[name], known)
        for widget in (self.title, self.set_button, self.reset_button, self.mark_box):
            widget.setVisible(known)
        if row is None:
            self.effect.setText(_HINT)
            self.reason.hide()
            self._drop_editor()
            return
        self.title.setText(row.name)
        self.effect.setText(row.effect)
        self.reason.setVisible(not row.available)
        self.reason.setText(f"◆ Not available: {row.reason}")
        self._show_facts(row)
        if self.editor is None or before is None or before.name != row.name:
            self._drop_editor()
            self.editor = ValueEditor(row)
            self.editor.edited.connect(self._on_edited)
            self._line.insertWidget(0, self.editor)
            self._order_tabs(self.editor)
            marked = self._candidate.value(row.name)
            if marked is not None:
                self.editor.set_value(marked)
        elif before.value != row.value and self.editor.value == before.value:
            self.editor.set_value(row.value)
        self._refresh_controls()

    def _show_facts(self, row: KnobRow) -> None:
        counted = (
            "" if row.engaged_count is None else f": {grouped(row.engaged_count)} since the load"
        )
        facts = {
            "Value": value_line(row),
            "Accepts": row.accepts,
            "Text": BITS.get(row.bits, row.bits),
            "Takes effect": FLIPS.get(row.flip, row.flip),
            "Rules": "; ".join(row.rules),
            "Engaged": f"{row.engaged}{counted}",
        }
        for name, text in facts.items():
            self._facts[name].setText(text)
            self._form.setRowVisible(self._facts[name], bool(text))

    def lock(self, reason: str) -> None:
        """Let nothing be set meanwhile, and say why; empty unlocks."""
        if reason != self._locked:
            self._locked = reason
            self._refresh_controls()

    def _order_tabs(self, editor: ValueEditor) -> None:
        """Tab comes to the value before it comes to its buttons; a new widget is the last of the window."""
        before = self.set_button.previousInFocusChain()
        while not before.focusPolicy() & Qt.FocusPolicy.TabFocus:
            before = before.previousInFocusChain()
        for control in editor.controls:
            QWidget.setTabOrder(before, control)
            before = control

    def _drop_editor(self) -> None:
        if self.editor is not None:
            self._line.removeWidget(self.editor)
            self.editor.hide()
            self.editor.deleteLater()
            self.editor = None

    @Slot()
    def _refresh_controls(self) -> None:
        row, editor = self.row, self.editor
        if row is None or editor is None:
            return
        editor.setEnabled(row.available)
        reload = row.flip == "reload"
        self.set_button.setText("Set and reload" if reload else "Set")
        free = row.available and not self._locked
        self.set_button.setEnabled(free and editor.value != row.value)
        self.set_button.setToolTip(self._locked)
        self.reset_button.setEnabled(free and row.value != row.default)
        self.reset_button.setToolTip(self._locked or f"Back to the default, {shown(row.default)}")
        marked = self._candidate.value(row.name)
        other = marked is not None or editor.value != row.value
        self.mark_box.setEnabled(row.available and other)
        self.mark_box.setToolTip(_MARK if other else _SAME)
        self.mark_box.setChecked(marked is not None)
        self.mark_box.setText("Side B" if marked is None else f"Side B: {shown(marked)}")

    @Slot()
    def _on_edited(self) -> None:
        if self.row is not None and self._candidate.value(self.row.name) is not None:
            self._mark(True)
        self._refresh_controls()

    @Slot()
    def _set(self) -> None:
        if self.editor is not None:
            self._want(self.editor.value)

    @Slot()
    def _reset(self) -> None:
        if self.row is not None and self.editor is not None:
            self.editor.set_value(self.row.default)
            self._want(self.row.default)

    def _want(self, value: str) -> None:
        if self.row is not None:
            wanted = self.reload_wanted if self.row.flip == "reload" else self.change_wanted
            wanted.emit(self.row.name, value)

    @Slot(bool)
    def _mark(self, marked: bool) -> None:
        if self.row is None or self.editor is None:
            return
        if marked and self.editor.value != self.row.value:
            self._candidate.mark(self.row.name, self.editor.value)
        else:
            self._candidate.unmark(self.row.name)
