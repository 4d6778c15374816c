# SPDX-License-Identifier: MIT OR Apache-2.0
"""The palette table: contrast, override, and that everything follows a switch."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from PySide6.QtCore import QEvent, QObject
from PySide6.QtGui import QPalette
from PySide6.QtWidgets import QDialog, QPushButton, QWidget

from app.theme import TEXT_PAIRS, TOKENS, Theme, contrast


def test_contrast_formula() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize(("ink", "ground"), TEXT_PAIRS)
def test_text_is_readable_in_both_palettes(ink: str, ground: str) -> None:
    for palette in (0, 1):
        assert contrast(TOKENS[ink][palette], TOKENS[ground][palette]) >= 4.5


@pytest.mark.parametrize("token", [t for t in TOKENS if t.startswith(("drafter", "part"))])
def test_marks_stand_out_from_their_ground(token: str) -> None:
    for palette in (0, 1):
        for ground in ("window", "panel"):
            assert contrast(TOKENS[token][palette], TOKENS[ground][palette]) >= 2.5


def test_every_token_is_a_colour() -> None:
    assert all(re.fullmatch("#[0-9a-f]{6}", c) for pair in TOKENS.values() for c in pair)


def test_the_choice_decides(qapp, theme: Theme) -> None:
    theme.set_choice("dark")
    assert qapp.palette().color(QPalette.ColorRole.Window).name() == TOKENS["window"][1]
    theme.set_choice("light")
    assert qapp.palette().color(QPalette.ColorRole.Window).name() == TOKENS["window"][0]
    with pytest.raises(ValueError, match="unknown theme"):
        theme.set_choice("sepia")


class _Restyled(QObject):
    """Counts how often each widget is told that its style changed."""

    def __init__(self, window: QWidget) -> None:
        super().__init__(window)
        self._window = window
        self.times: Counter[int] = Counter()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.StyleChange and watched.isWidgetType():
            self.times[id(watched)] += 1
        return False


def test_a_switch_restyles_a_widget_twice_at_most(qapp, console) -> None:
    """However deep it lies: a switch of a window with hundreds of widgets has to feel instant."""
    one = console()
    widgets = one.window.findChildren(QWidget)
    assert len(widgets) > 300
    restyled = _Restyled(one.window)
    qapp.installEventFilter(restyled)
    try:
        one.theme.set_choice("dark")
    finally:
        qapp.removeEventFilter(restyled)
    assert max(restyled.times[id(widget)] for widget in widgets) <= 2


def test_what_a_window_opens_follows_a_switch(console) -> None:
    one = console()
    one.window.resize(1200, 800)
    dialog = QDialog(one.window)
    button = QPushButton("Delete", dialog)
    for dark, choice in ((1, "dark"), (0, "light")):
        one.theme.set_choice(choice)
        for widget in (button, one.window.chat.composer.send):
            widget.ensurePolished()
            picture = widget.grab().toImage()
            edge = picture.pixelColor(picture.width() // 2, 0).name()
            assert edge in (TOKENS["line"][dark], TOKENS["accent"][dark])


def test_plots_and_messages_follow_a_switch(console) -> None:
    one = console()
    one.ask("hello")
    for dark, choice in ((1, "dark"), (0, "light")):
        one.theme.set_choice(choice)
        plot = one.window.live.tps_plot
        assert plot.plot.backgroundBrush().color().name() == TOKENS["window"][dark]
        block = one.answer.body.document().firstBlock()
        ink = block.begin().fragment().charFormat().foreground().color().name()
        assert ink == TOKENS["text"][dark]
