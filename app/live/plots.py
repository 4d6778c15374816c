# SPDX-License-Identifier: MIT OR Apache-2.0
"""A curve over the last minute, or the last five, with an optional roof line, a crosshair and "copy data"."""

from __future__ import annotations

import math

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import QPointF, Qt, Slot
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QHBoxLayout, QLabel, QSizePolicy, QToolButton, QVBoxLayout, QWidget

from app.axes import style_axes
from app.chat.message import icon_button
from app.format import grouped, significant
from app.icons import icon
from app.live.series import BIN_S, SPAN_S
from app.theme import Theme

MINUTE_S = 60.0
_AXIS_PX = 46
_NOTHING = f"no round in the last {SPAN_S / 60:.0f} min"
_NOTHING_SHORT = "no round"
_RESTING, _RESTING_SHORT = "drawn again after the A/B", "rests"


class CurvePlot(QWidget):
    """One curve. `set_data` takes ages (seconds before now, negative) and values with NaN for gaps.

    Its `filling` says that there were rounds that the values do not hold yet.
    """

    def __init__(self, theme: Theme, title: str, unit: str, token: str, parent=None) -> None:
        super().__init__(parent)
        self._theme, self._title, self._unit, self._token = theme, title, unit, token
        self._ages = np.zeros(0)
        self._values = np.zeros(0)
        self._roof: float | None = None
        self._roof_name = "roof"
        self._filling = self._resting = False
        self._top = self._span_s = 0.0
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(1)
        row = QHBoxLayout()
        name = QLabel(f"{title}, {unit}")
        name.setProperty("role", "small")
        row.addWidget(name)
        self._reading = _Reading()
        row.addWidget(self._reading, 1)
        self.copy_button: QToolButton = icon_button(theme, "copy", f"Copy data of {title}")
        self.copy_button.clicked.connect(self.copy_data)
        row.addWidget(self.copy_button)
        column.addLayout(row)
        self.plot = pg.PlotWidget()
        self.plot.setAccessibleName(f"{title} over the last five minutes")
        self.plot.setMinimumHeight(86)
        self.plot.setMenuEnabled(False)
        self.plot.setMouseEnabled(x=False, y=False)
        self.plot.hideButtons()
        self.plot.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        item = self.plot.getPlotItem()
        item.setContentsMargins(0, 4, 16, 0)
        self._left, self._bottom = item.getAxis("left"), item.getAxis("bottom")
        self._left.setWidth(_AXIS_PX)
        self._left.enableAutoSIPrefix(False)
        self._bottom.enableAutoSIPrefix(False)
        self._bottom.setStyle(hideOverlappingLabels=False)  # "now" stands at the very end
        self._curve = item.plot([], [], connect="finite")
        self._line = pg.InfiniteLine(angle=0, movable=False)
        self._line.hide()
        self._cross = pg.InfiniteLine(angle=90, movable=False)
        self._cross.hide()
        item.addItem(self._line, ignoreBounds=True)
        item.addItem(self._cross, ignoreBounds=True)
        self.plot.scene().sigMouseMoved.connect(self._on_mouse)
        column.addWidget(self.plot, 1)
        self.restyle()
        self._fit()
        self._say(None)

    def set_data(
        self,
        ages_s: np.ndarray,
        values: np.ndarray,
        roof: float | None = None,
        roof_name: str = "roof",
        *,
        filling: bool = False,
    ) -> None:
        same = (roof, filling) == (self._roof, self._filling)
        same = same and not np.isfinite(np.append(values, self._values)).any()
        self._filling = filling
        self._ages, self._values, self._roof, self._roof_name = ages_s, values, roof, roof_name
        if same:
            return  # nothing to see before and after: a repaint costs as much as one with a curve
        # One level step a bin, so that a single bin between gaps is seen too.
        edges = np.repeat(np.append(ages_s, ages_s[-1:] + BIN_S), 2)[1:-1]
        self._curve.setData(edges, np.repeat(values, 2))
        self._line.setVisible(roof is not None)
        if roof is not None:
            self._line.setValue(roof)
        self._fit()
        self._say(None)

    def set_resting(self, resting: bool) -> None:
        """Say that the curve stands still, or no longer."""
        if resting != self._resting:
            self._resting = resting
            self._say(None)

    @Slot()
    def copy_data(self) -> None:
        """Tab-separated text: seconds before now, value; only what was measured."""
        lines = [f"age_s\t{self._title.lower().replace(' ', '_')} ({self._unit})"]
        if self._roof is not None:
            lines[0] += "\troof"
        for age, value in zip(self._ages, self._values, strict=True):
            if math.isfinite(value):
                roof = f"\t{self._roof!r}" if self._roof is not None else ""
                lines.append(f"{age:g}\t{float(value)!r}{roof}")
        QGuiApplication.clipboard().setText("\n".join(lines) + "\n")

    def restyle(self) -> None:
        """Take the colours of the palette in force."""
        theme = self._theme
        self.plot.setBackground(theme.color("window"))
        style_axes(theme, (self._left, self._bottom))
        self._curve.setPen(pg.mkPen(theme.color(self._token), width=2))
        self._line.setPen(pg.mkPen(theme.color("warn"), width=1, style=Qt.PenStyle.DashLine))
        self._cross.setPen(pg.mkPen(theme.color("edge"), width=1))
        self.copy_button.setIcon(icon("copy", theme.color("dim")))

    def _fit(self) -> None:
        """A round upper bound that grows at once and shrinks only when the curve fell to half of it.

        With nothing to measure against, the axis has no figures.
        """
        finite = np.isfinite(self._values)
        self._fit_span(float(-self._ages[finite][0]) if finite.any() else SPAN_S)
        known = self._values[finite]
        peak = max(float(known.max(initial=0.0)), self._roof or 0.0)
        if peak <= 0:
            self._top = 0.0
            self.plot.setYRange(0, 1, padding=0)
            self._left.setTicks([[]])
            return
        wanted = _round_up(peak * 1.08)
        if self._top / 2 <= wanted <= self._top:
            return
        self._top = wanted
        self.plot.setYRange(0, self._top, padding=0)
        self._left.setTicks([[(v, tick_text(v)) for v in (0.0, self._top / 2, self._top)]])

    def _fit_span(self, oldest_s: float) -> None:
        """One minute while it holds all there is: over five, the first answers are specks at the edge."""
        span_s = MINUTE_S if oldest_s <= MINUTE_S else SPAN_S
        if span_s == self._span_s:
            return
        self._span_s = span_s
        self.plot.setXRange(-span_s, 0, padding=0)
        step, unit, scale = (15, "s", 1) if span_s == MINUTE_S else (60, "min", 60)
        ages = range(0, int(span_s), step)
        self._bottom.setTicks(
            [[(-float(a), f"-{a // scale} {unit}" if a else "now") for a in ages]]
        )

    def _say(self, age_s: float | None) -> None:
        known = np.nonzero(np.isfinite(self._values))[0]
        texts = [""]
        if age_s is not None:
            at = int((age_s + SPAN_S) // BIN_S)
            value = self._values[at] if 0 <= at < len(self._values) else math.nan
            found = (
                f"{significant(float(value))} {self._unit}" if math.isfinite(value) else "no round"
            )
            texts = [f"{-age_s:.0f} s ago: {found}"]
        else:
            nothing = () if len(known) or self._filling else (_NOTHING, _NOTHING_SHORT)
            if self._resting:
                nothing = (_RESTING, _RESTING_SHORT)
            roof = f"{self._roof_name} {significant(self._roof)}" if self._roof is not None else ""
            texts = [" · ".join(filter(None, (said, roof))) for said in (*nothing, "")]
        if not self._cross.isVisible() or age_s is not None:
            self._reading.say(texts)

    @Slot(object)
    def _on_mouse(self, position: QPointF) -> None:
        box = self.plot.getPlotItem().getViewBox()
        inside = box.sceneBoundingRect().contains(position)
        self._cross.setVisible(inside)
        if inside:
            age = box.mapSceneToView(position).x()
            self._cross.setValue(age)
            self._say(age)
        else:
            self._say(None)

    def leaveEvent(self, event) -> None:
        super().leaveEvent(event)
        self._cross.hide()
        self._say(None)


class _Reading(QLabel):
    """What stands over a plot on the right: the first of several texts, longest first, that fits."""

    def __init__(self) -> None:
        super().__init__()
        self._texts = [""]
        self.setProperty("role", "small")
        self.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)

    def say(self, texts: list[str]) -> None:
        self._texts = texts
        self._fit()

    def _fit(self) -> None:
        room = self.contentsRect().width() if self.isVisible() else math.inf
        wide = self.fontMetrics().horizontalAdvance
        fitting = [text for text in self._texts if wide(text) <= room]
        self.setText(fitting[0] if fitting else self._texts[-1])

    def showEvent(self, event) -> None:
        super().showEvent(event)
        self._fit()

    def resizeEvent(self, event) -> None:
        super().resizeEvent(event)
        self._fit()


def tick_text(value: float) -> str:
    """No digit that says nothing, and no exponent: 0, 0.75, 15, 1 500."""
    return grouped(value) if value >= 100 else f"{value:g}"


def _round_up(value: float) -> float:
    """The next of 1, 1.5, 2, 3, 4, 5, 6, 8, 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10):
        if step * power >= value * (1 - 1e-12):
            return step * power
    return 10 * power
