# SPDX-License-Identifier: MIT OR Apache-2.0
"""The text of one message: a read-only browser that grows with its document and loads nothing."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QRectF, QSize, Qt, QUrl, Signal, Slot
from PySide6.QtGui import (
    QFont,
    QGuiApplication,
    QPainter,
    QPaintEvent,
    QTextCursor,
    QWheelEvent,
)
from PySide6.QtWidgets import QFrame, QSizePolicy, QTextBrowser, QWidget

from app.chat.markdown_render import CODE_PADDING_PX, MarkdownWriter
from app.chat.markdown_stream import Block, CodeEnd, CodeStart, CodeText, MarkdownStream, Op
from app.theme import Theme

_COPY_SCHEME = "copy-code"
# A tail up to this length is shown as markdown while it is written; a longer one as plain text.
_RICH_TAIL_LIMIT = 1500


class MessageBody(QTextBrowser):
    """Streamed markdown with settled blocks. Signals: link_clicked(address), code_copied(code).

    `name` is whose text it is, for a screen reader, which takes the text itself from the document.
    """

    link_clicked = Signal(str)
    code_copied = Signal(str)
    height_changed = Signal()

    def __init__(
        self,
        theme: Theme,
        name: str = "",
        parent: QWidget | None = None,
        *,
        scale: float = 1.04,
        ink: str = "text",
    ) -> None:
        super().__init__(parent)
        self.setAccessibleName(name)
        self._theme = theme
        self._scale, self._ink = scale, ink
        self._source: list[str] = []
        self._finished = False
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setOpenLinks(False)
        self.setUndoRedoEnabled(False)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setWordWrapMode(
            self.document().defaultTextOption().wrapMode().WrapAtWordBoundaryOrAnywhere
        )
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self.document().setDocumentMargin(0)
        self.document().setIndentWidth(24)
        self.document().documentLayout().documentSizeChanged.connect(self._on_size)
        self.anchorClicked.connect(self._on_anchor)
        self._reset()

    # Content.

    @property
    def source(self) -> str:
        return "".join(self._source)

    @property
    def codes(self) -> list[str]:
        """The code blocks so far, as they were written."""
        return ["".join(parts) for parts in self._codes]

    def feed(self, delta: str) -> None:
        """Add streamed markdown."""
        self._source.append(delta)
        before = self._stream.tail
        ops = self._stream.feed(delta)
        cursor = self._cursor()
        cursor.beginEditBlock()
        if not ops and self._tail_is_plain and self._stays_plain():
            cursor.insertText(self._stream.tail[len(before) :], self._tail_format())
        else:
            self._drop_tail(cursor)
            for op in ops:
                self._write(cursor, op)
            self._write_tail(cursor)
        cursor.endEditBlock()

    def finish(self) -> None:
        """Settle what is left."""
        if self._finished:
            return
        cursor = self._cursor()
        cursor.beginEditBlock()
        self._drop_tail(cursor)
        for op in self._stream.finish():
            self._write(cursor, op)
        cursor.endEditBlock()
        self._finished = True

    def set_source(self, text: str, *, finished: bool = True) -> None:
        """Show `text` in place of what was there."""
        self._source = []
        self._reset()
        self.feed(text)
        if finished:
            self.finish()

    def set_plain(self, text: str) -> None:
        """Show text as it is, without markdown."""
        self._reset()
        self._source = [text]
        cursor = self._cursor()
        cursor.setBlockFormat(self._writer.paragraph(bottom=0))
        lines = text.split("\n")
        for index, line in enumerate(lines):
            if index:
                cursor.insertBlock(self._writer.paragraph(bottom=0), self._writer.plain())
            cursor.insertText(line, self._writer.plain())
        self._finished, self._plain_only = True, True

    def restyle(self) -> None:
        """Render again in the palette in force."""
        text, finished = self.source, self._finished
        if self._plain_only:
            self.set_plain(text)
        else:
            self.set_source(text, finished=finished)

    def _reset(self) -> None:
        base = QFont(self._theme.ui_font(self._scale))
        self._writer = MarkdownWriter(self._theme, base, self._ink)
        self._stream = MarkdownStream()
        self._codes: list[list[str]] = []
        self._code_runs: list[list[int]] = []  # first and last text block, -1 while it is open
        self._tail_from = -1
        self._tail_is_plain = False
        self._fresh = True
        self._finished = self._plain_only = False
        self.document().clear()
        self.document().setDefaultFont(base)

    def _cursor(self) -> QTextCursor:
        cursor = QTextCursor(self.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        return cursor

    def _stays_plain(self) -> bool:
        return self._stream.in_code or not self._is_rich(self._stream.tail)

    @staticmethod
    def _is_rich(tail: str) -> bool:
        return len(tail) <= _RICH_TAIL_LIMIT and not tail.lstrip().startswith(("|", "```", "~~~"))

    def _tail_format(self):
        return self._writer.code_char() if self._stream.in_code else self._writer.plain()

    def _drop_tail(self, cursor: QTextCursor) -> None:
        if self._tail_from < 0:
            return
        cursor.setPosition(self._tail_from)
        cursor.movePosition(QTextCursor.MoveOperation.End, QTextCursor.MoveMode.KeepAnchor)
        cursor.removeSelectedText()
        # Qt gives an emptied first block the format of the last one that was removed.
        cursor.setBlockFormat(self._tail_form)
        self._fresh, self._tail_from = self._tail_was_fresh, -1

    def _write_tail(self, cursor: QTextCursor) -> None:
        tail = self._stream.tail
        self._tail_is_plain = False
        if not tail.strip() and not self._stream.in_code:
            return
        self._tail_from, self._tail_was_fresh = cursor.position(), self._fresh
        self._tail_form = cursor.blockFormat()
        if self._stream.in_code:
            self._open(cursor, self._writer.code_block())
            cursor.insertText(tail, self._writer.code_char())
            self._tail_is_plain = True
        elif self._is_rich(tail):
            self._fresh = self._writer.write(cursor, tail, fresh=self._fresh)
        else:
            self._open(cursor, self._writer.paragraph())
            cursor.insertText(tail, self._writer.plain())
            self._tail_is_plain = True

    def _write(self, cursor: QTextCursor, op: Op) -> None:
        writer = self._writer
        match op:
            case Block(text):
                self._fresh = writer.write(cursor, text, fresh=self._fresh)
            case CodeStart(language):
                number = len(self._codes)
                self._codes.append([])
                self._open(cursor, writer.code_block(first=True))
                self._code_runs.append([cursor.blockNumber(), -1])
                cursor.insertText(f"{language or 'code'}   ", writer.code_label())
                cursor.insertText("copy", writer.code_link(f"{_COPY_SCHEME}:{number}"))
            case CodeText(text, ends_line):
                self._open(cursor, writer.code_block())
                cursor.insertText(text, writer.code_char())
                self._codes[-1].append(text + "\n" if ends_line else text)
            case CodeEnd():
                cursor.setBlockFormat(writer.code_block(last=True))
                self._code_runs[-1][1] = cursor.blockNumber()

    def _open(self, cursor: QTextCursor, form) -> None:
        if self._fresh:
            cursor.setBlockFormat(form)
        else:
            cursor.insertBlock(form, self._writer.plain())
        self._fresh = False

    # Behaviour.

    def loadResource(self, kind: int, name: QUrl | str) -> None:
        """Nothing is ever loaded, neither from the network nor from a file."""
        return None

    def setSource(self, *args: object) -> None:
        """Links never navigate."""

    def sizeHint(self) -> QSize:
        return QSize(200, self._content_height())

    def minimumSizeHint(self) -> QSize:
        return QSize(80, self._content_height())

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()  # the conversation scrolls, not a message

    def paintEvent(self, event: QPaintEvent) -> None:
        """The ground of the code blocks, then the text."""
        if self._code_runs:
            painter = QPainter(self.viewport())
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(self._theme.qcolor("code"))
            for first, last in self._code_runs:
                ground = self._code_ground(first, last)
                if ground.intersects(event.rect()):
                    painter.drawRoundedRect(ground, 4, 4)
            painter.end()
        super().paintEvent(event)

    def _code_ground(self, first: int, last: int) -> QRectF:
        layout, document = self.document().documentLayout(), self.document()
        end = document.findBlockByNumber(last) if last >= 0 else document.lastBlock()
        top = layout.blockBoundingRect(document.findBlockByNumber(first)).top()
        bottom = layout.blockBoundingRect(end).bottom()
        pad = CODE_PADDING_PX
        return QRectF(0, top - pad + 2, self.viewport().width(), bottom - top + 2 * pad - 2)

    def resizeEvent(self, event) -> None:
        super().resizeEvent(event)
        self._on_size()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.FontChange:
            self._on_size()

    def _content_height(self) -> int:
        return int(self.document().size().height() + 0.999)

    @Slot()
    def _on_size(self) -> None:
        height = max(self._content_height(), 1)
        if height != self.height() or self.minimumHeight() != height:
            self.setFixedHeight(height)
            self.height_changed.emit()

    @Slot(QUrl)
    def _on_anchor(self, url: QUrl) -> None:
        address = url.toString()
        scheme, _, number = address.partition(":")
        if scheme == _COPY_SCHEME and number.isdigit() and int(number) < len(self._codes):
            code = self.codes[int(number)]
            QGuiApplication.clipboard().setText(code)
            self.code_copied.emit(code)
            return
        self.link_clicked.emit(address)
