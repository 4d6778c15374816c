# SPDX-License-Identifier: MIT OR Apache-2.0
"""The axes of every plot in the palette in force; pyqtgraph does not follow the application's."""

from __future__ import annotations

from collections.abc import Iterable

import pyqtgraph as pg
from PySide6.QtGui import QFont

from app.theme import Theme


def style_axes(theme: Theme, axes: Iterable[pg.AxisItem]) -> None:
    """Lines, figures and ticks of `axes` in the theme's colours and small font."""
    font = QFont(theme.ui_font(0.82))
    for axis in axes:
        axis.setPen(theme.color("line"))
        axis.setTextPen(theme.color("dim"))
        axis.setTickFont(font)
        axis.setStyle(tickLength=-4)
