# SPDX-License-Identifier: MIT OR Apache-2.0
"""The live panel: what the engine does now, its figures, five minutes of curves, where a round goes."""

from __future__ import annotations

import time

import numpy as np
from PySide6.QtCore import Qt, Slot
from PySide6.QtWidgets import (
    QBoxLayout,
    QFrame,
    QGridLayout,
    QLabel,
    QProgressBar,
    QScrollArea,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from app.bridge import Bridge
from app.format import NONE, grouped, number, of_roof, percent, significant
from app.live.figures import DrafterLine, Figure, Gauge, SplitBar
from app.live.now import now
from app.live.plots import CurvePlot
from app.live.route import route_words
from app.live.series import PARTS, PrefillRate, RoundSeries
from app.theme import Theme
from engine.api import Generation, ModelCard, Snapshot, roof_name

FIGURES_EVERY_S = 0.2
PLOTS_EVERY_S = 0.5
# With no new rounds the curves only move on by themselves, a pixel or two in this time.
QUIET_PLOTS_EVERY_S = 2.0
_WIDE_PX = 820
_PROGRESS_STEPS = 1000


class LivePanel(QWidget):
    """Follows the engine through the bridge; nothing in it moves while numbers change."""

    def __init__(self, bridge: Bridge, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("live")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setMinimumWidth(330)
        self._bridge, self._theme = bridge, theme
        self.series = RoundSeries()
        self._prefill = PrefillRate()
        self._last_prefill_tps: float | None = None
        self._figures_due_s = self._plots_due_s = self._quiet_plots_due_s = 0.0
        self._has_news = True
        self._shown_state = ""
        scroll = QScrollArea(self)
        scroll.setWidgetResizable(True)
        scroll.setFrameShape(QFrame.Shape.NoFrame)
        scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(scroll)
        body = QWidget()
        body.setObjectName("scrollBody")
        scroll.setWidget(body)
        column = QVBoxLayout(body)
        column.setContentsMargins(18, 10, 18, 14)
        column.setSpacing(10)
        self._add_now(column)
        column.addWidget(_rule())
        self._add_figures(column)
        column.addWidget(_rule())
        self.tps_plot = CurvePlot(theme, "Decode rate", "tok/s", "accent")
        self.gbps_plot = CurvePlot(theme, "Read rate", "GB/s", "accent")
        self._plots = QBoxLayout(QBoxLayout.Direction.TopToBottom)
        self._plots.setSpacing(14)
        self._plots.addWidget(self.tps_plot, 1)
        self._plots.addWidget(self.gbps_plot, 1)
        column.addLayout(self._plots, 1)
        column.addWidget(_rule())
        column.addWidget(_caption("Where a round goes, ms (mean, last 2 s of rounds)"))
        self.split = SplitBar(theme, PARTS)
        column.addWidget(self.split)
        column.addWidget(_caption("Who drafted (share, last 2 s of rounds)"))
        self.drafters = DrafterLine(theme)
        column.addWidget(self.drafters)
        self.route, self.route_gain = _still_label("small"), _still_label("small")
        self.route.setAccessibleDescription("What the router chose in the last rounds")
        self.route.setToolTip(
            "What it drafted with most often, and how many of the drafted nodes a verify pass took"
        )
        self.route_gain.setAccessibleDescription("What the router expected")
        self.route_gain.setToolTip(
            "Tokens a round, expected and come; the rate it expected over that of a round without a draft"
        )
        words = QVBoxLayout()
        words.setSpacing(3)
        words.addWidget(self.route)
        words.addWidget(self.route_gain)
        column.addLayout(words)
        self.context = Gauge(theme, "Context, tok")
        column.addWidget(self.context)
        bridge.rounds.connect(self._on_rounds)
        bridge.ticked.connect(self._on_tick)
        bridge.finished.connect(self._on_finished)
        bridge.loaded.connect(self._on_loaded)
        theme.changed.connect(self.restyle)
        self._show_figures(bridge.snapshot)

    def _add_now(self, column: QVBoxLayout) -> None:
        column.addWidget(_caption("Now"))
        self.sentence = _still_label("title")
        self.detail = _still_label("dim")
        self.progress = QProgressBar()
        self.progress.setTextVisible(False)
        self.progress.setRange(0, _PROGRESS_STEPS)
        self.progress.setAccessibleName("Progress of what runs now")
        box = QVBoxLayout()
        box.setSpacing(3)
        box.addWidget(self.sentence)
        box.addWidget(self.detail)
        box.addWidget(self.progress)
        column.addLayout(box)

    def _add_figures(self, column: QVBoxLayout) -> None:
        theme = self._theme
        self._grid = grid = QGridLayout()
        grid.setHorizontalSpacing(26)
        grid.setVerticalSpacing(9)
        self.decode = Figure(theme, "Decode, tok/s", widest="88 888", big=True)
        self.prefill = Figure(theme, "Prefill, tok/s", widest="888 888", big=True)
        self.per_round = Figure(theme, "Tokens a round", widest="88.88")
        self.round_ms = Figure(theme, "Round, ms", widest="8 888.8")
        self.acceptance = Figure(theme, "Acceptance", widest="100 %")
        self.read = Figure(theme, "Read, GB/s", widest="8 888.8")
        self._figures = (
            self.decode,
            self.prefill,
            self.per_round,
            self.round_ms,
            self.acceptance,
            self.read,
        )
        self._place_figures(2)
        column.addLayout(grid)

    def _place_figures(self, columns: int) -> None:
        for index, figure in enumerate(self._figures):
            self._grid.addWidget(figure, index // columns, index % columns)
        for index in range(len(self._figures)):
            self._grid.setColumnStretch(index, 1 if index < columns else 0)

    # From the bridge.

    @Slot(object, int)
    def _on_rounds(self, rows: np.ndarray, lost: int) -> None:
        self.series.add(rows, lost)
        if not self._has_news:
            self._plots_due_s = 0.0  # a plot may say just now that there was no round
        self._has_news = True

    @Slot(object)
    def _on_tick(self, snapshot: Snapshot) -> None:
        at_s = time.monotonic()
        if snapshot.state == "prefilling" and snapshot.prompt_tokens:
            self._prefill.add(snapshot.request_id, at_s, snapshot.prompt_done)
        if self.window().isMinimized() or not self.isVisible():
            return
        # A change of state is told at once: beside a status bar that says "ready", "writing" would be wrong.
        if at_s >= self._figures_due_s or snapshot.state != self._shown_state:
            self._shown_state = snapshot.state
            self._figures_due_s = at_s + FIGURES_EVERY_S
            self._show_now(snapshot)
            self._show_figures(snapshot)
        resting = snapshot.state == "comparing"
        for plot in (self.tps_plot, self.gbps_plot):
            plot.set_resting(resting)
        if resting:
            return  # what an A/B times is not to be slowed by curves; they are drawn at its end
        due_s = self._plots_due_s if self._has_news else self._quiet_plots_due_s
        if at_s >= due_s:
            self._plots_due_s = at_s + PLOTS_EVERY_S
            self._quiet_plots_due_s = at_s + QUIET_PLOTS_EVERY_S
            self._has_news = self.series.is_filling(at_s)
            self._show_plots(at_s)

    @Slot(int, object)
    def _on_finished(self, _request_id: int, generation: Generation) -> None:
        if generation.prefill_tps is not None:
            self._last_prefill_tps = generation.prefill_tps

    @Slot(object)
    def _on_loaded(self, _card: object) -> None:
        """The figures of another model, or of other switches, are not held against this roof."""
        self.series = RoundSeries()
        self._last_prefill_tps, self._has_news = None, True

    # Showing.

    def _show_now(self, snapshot: Snapshot) -> None:
        bridge = self._bridge
        said = now(
            snapshot,
            bridge.progress,
            bridge.load_rate_bps,
            self._prefill.rate_tps,
            bridge.silence_s() if bridge.silence_level() else 0.0,
        )
        _say(self.sentence, f"{said.glyph}  {said.sentence}")
        _say(self.detail, said.detail)
        value = 0 if said.share is None else int(said.share * _PROGRESS_STEPS)
        if value != self.progress.value():
            self.progress.setValue(value)

    def _show_figures(self, snapshot: Snapshot) -> None:
        found = self.series.figures()
        stale = self._bridge.silence_level() > 0
        dim = snapshot.state != "writing" or stale
        roof = snapshot.model.roof_gbps if snapshot.model else None
        lately = "last 2 s of rounds" if found.rounds else "no round yet"
        self.decode.set_value(number(found.decode_tps), lately, dim=dim)
        reading = snapshot.state == "prefilling"
        rate = self._prefill.rate_tps if reading else self._last_prefill_tps
        when = "now" if reading else "no prompt yet" if rate is None else "last prompt read"
        self.prefill.set_value(number(rate), when, dim=not reading or stale)
        per_round = NONE if found.tokens_per_round is None else f"{found.tokens_per_round:.2f}"
        rounds = f"over {grouped(found.rounds)} rounds" if found.rounds else ""
        self.per_round.set_value(per_round, rounds, dim=dim)
        rows = f"mean, {found.rows_per_round:.1f} rows" if found.rounds else ""
        self.round_ms.set_value(significant(found.round_ms), rows, dim=dim)
        drafted, taken = "nothing drafted" if found.rounds else "", ""
        if found.drafted_per_round:
            taken = f"{found.accepted_per_round:.2f} of {found.drafted_per_round:.2f}"
            drafted = f"{taken} drafted"
        self.acceptance.set_value(percent(found.acceptance_pct), drafted, short_note=taken, dim=dim)
        note = short = ""
        if roof:
            place = _roof_name(snapshot.model)
            note = f"{place} {significant(roof)}"
            if found.read_gbps is not None:
                note, short = (of_roof(found.read_gbps, roof, name) for name in (place, "roof"))
        self.read.set_value(significant(found.read_gbps), note, short_note=short, dim=dim)
        self.split.set_parts(found.parts_ms, dim=dim)
        self.drafters.set_counts(found.drafters, dim=dim)
        chose, gain = route_words(found)
        _say(self.route, chose)
        _say(self.route_gain, gain)
        limit = snapshot.context_limit
        share = snapshot.context_tokens / limit if limit else 0.0
        text = f"{grouped(snapshot.context_tokens)} of {grouped(limit)}" if limit else NONE
        self.context.set_value(share, text)

    def _show_plots(self, at_s: float) -> None:
        ages, tps, gbps = self.series.curves(at_s)
        model = self._bridge.model
        filling = self.series.is_filling(at_s)
        self.tps_plot.set_data(ages, tps, filling=filling)
        roof = model.roof_gbps if model else None
        self.gbps_plot.set_data(ages, gbps, roof, _roof_name(model), filling=filling)

    @Slot()
    def restyle(self) -> None:
        self.tps_plot.restyle()
        self.gbps_plot.restyle()
        self.update()

    def resizeEvent(self, event) -> None:
        super().resizeEvent(event)
        wide = self.width() >= _WIDE_PX
        way = QBoxLayout.Direction.LeftToRight if wide else QBoxLayout.Direction.TopToBottom
        if self._plots.direction() != way:
            self._plots.setDirection(way)
            self._place_figures(len(self._figures) if wide else 2)


def _roof_name(card: ModelCard | None) -> str:
    return roof_name(card.roof_place if card is not None else "memory")


def _caption(text: str) -> QLabel:
    label = QLabel(text)
    label.setProperty("role", "small")
    return label


def _still_label(role: str) -> QLabel:
    """A label whose text never changes the layout."""
    label = QLabel(" ")
    label.setProperty("role", role)
    label.setTextFormat(Qt.TextFormat.PlainText)
    label.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
    return label


def _say(label: QLabel, text: str) -> None:
    text = text or " "  # an empty label has no height
    if label.text() != text:
        label.setText(text)


def _rule() -> QFrame:
    rule = QFrame()
    rule.setObjectName("rule")
    return rule
