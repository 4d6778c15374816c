# SPDX-License-Identifier: MIT OR Apache-2.0
"""The palette table: contrast, override, and that everything follows a switch."""

from __future__ import annotations

import re

import pytest
from PySide6.QtGui import QPalette

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
    assert TOKENS["line"][1] in qapp.styleSheet()
    theme.set_choice("light")
    assert qapp.palette().color(QPalette.ColorRole.Window).name() == TOKENS["window"][0]
    with pytest.raises(ValueError, match="unknown theme"):
        theme.set_choice("sepia")


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
