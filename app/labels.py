# SPDX-License-Identifier: MIT OR Apache-2.0
"""Labels that pages and cards share: text to read and to copy, the title in front of a row of buttons."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QLabel

_WORD_PX = 240


class _TextLabel(QLabel):
    """A word longer than all the room, such as a file name, is cut; it widens no page."""

    def minimumSizeHint(self) -> QSize:
        return super().minimumSizeHint().boundedTo(QSize(_WORD_PX, 1 << 20))


def text_label(text: str = "", role: str = "", *, wrap: bool = True) -> QLabel:
    """Plain text that the mouse can select, in a role of the style sheet."""
    label = _TextLabel(text) if wrap else QLabel(text)
    label.setTextFormat(Qt.TextFormat.PlainText)
    label.setWordWrap(wrap)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    if role:
        label.setProperty("role", role)
    return label


def name_choice(box: QComboBox, name: str) -> None:
    """Tell a screen reader what is chosen in a box; on Linux its name is the chosen value."""
    box.setAccessibleName(name)
    box.setAccessibleDescription(name)


def title_row(text: str) -> QHBoxLayout:
    """A row with a title at its left; what is added to it stands at its right."""
    row = QHBoxLayout()
    title = QLabel(text)
    title.setProperty("role", "title")
    row.addWidget(title)
    row.addStretch(1)
    return row
