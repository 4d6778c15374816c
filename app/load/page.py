# SPDX-License-Identifier: MIT OR Apache-2.0
"""The model page: what is loaded, the load that runs, recent folders, and why a load failed or ended."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtWidgets import (
    QFileDialog,
    QFrame,
    QHBoxLayout,
    QLabel,
    QListWidget,
    QListWidgetItem,
    QProgressBar,
    QPushButton,
    QScrollArea,
    QVBoxLayout,
    QWidget,
)

from app.bridge import Bridge
from app.errors import ErrorCard
from app.labels import text_label, title_row
from app.live.now import now
from app.load.card import CardView
from app.settings import Settings
from engine.api import ErrorReport, LoadProgress, ModelCard

_STEPS = 1000


class ModelPage(QWidget):
    """Signals: attention_wanted (a load failed, or one was asked for)."""

    attention_wanted = Signal()

    def __init__(self, bridge: Bridge, settings: Settings, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("page")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self._bridge, self._settings = bridge, settings
        self.error_card: ErrorCard | None = None
        self._dialog: QFileDialog | None = None
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        scroll = QScrollArea()
        scroll.setWidgetResizable(True)
        scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        outer.addWidget(scroll)
        body = QWidget()
        body.setObjectName("scrollBody")
        scroll.setWidget(body)
        self._column = column = QVBoxLayout(body)
        column.setContentsMargins(18, 14, 18, 14)
        column.setSpacing(12)
        column.addLayout(self._make_buttons())
        column.addWidget(self._make_progress())
        self.notice = text_label()
        self.notice.hide()
        column.addWidget(self.notice)
        self.card = CardView()
        column.addWidget(self.card)
        caption = QLabel("Recent folders")
        caption.setProperty("role", "title")
        column.addWidget(caption)
        self.recent = QListWidget()
        self.recent.setAccessibleName("Recent model folders")
        self.recent.setUniformItemSizes(True)
        self.recent.itemActivated.connect(self._open_recent)
        column.addWidget(self.recent)
        self._no_recent = QLabel(
            "Folders you open appear here; Enter or a double click opens one again."
        )
        self._no_recent.setProperty("role", "dim")
        self._no_recent.setWordWrap(True)
        column.addWidget(self._no_recent)
        column.addStretch(1)
        bridge.load_started.connect(self._on_started)
        bridge.load_progressed.connect(self._on_progress)
        bridge.loaded.connect(self._on_loaded)
        bridge.load_failed.connect(self._on_failed)
        bridge.knobs_changed.connect(self._on_knobs)
        self._show_recent()
        self._set_loading(False)

    def _make_buttons(self) -> QHBoxLayout:
        row = title_row("Model")
        self.reload_button = QPushButton("Reload")
        self.demo_button = QPushButton("Open the demo model")
        self.open_button = QPushButton("Open folder…")
        self.open_button.setToolTip(
            "Open a model folder (Ctrl+O); a folder can also be dropped here"
        )
        self.reload_button.clicked.connect(self.reload)
        self.demo_button.clicked.connect(self._bridge.load_demo)
        self.open_button.clicked.connect(self.choose)
        for button in (self.reload_button, self.demo_button, self.open_button):
            row.addWidget(button)
        return row

    def _make_progress(self) -> QWidget:
        self.loading = QFrame()
        self.loading.setObjectName("card")
        column = QVBoxLayout(self.loading)
        column.setContentsMargins(14, 10, 14, 12)
        row = QHBoxLayout()
        words = QVBoxLayout()
        words.setSpacing(2)
        self.loading_title, self.loading_detail = QLabel(), QLabel()
        self.loading_detail.setProperty("role", "dim")
        for label in (self.loading_title, self.loading_detail):
            label.setTextFormat(Qt.TextFormat.PlainText)
            words.addWidget(label)
        row.addLayout(words, 1)
        self.cancel_button = QPushButton("Cancel")
        self.cancel_button.clicked.connect(self._bridge.cancel)
        row.addWidget(self.cancel_button)
        column.addLayout(row)
        self.bar = QProgressBar()
        self.bar.setTextVisible(False)
        self.bar.setRange(0, _STEPS)
        self.bar.setAccessibleName("Progress of the load")
        column.addWidget(self.bar)
        return self.loading

    # Commands.

    @Slot()
    def choose(self) -> None:
        """Ask for a folder and open it."""
        dialog = QFileDialog(self, "Open a model folder", self._settings.last_folder)
        dialog.setFileMode(QFileDialog.FileMode.Directory)
        dialog.setOption(QFileDialog.Option.ShowDirsOnly, True)
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.fileSelected.connect(self.open)
        self._dialog = dialog
        dialog.open()

    @Slot(str)
    def open(self, path: str) -> None:
        """Open a model folder; the present model stays until the new one is ready."""
        self._settings.last_folder = str(Path(path).parent)
        self._bridge.load(path)
        self.attention_wanted.emit()

    @Slot()
    def reload(self) -> None:
        if self._bridge.model is not None:
            self._bridge.load(self._bridge.model.path)

    @Slot(QListWidgetItem)
    def _open_recent(self, item: QListWidgetItem) -> None:
        self.open(item.text())

    # From the engine.

    @Slot(str)
    def _on_started(self, path: str) -> None:
        self._drop_error()
        self.notice.hide()
        self.loading_title.setText(f"Opening {path}")
        self.loading_detail.setText("looking at the folder")
        self.bar.setValue(0)
        self._set_loading(True)

    @Slot(object)
    def _on_progress(self, progress: LoadProgress) -> None:
        snapshot = self._bridge.snapshot
        if snapshot.state != "loading":
            return
        said = now(snapshot, progress, self._bridge.load_rate_bps, None)
        self.loading_detail.setText(
            f"{said.sentence} · {said.detail}" if said.detail else said.sentence
        )
        self.bar.setValue(int((said.share or 0.0) * _STEPS))

    @Slot(object)
    def _on_loaded(self, card: ModelCard) -> None:
        self._set_loading(False)
        self.card.show_card(card)
        if not card.is_demo:
            self._settings.add_recent_model(card.path)
            self._show_recent()

    @Slot(object)
    def _on_knobs(self, _changes: object) -> None:
        """Switches may change who drafts, and so the card."""
        if self._bridge.model is not None:
            self.card.show_card(self._bridge.model)

    def showEvent(self, event) -> None:
        """An A/B may have loaded the model anew meanwhile."""
        super().showEvent(event)
        if self._bridge.model is not None:
            self.card.show_card(self._bridge.model)

    @Slot(str, object)
    def _on_failed(self, path: str, report: ErrorReport) -> None:
        self._set_loading(False)
        self._drop_error()
        if report.cancelled:
            self.notice.setText(
                f"◌  Opening {path} was cancelled. {report.kept} {report.next_step}"
            )
            self.notice.show()
            return
        self.error_card = ErrorCard(report, self._bridge.snapshot)
        self.error_card.setToolTip(path)
        self.error_card.dismissed.connect(self._drop_error)
        self._column.insertWidget(1, self.error_card)
        self.attention_wanted.emit()

    @Slot()
    def _drop_error(self) -> None:
        if self.error_card is not None:
            self.error_card.hide()
            self.error_card.deleteLater()
            self.error_card = None

    def _set_loading(self, loading: bool) -> None:
        self.loading.setVisible(loading)
        self.reload_button.setEnabled(not loading and self._bridge.model is not None)
        self.open_button.setEnabled(not loading)
        self.demo_button.setEnabled(not loading)

    def _show_recent(self) -> None:
        folders = self._settings.recent_models
        self.recent.clear()
        self.recent.addItems(folders)
        self.recent.setFixedHeight(len(folders) * max(self.recent.sizeHintForRow(0), 24) + 4)
        self.recent.setVisible(bool(folders))
        self._no_recent.setVisible(not folders)
