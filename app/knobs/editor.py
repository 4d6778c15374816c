# SPDX-License-Identifier: MIT OR Apache-2.0
"""A field for one switch value, by the switch's kind."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QFileDialog,
    QHBoxLayout,
    QLineEdit,
    QPushButton,
    QSpinBox,
    QWidget,
)

from app.knobs.model import shown
from app.labels import name_choice
from engine.api import KnobRow

_FIELD_CHARS = 30


class ValueEditor(QWidget):
    """Shows and edits one value; `edited` follows every change by the user.

    A text that does not parse is passed on as it stands: the engine refuses it in its own words.
    """

    edited = Signal()

    def __init__(self, row: KnobRow, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        line = QHBoxLayout(self)
        line.setContentsMargins(0, 0, 0, 0)
        line.setSpacing(6)
        self._dialog: QFileDialog | None = None
        self.field = self._make(row)
        self.field.setAccessibleName(f"Value of {row.name}")
        line.addWidget(self.field)
        self.controls: list[QWidget] = [self.field]
        if row.kind == "path":
            browse = QPushButton("Browse…")
            browse.clicked.connect(self._browse)
            line.addWidget(browse)
            self.controls.append(browse)
        line.addStretch(1)
        self.set_value(row.value)

    def _make(self, row: KnobRow) -> QWidget:
        if row.kind == "bool":
            box = QCheckBox("on")
            box.toggled.connect(self._edited)
            return box
        if row.kind == "choice":
            combo = QComboBox()
            name_choice(combo, f"Value of {row.name}")
            for choice in row.choices:
                combo.addItem(shown(choice), choice)
            combo.currentIndexChanged.connect(self._edited)
            return combo
        if row.kind == "int":
            spin = QSpinBox()
            spin.setRange(int(row.low), int(row.high))
            spin.setAlignment(Qt.AlignmentFlag.AlignRight)
            spin.valueChanged.connect(self._edited)
            return spin
        field = QLineEdit()
        field.setMinimumWidth(field.fontMetrics().horizontalAdvance("0") * _FIELD_CHARS)
        field.textEdited.connect(self._edited)
        return field

    @property
    def value(self) -> str:
        """The text of the value as a profile would hold it."""
        field = self.field
        if isinstance(field, QCheckBox):
            return "1" if field.isChecked() else "0"
        if isinstance(field, QComboBox):
            return str(field.currentData(Qt.ItemDataRole.UserRole))
        if isinstance(field, QSpinBox):
            return str(field.value())
        return field.text().strip()

    def set_value(self, value: str) -> None:
        """Show a value without telling that it was edited."""
        field = self.field
        blocked = field.blockSignals(True)
        if isinstance(field, QCheckBox):
            field.setChecked(value == "1")
        elif isinstance(field, QComboBox):
            field.setCurrentIndex(max(0, field.findData(value)))
        elif isinstance(field, QSpinBox):
            field.setValue(int(value) if value.lstrip("-").isdigit() else field.minimum())
        else:
            field.setText(value)
        field.blockSignals(blocked)

    @Slot()
    def _edited(self, *_: object) -> None:
        self.edited.emit()

    @Slot()
    def _browse(self) -> None:
        self._dialog = QFileDialog(self, "Choose a file or folder")
        self._dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self._dialog.fileSelected.connect(self._chosen)
        self._dialog.open()

    @Slot(str)
    def _chosen(self, path: str) -> None:
        self.field.setText(path)
        self.edited.emit()
