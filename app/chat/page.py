# SPDX-License-Identifier: MIT OR Apache-2.0
"""The chat: transcript, conversation view and composer, tied to the engine through the bridge."""

from __future__ import annotations

import numpy as np
from PySide6.QtCore import Qt, QUrl, Signal, Slot
from PySide6.QtGui import QDesktopServices, QGuiApplication
from PySide6.QtWidgets import (
    QHBoxLayout,
    QLabel,
    QMessageBox,
    QSizePolicy,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from app.bridge import Bridge, rounds_of
from app.chat.composer import Composer
from app.chat.conversation_dialogs import ConversationDialogs, model_name
from app.chat.message import AnswerMessage, UserMessage
from app.chat.transcript import Transcript, Turn
from app.chat.view import COLUMN_PX, ConversationView, EmptyState
from app.errors import ErrorCard
from app.settings import Settings
from app.theme import Theme
from engine.api import ErrorReport, GenerateRequest, Generation, ModelCard, Snapshot

OPENABLE = ("http", "https", "mailto")


class ChatPage(QWidget):
    """One conversation with the loaded model. Signal: changed, after turns came, ended or went."""

    changed = Signal()

    def __init__(
        self, bridge: Bridge, theme: Theme, settings: Settings, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setObjectName("page")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self._bridge, self._settings = bridge, settings
        self.transcript = Transcript()
        self.files = ConversationDialogs(self, bridge, settings, self)
        self._answer: AnswerMessage | None = None
        self._editing: UserMessage | None = None
        self._draft = ""  # what stood in the field when an edit began; it comes back after it
        self._link_box: QMessageBox | None = None
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        column.addWidget(self._make_header())
        self.view = ConversationView(theme)
        self.empty = EmptyState()
        self.empty.asked.connect(self.ask)
        self.notice: ErrorCard | None = None
        self._notice_row = QHBoxLayout()
        column.addLayout(self._notice_row)
        self._stack = QStackedWidget()
        self._stack.addWidget(self.empty)
        self._stack.addWidget(self.view)
        column.addWidget(self._stack, 1)
        self.composer = Composer(theme, settings.sampling)
        self.composer.send_wanted.connect(self.send)
        self.composer.stop_wanted.connect(bridge.cancel)
        self.composer.edit_cancelled.connect(self.cancel_edit)
        self.composer.paged.connect(self.view.page)
        self.composer.sampling.changed.connect(self._remember_sampling)
        column.addWidget(self.composer)
        bridge.text.connect(self._on_text)
        bridge.rounds.connect(self._on_rounds)
        bridge.ticked.connect(self._on_tick)
        bridge.finished.connect(self._on_finished)
        bridge.failed.connect(self._on_failed)
        bridge.loaded.connect(self._on_loaded)
        bridge.load_started.connect(self._refresh)
        bridge.load_failed.connect(self._refresh)
        bridge.busy_changed.connect(self._refresh)
        theme.changed.connect(self._restyle)
        self._refresh()

    def _make_header(self) -> QWidget:
        header = QWidget()
        header.setObjectName("header")
        header.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        header.setFixedHeight(38)
        row = QHBoxLayout(header)
        row.setContentsMargins(18, 0, 18, 0)
        row.setSpacing(10)
        self.model_name = QLabel()
        self.model_name.setTextFormat(Qt.TextFormat.PlainText)
        self.model_name.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.demo_badge = QLabel("demo model")
        self.demo_badge.setProperty("role", "badge")
        self.demo_badge.setToolTip(
            "A small model trained for this console; it knows its own subject and little else."
        )
        row.addWidget(self.demo_badge, 0, Qt.AlignmentFlag.AlignVCenter)
        row.addWidget(self.model_name, 1)
        return header

    def show_notice(self, report: ErrorReport) -> None:
        """Show something that belongs to no answer above the conversation."""
        self._drop_notice()
        self.notice = ErrorCard(report)
        self.notice.setMaximumWidth(COLUMN_PX)
        self.notice.dismissed.connect(self._drop_notice)
        self._notice_row.setContentsMargins(18, 12, 18, 0)
        self._notice_row.addWidget(self.notice)

    def take_back(self, report: ErrorReport | None) -> None:
        """Drop the notice where it still shows this report."""
        if self.notice is not None and self.notice.report is report:
            self._drop_notice()

    @Slot()
    def _drop_notice(self) -> None:
        if self.notice is not None:
            self.notice.hide()
            self.notice.deleteLater()
            self.notice = None
            self._notice_row.setContentsMargins(0, 0, 0, 0)

    # Commands.

    @Slot()
    def send(self) -> None:
        """Send what the composer holds."""
        if not self.composer.is_ready or self._bridge.is_busy:
            return
        text = self.composer.text()
        if self._editing is not None:
            edited = self._editing
            self.cancel_edit()
            self._cut(edited)
        else:
            self.composer.clear()
        self.ask(text)

    def _cut(self, message: UserMessage | AnswerMessage) -> None:
        """Drop a message and all after it, and an edit of one of them."""
        self.transcript.cut(self.transcript.turns.index(message.turn))
        self.view.cut(message)
        if self._editing is not None and self._editing not in self.view.messages:
            self._editing = None
            self.composer.editing.hide()

    @Slot(str)
    def ask(self, text: str) -> None:
        """Ask a question as if it had been typed."""
        if self._bridge.model is None or self._bridge.is_busy or not text.strip():
            return
        self.composer.say("")
        self._connect(self.view.add(self.transcript.ask(text)))
        self._write_answer()

    def _connect(self, message: UserMessage | AnswerMessage) -> None:
        if isinstance(message, UserMessage):
            message.edit_wanted.connect(self._on_edit)
            return
        message.retry_wanted.connect(self._on_retry)
        message.cut_wanted.connect(self._on_cut_wanted)
        message.link_clicked.connect(self.confirm_link)

    @Slot()
    def regenerate(self) -> None:
        """Write the last answer again."""
        if self._bridge.is_busy or self._bridge.model is None or not self.view.messages:
            return
        if self.transcript.turns[-1].role == "assistant":
            self._cut(self.view.messages[-1])
        if self.transcript.turns:
            self._write_answer()

    @Slot()
    def new_chat(self) -> None:
        """Start over; an answer that is being written is stopped."""
        if self._bridge.is_generating:
            self._bridge.cancel()
        self.replace(())

    def replace(self, turns: tuple[Turn, ...]) -> None:
        """Show the turns of a file in place of the conversation; the next question goes on with them."""
        self._answer = None
        self.cancel_edit()
        self.composer.say("")
        self.transcript.fill(turns)
        self.view.fill(self.transcript.turns)
        for message in self.view.messages:
            self._connect(message)
        self.view.follow()
        self._refresh()
        self.composer.field.setFocus()

    @Slot()
    def cancel_edit(self) -> None:
        """Give an edit up: the field gets back what stood there before."""
        if self._editing is None:
            return
        self._editing = None
        self.composer.editing.hide()
        self.composer.set_text(self._draft)

    @Slot()
    def copy_last_answer(self) -> None:
        answers = [turn for turn in self.transcript.turns if turn.role == "assistant" and turn.text]
        if answers:
            QGuiApplication.clipboard().setText(answers[-1].text)

    def _write_answer(self, *, truncate: bool = False) -> None:
        sampling = self.composer.sampling.value
        request = GenerateRequest(
            messages=self.transcript.messages(),
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            seed=sampling.seed,
            speculate=sampling.speculate,
            thinking=self.composer.thinking_choice(),
            truncate=truncate or sampling.truncate,
        )
        turn = self.transcript.begin_answer(
            self._bridge.generate(request),
            model=model_name(self._bridge.model),
            speculated=request.speculate,
        )
        self._answer = self.view.add(turn)
        self._answer.may_be_cut = not request.truncate
        self._connect(self._answer)
        self._answer.show_running(self._bridge.snapshot)
        self.view.follow()
        self._refresh()

    # From the messages.

    @Slot()
    def _on_edit(self) -> None:
        if self._bridge.is_busy:
            return
        if self._editing is None:
            self._draft = self.composer.text()
        self._editing = self.sender()
        self.composer.set_text(self._editing.turn.text)
        self.composer.editing.show()
        self.composer.field.setFocus()

    @Slot()
    def _on_retry(self) -> None:
        self._write_again(self.sender())

    @Slot()
    def _on_cut_wanted(self) -> None:
        self._write_again(self.sender(), truncate=True)

    def _write_again(self, message: AnswerMessage, *, truncate: bool = False) -> None:
        if self._bridge.is_busy or self._bridge.model is None:
            return
        self._cut(message)
        self._write_answer(truncate=truncate)

    @Slot(str)
    def confirm_link(self, address: str) -> None:
        """Show where a link leads; open it only when the operator says so."""
        url = QUrl(address)
        box = QMessageBox(self)
        box.setTextFormat(Qt.TextFormat.PlainText)
        box.setWindowTitle("Link in an answer")
        box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        if url.scheme().lower() in OPENABLE:
            box.setText("Open this address outside Rondo?")
            box.setInformativeText(address[:2000])
            button = box.addButton("Open", QMessageBox.ButtonRole.AcceptRole)
            button.setProperty("address", address)
            button.clicked.connect(self._open_link)
            box.setDefaultButton(box.addButton(QMessageBox.StandardButton.Cancel))
        else:
            box.setText("Links of this kind are not opened.")
            box.setInformativeText(address[:2000])
            box.addButton(QMessageBox.StandardButton.Close)
        self._link_box = box
        box.open()

    @Slot()
    def _open_link(self) -> None:
        QDesktopServices.openUrl(QUrl(self.sender().property("address")))

    # From the engine.

    @Slot(int, str)
    def _on_text(self, request_id: int, delta: str) -> None:
        thinking, answer = self.transcript.feed(request_id, delta)
        if self._answer is not None and (thinking or answer):
            self._answer.feed(thinking, answer)

    @Slot(object, int)
    def _on_rounds(self, rows: np.ndarray, _lost: int) -> None:
        if self._answer is not None:
            mine = rounds_of(rows, self._answer.turn.request_id)
            if len(mine):
                self._answer.add_rounds(mine)

    @Slot(object)
    def _on_tick(self, snapshot: Snapshot) -> None:
        if self._answer is not None:
            self._answer.show_running(snapshot)

    @Slot(int, object)
    def _on_finished(self, request_id: int, generation: Generation) -> None:
        self._close_answer(self.transcript.finish(request_id, generation) is not None)

    @Slot(int, object, str)
    def _on_failed(self, request_id: int, report: ErrorReport, _text: str) -> None:
        self._close_answer(self.transcript.fail(request_id, report) is not None)

    def _close_answer(self, mine: bool) -> None:
        if mine and self._answer is not None:
            self._answer.settle(self._bridge.snapshot)
            self._answer = None
        self._refresh()

    @Slot(object)
    def _on_loaded(self, card: ModelCard) -> None:
        self.composer.set_thinks(card.thinks, card.thinks_by_default)
        self._refresh()

    @Slot(object)
    def _remember_sampling(self, sampling: object) -> None:
        self._settings.sampling = sampling

    @Slot()
    def _refresh(self, *_: object) -> None:
        """Buttons, header and empty state after something changed."""
        bridge, card = self._bridge, self._bridge.model
        why = "No model is loaded yet." if card is None else ""
        if bridge.is_busy:
            why = "The engine is at work; Esc stops it."
        self.composer.set_state(can_send=not why, can_stop=bridge.is_busy, why_not=why)
        for message in self.view.messages:
            message.set_free(not why)
        self.demo_badge.setVisible(bool(card and card.is_demo))
        self.model_name.setText(model_name(card) or "No model loaded")
        self._stack.setCurrentIndex(1 if self.transcript.turns else 0)
        self.changed.emit()
        if card is None and bridge.loading_path:
            self.empty.show_state(
                "Loading the model",
                "The chat opens when it is ready.",
                examples=False,
                enabled=False,
            )
        elif card is None:
            self.empty.show_state(
                "No model is loaded",
                "Open a model folder with Ctrl+O, or drop one on this window. The demo model is small, "
                "comes with Rondo and opens in a moment.",
                examples=False,
                enabled=False,
                openers=bridge.is_started,
            )
        elif card.is_demo:
            self.empty.show_state(
                "Ask about the engine",
                "The demo model knows decoding, speculation, memory bandwidth and this console. "
                "Each tick under its answer is one round; the figures on the right follow it live.",
                examples=True,
                enabled=not bridge.is_busy,
            )
        else:
            self.empty.show_state(
                "Ask anything",
                "Each tick under an answer is one round of draft, verify and commit; "
                "the figures on the right follow it live.",
                examples=False,
                enabled=False,
            )

    @Slot()
    def _restyle(self) -> None:
        self.view.restyle()
        self.composer.restyle()
