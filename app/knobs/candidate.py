# SPDX-License-Identifier: MIT OR Apache-2.0
"""Side B of the next A/B: the switch values marked for it, shared by the pages that show them."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal


class Candidate(QObject):
    """Values by full switch name. `changed` is emitted after every change."""

    changed = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._values: dict[str, str] = {}

    @property
    def values(self) -> dict[str, str]:
        """A copy of the marked values."""
        return dict(self._values)

    def value(self, name: str) -> str | None:
        """What a switch is marked with, None where it is not marked."""
        return self._values.get(name)

    def mark(self, name: str, value: str) -> None:
        if self._values.get(name) != value:
            self._values[name] = value
            self.changed.emit()

    def unmark(self, name: str) -> None:
        if self._values.pop(name, None) is not None:
            self.changed.emit()

    def replace(self, values: dict[str, str]) -> None:
        """Mark exactly these."""
        if values != self._values:
            self._values = dict(values)
            self.changed.emit()
