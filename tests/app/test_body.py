# SPDX-License-Identifier: MIT OR Apache-2.0
"""The text of a message: streaming gives the document a single parse gives, and nothing in it is alive."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import QGuiApplication, QTextDocument

from app.chat.body import MessageBody
from engine.fake_script import ANSWER

HOSTILE = (
    "<script>alert(1)</script> <b>bold</b> ![pic](http://example.invalid/?q=secret) "
    "![local](file:///etc/passwd) [file](file:///etc/passwd) [web](https://example.invalid/)\n\n"
    "<img src=\"http://example.invalid/x.png\">\n\n<iframe src='x'></iframe>\n"
)
PIECES = st.sampled_from(
    ["**bold** ", "`code` ", "word ", "\n\n", "\n", "- item\n", "1. one\n", "```py\nx = 1\n```\n", "# head\n",
     "| a | b |\n|--|--|\n| 1 | 2 |\n\n", "> quote\n\n", "---\n\n", "```\n", "مرحبا ", "[x] ", "*", "🌊"]
)  # fmt: skip


@pytest.fixture
def body(qtbot, theme) -> MessageBody:
    body = MessageBody(theme)
    qtbot.addWidget(body)
    body.resize(600, 50)
    return body


def _streamed(theme, chunks: list[str]) -> MessageBody:
    body = MessageBody(theme)
    body.resize(600, 50)
    for chunk in chunks:
        body.feed(chunk)
    body.finish()
    return body


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(parts=st.lists(PIECES, max_size=14))
def test_streaming_gives_the_document_of_one_parse(qapp, theme, parts) -> None:
    text = "".join(parts)
    whole = _streamed(theme, [text])
    assert _streamed(theme, list(text)).toHtml() == whole.toHtml()
    assert _streamed(theme, parts).toHtml() == whole.toHtml()


def test_the_answer_is_rendered(body: MessageBody) -> None:
    body.set_source(ANSWER)
    shown = body.toPlainText()
    assert "**" not in shown
    assert "```" not in shown
    assert "every weight once" in shown
    assert body.codes == [
        "def round_ms(weight_bytes: int, read_gbps: float) -> float:\n"
        "    return weight_bytes / read_gbps / 1e6\n"
    ]


def test_html_images_and_files_are_inert(body: MessageBody, monkeypatch) -> None:
    asked: list[str] = []
    original = MessageBody.loadResource
    monkeypatch.setattr(
        MessageBody, "loadResource", lambda s, k, n: (asked.append(str(n)), original(s, k, n))[1]
    )
    body.feed(HOSTILE)
    body.finish()
    body.show()
    body.grab()
    assert "<script>alert(1)</script>" in body.toPlainText()
    assert "<b>bold</b>" in body.toPlainText()
    assert "[pic: http://example.invalid/?q=secret, not loaded]" in body.toPlainText()
    assert asked == [], "nothing was even asked for"
    assert (
        body.loadResource(QTextDocument.ResourceType.ImageResource, QUrl("file:///etc/passwd"))
        is None
    )
    assert "<img" not in body.toHtml()


def test_links_are_reported_and_go_nowhere(body: MessageBody, qtbot) -> None:
    body.set_source(HOSTILE)
    before = body.toHtml()
    with qtbot.waitSignal(body.link_clicked) as caught:
        body.anchorClicked.emit(QUrl("file:///etc/passwd"))
    assert caught.args == ["file:///etc/passwd"]
    assert body.toHtml() == before


def test_an_address_ends_before_the_sentence(body: MessageBody) -> None:
    body.set_source("See https://a.org/x.html. Or [this.](https://b.org/y.) or www.c.org, now.")
    body.finish()
    assert body.toPlainText().strip() == "See https://a.org/x.html. Or this. or www.c.org, now."
    found = {}
    walk = body.document().begin().begin()
    while not walk.atEnd():
        form = walk.fragment().charFormat()
        if form.isAnchor():
            found[walk.fragment().text()] = form.anchorHref()
        walk += 1
    assert found == {
        "https://a.org/x.html": "https://a.org/x.html",
        "this.": "https://b.org/y.",
        "www.c.org": "http://www.c.org",
    }


def test_code_is_copied_as_it_was_written(body: MessageBody) -> None:
    body.set_source("```\n  a\n\n\tb" + "x" * 9000 + "\n```\n\n```py\nc\n```\n")
    body.anchorClicked.emit(QUrl("copy-code:0"))
    assert QGuiApplication.clipboard().text() == "  a\n\n\tb" + "x" * 9000 + "\n"
    body.anchorClicked.emit(QUrl("copy-code:1"))
    assert QGuiApplication.clipboard().text() == "c\n"


def test_direction_is_per_paragraph_and_code_is_left_to_right(body: MessageBody) -> None:
    body.set_source("مرحبا (test) 123\n\nhello\n\n```\nعين = 1\n```\n")
    ways = {}
    block = body.document().begin()
    while block.isValid():
        ways[block.text()] = block.textDirection()
        block = block.next()
    assert ways["مرحبا (test) 123"] == Qt.LayoutDirection.RightToLeft
    assert ways["hello"] == Qt.LayoutDirection.LeftToRight
    assert ways["عين = 1"] == Qt.LayoutDirection.LeftToRight


@pytest.mark.parametrize(
    "text", ["a\x00b", "\ud800 lone", "👩‍👩‍👧 🏖️ é 漢", "\u202eabc", "\ufdd0\ufffc"]
)
def test_odd_characters_are_shown(body: MessageBody, text: str) -> None:
    for char in text:
        body.feed(char)
    body.finish()
    assert body.toPlainText().strip()
    body.toPlainText().encode("utf-8")


def test_a_line_of_a_megabyte_does_not_freeze(body: MessageBody) -> None:
    body.show()
    worst_ms = 0.0
    line = "x" * 1_000_000
    for at in range(0, 200_000, 2_000):  # a long answer without a single line end
        begin = time.process_time()
        body.feed(line[at : at + 2_000])
        worst_ms = max(worst_ms, (time.process_time() - begin) * 1e3)
    assert worst_ms < 100.0
    assert max(len(b) for b in body.toPlainText().split("\n")) <= 4000


def test_long_code_streams_in_constant_time(body: MessageBody) -> None:
    body.feed("```\n")
    costs = []
    for _ in range(60):
        begin = time.process_time()
        body.feed("some = code(line)\n" * 50)
        costs.append(time.process_time() - begin)
    assert sorted(costs[-20:])[10] < 5 * sorted(costs[:20])[10] + 0.005


def test_the_height_follows_the_text(body: MessageBody, qtbot) -> None:
    body.show()
    body.set_source("one")
    small = body.height()
    body.set_source("one\n\n" * 12)
    assert body.height() > 8 * small
