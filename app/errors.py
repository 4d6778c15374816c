# SPDX-License-Identifier: MIT OR Apache-2.0
"""The error card: what happened, what was kept, what to do next, and a report to copy."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from PySide6 import __version__ as pyside_version
from PySide6.QtCore import Signal, Slot
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPushButton, QVBoxLayout, QWidget

from app.format import byte_size
from app.labels import text_label
from engine.api import ErrorReport, ModelCard, Snapshot


def report_text(report: ErrorReport, snapshot: Snapshot | None = None) -> str:
    """A report for a bug tracker: the error, versions, model and memory; nothing of the conversation."""
    lines = [report.title, "", f"Cause: {report.cause}"]
    lines += [f"Kept: {report.kept}"] if report.kept else []
    lines += [f"Next step: {report.next_step}"] if report.next_step else []
    lines += [
        "",
        f"Rondo {_version('rondo')}, Python {sys.version.split()[0]}, PySide6 {pyside_version}, "
        f"torch {_version('torch')}",
        f"System: {platform.platform()}",
    ]
    if snapshot is not None:
        lines.append(f"Engine: {snapshot.state}, memory {byte_size(snapshot.memory_bytes)}")
        lines.append(f"Model: {_model_line(snapshot.model)}")
    if report.details:
        lines += ["", report.details.rstrip()]
    return "\n".join(lines) + "\n"


def _model_line(card: ModelCard | None) -> str:
    if card is None:
        return "none loaded"
    return f"{card.name}, {card.weight_format}, {card.backend}, {card.device}, {card.speculation}"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


class ErrorCard(QFrame):
    """One error. `dismissed` is emitted by its close button, `remedy_wanted` by that of its remedy."""

    dismissed = Signal()
    remedy_wanted = Signal()

    def __init__(
        self,
        report: ErrorReport,
        snapshot: Snapshot | None = None,
        parent: QWidget | None = None,
        *,
        dismissable: bool = True,
        remedy: str = "",
    ) -> None:
        super().__init__(parent)
        self.setObjectName("errorCard")
        self.setAccessibleName(f"Error: {report.title}")
        self.report = report
        self._report_text = report_text(report, snapshot)
        column = QVBoxLayout(self)
        column.setContentsMargins(14, 11, 14, 11)
        column.setSpacing(5)
        title = text_label(f"✕  {report.title}", "title")
        column.addWidget(title)
        column.addWidget(text_label(report.cause))
        if report.kept:
            column.addWidget(text_label(report.kept, "dim"))
        if report.next_step:
            column.addWidget(text_label(f"Next step: {report.next_step}"))
        row = QHBoxLayout()
        row.setContentsMargins(0, 5, 0, 0)
        self.remedy_button: QPushButton | None = None
        if remedy:
            self.remedy_button = QPushButton(remedy)
            self.remedy_button.clicked.connect(self.remedy_wanted)
            row.addWidget(self.remedy_button)
        self.copy_button = QPushButton("Copy report")
        self.copy_button.clicked.connect(self._copy)
        row.addWidget(self.copy_button)
        if dismissable:
            self.close_button = QPushButton("Dismiss")
            self.close_button.clicked.connect(self.dismissed)
            row.addWidget(self.close_button)
        row.addStretch()
        column.addLayout(row)

    @Slot()
    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self._report_text)
        self.copy_button.setText("Report copied")


class ErrorPlace(QWidget):
    """Room on a page for one error card at a time. `snapshot` gives the engine's state for its report."""

    def __init__(self, snapshot: Callable[[], Snapshot], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._snapshot = snapshot
        self.card: ErrorCard | None = None
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(0, 0, 0, 0)
        self.hide()

    def show_report(self, report: ErrorReport) -> None:
        """Show an error in place of the one before."""
        self.clear()
        self.card = ErrorCard(report, self._snapshot())
        self.card.dismissed.connect(self.clear)
        self._column.addWidget(self.card)
        self.show()

    @Slot()
    def clear(self) -> None:
        """Take the error away."""
        self.hide()
        if self.card is not None:
            self._column.removeWidget(self.card)
            self.card.hide()
            self.card.deleteLater()
            self.card = None

    def attempt(self, action: Callable[[], object]) -> bool:
        """Do something that may fail; its error is shown and False returned."""
        self.clear()
        try:
            action()
        except Exception as error:
            self.show_report(ErrorReport.of(error))
            return False
        return True
