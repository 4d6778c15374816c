# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes markdown blocks into a text document in the console's own formats.

Qt's parser (md4c, raw HTML off) reads a block into a scratch document; its blocks are copied with our spacing.
Images are never loaded: their alternative text and address are written instead.
"""

from __future__ import annotations

from collections.abc import Iterator

from PySide6.QtCore import Qt
from PySide6.QtGui import (
    QColor,
    QFont,
    QTextBlock,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextDocument,
    QTextFormat,
    QTextFrame,
    QTextFrameFormat,
    QTextLength,
    QTextListFormat,
    QTextTable,
    QTextTableFormat,
)

from app.theme import Theme

CODE_PADDING_PX = 9.0
_FEATURES = (
    QTextDocument.MarkdownFeature.MarkdownDialectGitHub
    | QTextDocument.MarkdownFeature.MarkdownNoHTML
)
_HEADING_SCALE = (1.0, 1.35, 1.2, 1.1, 1.0, 1.0, 1.0)
_LINE_HEIGHT_PCT = 132.0
_CODE_LINE_HEIGHT_PCT = 118.0
_PROPORTIONAL = QTextBlockFormat.LineHeightTypes.ProportionalHeight.value


class MarkdownWriter:
    """Formats of one theme and font, and the copying itself."""

    def __init__(self, theme: Theme, base: QFont, ink: str = "text") -> None:
        self._theme = theme
        self._base = base
        self._ink = ink
        self._mono = theme.mono_font(base.pointSizeF() / theme.ui_font().pointSizeF() * 0.96)

    # Formats.

    def plain(self) -> QTextCharFormat:
        form = QTextCharFormat()
        form.setForeground(self._theme.qcolor(self._ink))
        form.setFont(self._base)
        return form

    def code_char(self) -> QTextCharFormat:
        form = QTextCharFormat()
        form.setForeground(self._theme.qcolor("text"))
        form.setFont(self._mono)
        return form

    def code_label(self) -> QTextCharFormat:
        form = self.code_char()
        form.setForeground(self._theme.qcolor("dim"))
        form.setFontPointSize(self._mono.pointSizeF() * 0.9)
        return form

    def code_link(self, address: str) -> QTextCharFormat:
        form = self.code_label()
        form.setAnchor(True)
        form.setAnchorHref(address)
        form.setForeground(self._theme.qcolor("accent"))
        return form

    def paragraph(self, *, top: float = 0.0, bottom: float = 9.0) -> QTextBlockFormat:
        form = QTextBlockFormat()
        form.setTopMargin(top)
        form.setBottomMargin(bottom)
        form.setLineHeight(_LINE_HEIGHT_PCT, _PROPORTIONAL)
        return form

    def code_block(self, *, first: bool = False, last: bool = False) -> QTextBlockFormat:
        """One line of a code block; the ground is painted by the body, which knows the whole block."""
        form = QTextBlockFormat()
        form.setLayoutDirection(Qt.LayoutDirection.LeftToRight)
        form.setLeftMargin(CODE_PADDING_PX)
        form.setRightMargin(CODE_PADDING_PX)
        form.setLineHeight(_CODE_LINE_HEIGHT_PCT, _PROPORTIONAL)
        form.setTopMargin(CODE_PADDING_PX if first else 0.0)
        form.setBottomMargin(CODE_PADDING_PX + 9.0 if last else 0.0)
        form.setProperty(QTextFormat.Property.BlockCodeFence, "`")
        return form

    # Copying.

    def write(self, cursor: QTextCursor, markdown: str, *, fresh: bool) -> bool:
        """Write a block at the cursor; `fresh` says its text block is empty and unused.

        Returns whether the cursor's block is again empty and unused (after a table).
        """
        scratch = QTextDocument()
        scratch.setUndoRedoEnabled(False)
        scratch.setDefaultFont(self._base)
        scratch.setMarkdown(markdown, _FEATURES)
        for part in _parts(scratch.rootFrame()):
            if isinstance(part, QTextTable):
                self._table(cursor, part, fresh=fresh)
                fresh = True
            elif part.text() or not part.next().isValid() or _is_rule(part):
                if not part.text() and not _is_rule(part):
                    continue
                self._block(cursor, part, fresh=fresh)
                fresh = False
        return fresh

    def _block(self, cursor: QTextCursor, source: QTextBlock, *, fresh: bool) -> None:
        level = source.blockFormat().headingLevel()
        quote = source.blockFormat().intProperty(QTextFormat.Property.BlockQuoteLevel)
        code = source.blockFormat().hasProperty(
            QTextFormat.Property.BlockCodeFence
        ) or source.blockFormat().hasProperty(QTextFormat.Property.BlockCodeLanguage)
        items = source.textList()
        form = self.paragraph(
            top=8.0 if level else 0.0, bottom=5.0 if level else 4.0 if items else 9.0
        )
        if quote:
            form.setLeftMargin(16.0 * quote)
        if level:
            form.setHeadingLevel(level)
        if _is_rule(source):
            form.setProperty(
                QTextFormat.Property.BlockTrailingHorizontalRulerWidth,
                QTextLength(QTextLength.Type.PercentageLength, 100),
            )
        _open_block(cursor, form, self.plain(), fresh=fresh)
        if items:
            shape = QTextListFormat()
            shape.setStyle(items.format().style())
            shape.setIndent(items.format().indent())
            shape.setStart(items.format().start() + items.itemNumber(source))
            cursor.createList(shape)
            form.setIndent(0)
        marker = source.blockFormat().marker()
        if marker != QTextBlockFormat.MarkerType.NoMarker:
            done = marker == QTextBlockFormat.MarkerType.Checked
            cursor.insertText("☑ " if done else "☐ ", self.plain())
        self._fragments(cursor, source, heading=level, dim=bool(quote), code=code)

    def _fragments(
        self, cursor: QTextCursor, source: QTextBlock, *, heading: int, dim: bool, code: bool
    ) -> None:
        walk = source.begin()
        while not walk.atEnd():
            fragment = walk.fragment()
            found = fragment.charFormat()
            form = self.plain()
            if heading:
                form.setFontPointSize(self._base.pointSizeF() * _HEADING_SCALE[heading])
                form.setFontWeight(QFont.Weight.DemiBold)
            if dim:
                form.setForeground(self._theme.qcolor("dim"))
            if found.fontFixedPitch() or code:
                form.setFont(self._mono)
                form.setBackground(self._theme.qcolor("code"))
            if found.fontWeight() > QFont.Weight.Medium:
                form.setFontWeight(QFont.Weight.DemiBold)
            form.setFontItalic(found.fontItalic())
            form.setFontStrikeOut(found.fontStrikeOut())
            text = fragment.text()
            if found.isImageFormat():
                image = found.toImageFormat()
                alt = image.stringProperty(QTextFormat.Property.ImageAltText) or "image"
                text = f"[{alt}: {image.name()}, not loaded]" * len(text)
                form.setForeground(self._theme.qcolor("dim"))
            elif found.isAnchor() and found.anchorHref():
                address = found.anchorHref()
                # An address that stands in the text plainly ends before the sentence does.
                end = len(text.rstrip(".,:;!?")) if address.endswith(text) else len(text)
                linked = QTextCharFormat(form)
                linked.setAnchor(True)
                linked.setAnchorHref(address[: len(address) - len(text) + end])
                linked.setForeground(self._theme.qcolor("accent"))
                linked.setFontUnderline(True)
                cursor.insertText(text[:end], linked)
                text = text[end:]
            cursor.insertText(text, form)
            walk += 1

    def _table(self, cursor: QTextCursor, source: QTextTable, *, fresh: bool) -> None:
        thin = QTextBlockFormat()
        thin.setLineHeight(1.0, QTextBlockFormat.LineHeightTypes.FixedHeight.value)
        _open_block(cursor, thin, self.plain(), fresh=fresh)
        shape = QTextTableFormat()
        shape.setBorder(1)
        shape.setBorderStyle(QTextFrameFormat.BorderStyle.BorderStyle_Solid)
        shape.setBorderBrush(QColor(self._theme.color("line")))
        shape.setBorderCollapse(True)
        shape.setCellPadding(5)
        shape.setCellSpacing(0)
        shape.setTopMargin(1)
        shape.setBottomMargin(9)
        shape.setHeaderRowCount(1)
        target = cursor.insertTable(source.rows(), source.columns(), shape)
        for row in range(source.rows()):
            for column in range(source.columns()):
                found = source.cellAt(row, column).firstCursorPosition().block()
                inner = target.cellAt(row, column).firstCursorPosition()
                form = QTextBlockFormat()
                form.setAlignment(found.blockFormat().alignment())
                inner.setBlockFormat(form)
                self._fragments(inner, found, heading=0, dim=False, code=False)
        cursor.movePosition(QTextCursor.MoveOperation.End)


def _open_block(
    cursor: QTextCursor, form: QTextBlockFormat, chars: QTextCharFormat, *, fresh: bool
) -> None:
    if fresh:
        cursor.setBlockFormat(form)
        cursor.setBlockCharFormat(chars)
    else:
        cursor.insertBlock(form, chars)


def _parts(frame: QTextFrame) -> Iterator[QTextBlock | QTextTable]:
    walk = frame.begin()
    while not walk.atEnd():
        inner = walk.currentFrame()
        if inner is None:
            yield walk.currentBlock()
        elif isinstance(inner, QTextTable):
            yield inner
        else:
            yield from _parts(inner)
        walk += 1


def _is_rule(block: QTextBlock) -> bool:
    return block.blockFormat().hasProperty(QTextFormat.Property.BlockTrailingHorizontalRulerWidth)
