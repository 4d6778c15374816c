# SPDX-License-Identifier: MIT OR Apache-2.0
"""Saving the conversation to a file and opening one: the dialogs, and what is said of how it went."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Protocol

from PySide6.QtCore import QObject, QStandardPaths, Qt, Slot
from PySide6.QtWidgets import QFileDialog, QMessageBox, QWidget

from app.bridge import Bridge
from app.chat.composer import Composer
from app.chat.conversation_file import (
    MARKDOWN_SUFFIXES,
    ConversationFileError,
    proposed_name,
    read_conversation,
    write_conversation,
)
from app.chat.transcript import Conversation, Transcript, Turn, clean
from app.settings import Settings
from engine.api import ErrorReport, ModelCard

_JSON = "Complete, to open again (*.json)"
_MARKDOWN = "Markdown, for reading (*.md)"
# Also of a name that holds a NUL, and of a figure that JSON has no way to write.
_ERRORS = (ConversationFileError, OSError, ValueError)
_KEPT = "The conversation in the window is as it was."


class Chat(Protocol):
    """What the dialogs need of the chat page."""

    transcript: Transcript
    composer: Composer

    def replace(self, turns: tuple[Turn, ...]) -> None: ...
    def show_notice(self, report: ErrorReport) -> None: ...
    def take_back(self, report: ErrorReport | None) -> None: ...
    def window(self) -> QWidget: ...


class ConversationDialogs(QObject):
    """Asks for files and reads or writes them; errors go above the conversation, the rest into a quiet line."""

    def __init__(self, chat: Chat, bridge: Bridge, settings: Settings, parent: QObject) -> None:
        super().__init__(parent)
        self._chat, self._bridge, self._settings = chat, bridge, settings
        self.dialog: QFileDialog | QMessageBox | None = None
        self._told: ErrorReport | None = None
        self._waiting: tuple[Path, Conversation] | None = None  # read; the operator is asked

    def why_not_save(self) -> str:
        """Why there is nothing to save now, empty where there is."""
        if not self._chat.transcript.turns:
            return "The conversation is empty."
        return self.why_not_open()

    def why_not_open(self) -> str:
        """Why no file can take the place of the conversation now, empty where one can."""
        return "An answer is being written." if self._chat.transcript.open_turn else ""

    # Saving.

    def choose_target(self) -> None:
        """Ask where the conversation goes, and as what."""
        if self.why_not_save():
            return
        name = proposed_name(self._chat.transcript.turns, datetime.now())
        dialog = QFileDialog(self._chat.window(), "Save the conversation", self._folder())
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setNameFilters([_JSON, _MARKDOWN])
        dialog.setDefaultSuffix("json")
        dialog.selectFile(f"{name}.json")
        dialog.filterSelected.connect(self._take_filter)
        dialog.fileSelected.connect(self._take_target)
        self._open(dialog)

    @Slot(str)
    def _take_filter(self, chosen: str) -> None:
        """The name's suffix follows the chosen kind."""
        suffix = "md" if chosen == _MARKDOWN else "json"
        self.dialog.setDefaultSuffix(suffix)
        for path in self.dialog.selectedFiles()[:1]:
            if Path(path).suffix.lower() in (".json", *MARKDOWN_SUFFIXES):
                self.dialog.selectFile(Path(path).with_suffix(f".{suffix}").name)

    @Slot(str)
    def _take_target(self, path: str) -> None:
        suffix = Path(path).suffix.lower()
        by_filter = self.dialog.selectedNameFilter() == _MARKDOWN and suffix != ".json"
        self.save(path, markdown=suffix in MARKDOWN_SUFFIXES or by_filter)

    def save(self, path: str, *, markdown: bool) -> None:
        """Write the conversation; a Markdown file does not hold all of it, so it still counts as unsaved."""
        if self.why_not_save():
            return
        target, transcript = Path(path), self._chat.transcript
        conversation = Conversation(
            tuple(transcript.turns), self._model(), datetime.now().astimezone()
        )
        try:
            write_conversation(target, conversation, markdown=markdown)
        except _ERRORS as error:
            kept = f"{_KEPT} What stood in the file before still does."
            usual = "Choose another folder, or make room on the disk."
            self._refuse("The conversation was not saved", path, error, kept, usual)
            return
        transcript.is_saved = transcript.is_saved or not markdown
        self._settings.conversation_folder = str(target.parent)
        self._say(f"✓ Saved as {_line(f'{target.name} in {target.parent}')}")

    def _model(self) -> str:
        """The name of the model that wrote last, or of the loaded one."""
        wrote = [turn.model for turn in self._chat.transcript.turns if turn.model]
        return wrote[-1] if wrote else model_name(self._bridge.model)

    # Opening.

    def choose(self) -> None:
        """Ask for a file to open."""
        if self.why_not_open():
            return
        dialog = QFileDialog(self._chat.window(), "Open a conversation", self._folder())
        dialog.setFileMode(QFileDialog.FileMode.ExistingFile)
        dialog.setNameFilters(["Conversations (*.json)", "All files (*)"])
        dialog.fileSelected.connect(self.open)
        self._open(dialog)

    @Slot(str)
    def open(self, path: str) -> None:
        """Read a file; a conversation that no file holds gives way to it only when the operator says so."""
        if self.why_not_open():
            return
        try:
            read = read_conversation(Path(path))
        except _ERRORS as error:
            usual = "See that the file is there and may be read."
            self._refuse("This file is not opened", path, error, _KEPT, usual)
            return
        self._settings.conversation_folder = str(Path(path).parent)
        self._waiting = (Path(path), read)
        if not self._chat.transcript.is_unsaved:
            self._replace()
            return
        box = QMessageBox(self._chat.window())
        box.setTextFormat(Qt.TextFormat.PlainText)
        box.setWindowTitle("Open a conversation")
        box.setText("Replace the conversation in the window?")
        box.setInformativeText("No .json file holds it as it stands; it would be lost.")
        button = box.addButton("Replace it", QMessageBox.ButtonRole.AcceptRole)
        button.clicked.connect(self._replace)
        box.setDefaultButton(box.addButton(QMessageBox.StandardButton.Cancel))
        self._open(box)

    @Slot()
    def _replace(self) -> None:
        if self._waiting is None or self.why_not_open():
            return
        (path, conversation), self._waiting = self._waiting, None
        self._chat.replace(conversation.turns)
        model = f" with {conversation.model}" if conversation.model else ""
        self._say(f"✓ Opened {_line(path.name)}, saved {conversation.saved:%Y-%m-%d %H:%M}{model}")

    # Both.

    def _folder(self) -> str:
        """Where a conversation was saved or opened last, or the documents."""
        last = self._settings.conversation_folder
        if os.path.isdir(last):
            return last
        return QStandardPaths.writableLocation(QStandardPaths.StandardLocation.DocumentsLocation)

    def _open(self, dialog: QFileDialog | QMessageBox) -> None:
        self.dialog = dialog
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.open()

    def _refuse(self, title: str, path: str, error: Exception, kept: str, usual: str) -> None:
        """Show why a file was not read or written; `usual` is the next step where the system said no."""
        if isinstance(error, ConversationFileError):
            cause, next_step = error.cause, error.next_step
        else:
            cause, next_step = f"{getattr(error, 'strerror', None) or error}.", usual
        self._told = ErrorReport(title, clean(f"{path}: {cause}"), kept, next_step)
        self._chat.composer.say("")
        self._chat.show_notice(self._told)

    def _say(self, words: str) -> None:
        """Say quietly that it went well; the error told before it is over."""
        self._chat.take_back(self._told)
        self._chat.composer.say(words)


def model_name(card: ModelCard | None) -> str:
    """A model and its format as one line: the name is that of a folder, which may hold a line break."""
    return " ".join(f"{card.name} · {card.weight_format}".split()) if card else ""


def _line(text: str) -> str:
    """Words of one line: a file name may hold a line break."""
    return " ".join(clean(text).split())
