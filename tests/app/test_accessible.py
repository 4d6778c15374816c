# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a screen reader is told: a name for whatever takes the keyboard, and the text of every message."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QAccessible
from PySide6.QtWidgets import QApplication, QComboBox, QLabel, QWidget

from app.window import PAGES
from engine.api import ErrorReport
from engine.fake_script import SCRIPTS, THOUGHT


def told(widget: QWidget, what: str = "Name") -> str:
    """What Qt gives a screen reader as the widget's Name, Value or Description."""
    return QAccessible.queryAccessibleInterface(widget).text(getattr(QAccessible.Text, what))


@pytest.fixture
def full(console):
    """A console whose pages all hold something."""
    one = console(replace(SCRIPTS["thinking"], round_ms=0.5))
    one.ask("hello")
    window = one.window
    window.candidate.mark("QWEN38_VERIFY_GRAPH", "0")
    window.compare.form.pairs.setValue(6)
    window.compare.form.tokens.setValue(8)
    window.compare.start()
    one.wait(lambda: not one.bridge.is_comparing)
    one.chat.show_notice(ErrorReport("It failed", "Because.", "", "Try again."))
    return one


def shown(one) -> Iterator[tuple[str, QWidget]]:
    """Every visible widget of every page, and of each switch that is edited in another way."""
    window = one.window
    for page in PAGES:
        getattr(window, f"show_{page}")()
        if page == "runs":
            window.runs.list.selectRow(0)
        for widget in window.findChildren(QWidget):
            if widget.isVisible():
                yield page, widget
    window.show_knobs()
    for name in ("RANKK", "VERIFY_ROWS", "SKINNY_TILES", "GDN_AB"):
        window.knobs.search.setText(name)
        window.knobs.view.selectRow(0)
        for widget in window.knobs.findChildren(QWidget):
            if widget.isVisible():
                yield name, widget


def test_what_takes_the_keyboard_has_a_name(full) -> None:
    nameless = []
    for where, widget in shown(full):
        takes = widget.focusPolicy() != Qt.FocusPolicy.NoFocus and widget.focusProxy() is None
        if takes and not told(widget):
            nameless.append((where, widget))
        if isinstance(widget, QComboBox):  # whose name is its value
            assert told(widget, "Description") == widget.accessibleName() != "", (where, widget)
    assert not nameless


def test_no_name_hides_what_a_label_says(full) -> None:
    for where, widget in shown(full):
        if isinstance(widget, QLabel) and widget.text().strip():
            assert widget.text().strip() in told(widget), (where, widget)


def test_dialogs_name_their_controls(full) -> None:
    window = full.window
    for open_one in (window.show_palette, window.show_keys, window.chat.composer.sampling.click):
        open_one()
        full.wait(lambda: len([w for w in QApplication.topLevelWidgets() if w.isVisible()]) > 1)
        for top in QApplication.topLevelWidgets():
            if top is window or not top.isVisible():
                continue
            for widget in top.findChildren(QWidget):
                takes = widget.focusPolicy() != Qt.FocusPolicy.NoFocus
                if takes and widget.isVisible() and widget.focusProxy() is None:
                    assert told(widget), widget
            top.close()


def test_a_message_tells_its_role_and_its_text(full) -> None:
    question, answer = full.chat.view.messages
    bodies = {
        "Text of your message": (question.body, "hello"),
        "Text of the answer": (answer.body, answer.body.toPlainText()),
        "Text of the thinking part": (answer.thinking.body, THOUGHT.replace("\n", " ")),
    }
    for name, (body, text) in bodies.items():
        assert QAccessible.queryAccessibleInterface(body).role() == QAccessible.Role.StaticText
        assert told(body) == name
        assert told(body, "Value") == text != ""
