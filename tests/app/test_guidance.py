# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the console says where there is nothing to show, or nothing to do, yet."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from console_scripts import FAST
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QFontMetrics
from PySide6.QtWidgets import QTableView

from app.compare.plot import PairPlot
from app.live.kernels import KernelModel
from app.live.now import WORDS
from app.live.plots import CurvePlot, tick_text
from app.live.series import BIN_S, SPAN_S
from app.load.card import card_rows
from app.settings import Sampling
from engine.api import ROUND_DTYPE, ErrorReport, KernelRow, KernelTable
from engine.fake_script import SCRIPTS, Script

BINS = int(SPAN_S / BIN_S)
PADDING_PX = 13  # of a heading, by the style sheet
AGES = (np.arange(BINS) - BINS) * BIN_S


def _ticks(axis) -> list[str]:
    return [text for level in axis._tickLevels for _, text in level]


@pytest.fixture
def plot(qtbot, theme) -> CurvePlot:
    made = CurvePlot(theme, "Decode rate", "tok/s", "accent")
    qtbot.addWidget(made)
    return made


def test_an_empty_plot_says_so_and_shows_no_figures(plot) -> None:
    assert plot._reading.text() == "no round in the last 5 min"
    assert _ticks(plot._left) == []
    values = np.full(BINS, np.nan)
    values[-4] = 1200.0
    plot.set_data(AGES, values)
    assert plot._reading.text() == ""
    assert _ticks(plot._left) == ["0", "750", "1\u202f500"]
    plot.set_data(AGES, np.full(BINS, np.nan))  # five minutes later
    assert plot._reading.text() == "no round in the last 5 min"
    assert _ticks(plot._left) == []


def test_a_plot_whose_first_rounds_are_not_drawn_yet_denies_none(plot) -> None:
    nothing = np.full(BINS, np.nan)
    plot.set_data(AGES, nothing, 41.0, filling=True)
    assert plot._reading.text() == "roof 41.0"
    plot.set_data(AGES, nothing, 41.0)
    assert plot._reading.text() == "no round in the last 5 min · roof 41.0"


def test_a_plot_that_rests_denies_no_round(plot) -> None:
    plot.set_data(AGES, np.full(BINS, np.nan), 41.0)
    plot.set_resting(True)
    assert plot._reading.text() == "drawn again after the A/B · roof 41.0"
    plot.set_resting(False)
    assert plot._reading.text() == "no round in the last 5 min · roof 41.0"


def test_the_first_answer_is_drawn_when_its_half_second_is_over(console, monkeypatch) -> None:
    one = console(Script(answer="ok", round_ms=3.0))
    live, at_s = one.window.live, time.monotonic()
    monkeypatch.setattr("app.live.panel.time.monotonic", lambda: at_s)
    one.bridge._timer.stop()

    def tick(after_s: float) -> str:
        nonlocal at_s
        at_s = start_s + after_s
        live._on_tick(one.bridge.snapshot)
        return live.tps_plot._reading.text()

    start_s = (at_s // BIN_S + 2) * BIN_S
    assert tick(0.0) == "no round in the last 5 min"
    rows = np.zeros(1, ROUND_DTYPE)
    rows["end_s"], rows["round_ms"], rows["committed_tokens"] = start_s + 0.1, 3.0, 2
    live._on_rounds(rows, 0)
    assert tick(0.2) == ""
    assert live.decode.value != "—"
    assert not np.isfinite(live.tps_plot._values).any()
    assert tick(0.75) == ""
    assert np.isfinite(live.tps_plot._values).sum() == 1


def test_a_plot_with_a_roof_alone_keeps_its_scale(plot) -> None:
    plot.set_data(AGES, np.full(BINS, np.nan), 41.0)
    assert plot._reading.text() == "no round in the last 5 min · roof 41.0"
    assert _ticks(plot._left) == ["0", "25", "50"]


def test_a_reading_without_room_is_said_shorter(plot) -> None:
    plot.set_data(AGES, np.full(BINS, np.nan), 41.0)
    plot.show()
    wide = plot._reading.fontMetrics().horizontalAdvance
    texts = ["no round in the last 5 min · roof 41.0", "no round · roof 41.0", "roof 41.0"]
    for text in texts:
        plot.resize(plot.width() + wide(text) - plot._reading.width(), plot.height())
        assert plot._reading.text() == text
    plot.resize(plot.width() + 400, plot.height())
    assert plot._reading.text() == texts[0]


def test_the_first_minute_fills_the_plot(plot) -> None:
    values = np.full(BINS, np.nan)
    values[-4] = 1200.0
    plot.set_data(AGES, values)
    assert _ticks(plot._bottom) == ["now", "-15 s", "-30 s", "-45 s"]
    values[-300] = 1100.0
    plot.set_data(AGES, values)
    assert _ticks(plot._bottom) == ["now", "-1 min", "-2 min", "-3 min", "-4 min"]
    low, high = plot.plot.getPlotItem().getViewBox().viewRange()[0]
    assert (low, high) == (-SPAN_S, 0)


def test_the_crosshair_names_the_unit_and_a_gap(plot) -> None:
    values = np.full(BINS, np.nan)
    values[-4] = 1200.0
    plot.set_data(AGES, values)
    box = plot.plot.getPlotItem().getViewBox()
    plot.resize(400, 160)
    plot.show()
    for age, said in ((-1.8, "2 s ago: 1\u202f200 tok/s"), (-50.2, "50 s ago: no round")):
        plot._on_mouse(box.mapViewToScene(QPointF(age, 700.0)))
        assert plot._reading.text() == said
    plot.hide()


@pytest.mark.parametrize(
    ("value", "said"), [(0.0, "0"), (0.75, "0.75"), (15.0, "15"), (2e6, "2\u202f000\u202f000")]
)
def test_figures_of_an_axis(value: float, said: str) -> None:
    assert tick_text(value) == said


def test_the_pairs_have_a_scale_once_there_is_one(qtbot, theme) -> None:
    made = PairPlot(theme)
    qtbot.addWidget(made)
    assert _ticks(made._left) == ["0"]


def test_without_a_model_the_chat_offers_one(console) -> None:
    one = console(replace(SCRIPTS["load-failure"], fail_loads_after=0), load=False)
    one.load("models/broken")
    empty = one.chat.empty
    one.window.show_chat()
    assert empty.demo_button.isVisible()
    assert empty.folder_button.isVisible()
    asked = []
    one.bridge.load_started.connect(asked.append)
    empty.demo_button.click()
    assert asked
    assert not empty.demo_button.isVisible()
    one.wait(lambda: not one.bridge.loading_path)


def test_figures_that_are_not_measured_say_why(console) -> None:
    one = console(Script(round_ms=3.0))
    live = one.window.live
    assert (live.decode.note, live.prefill.note) == ("no round yet", "no prompt yet")
    one.ask("hello")
    one.wait(lambda: live.decode.note == "last 2 s of rounds")
    one.wait(lambda: live.prefill.note == "last prompt read")


def test_the_sorted_column_is_marked_in_its_heading(console) -> None:
    view = console().window.kernels.view
    heads = view.model()

    def head(section: int) -> str:
        return heads.headerData(section, Qt.Orientation.Horizontal)

    assert (head(1), head(2)) == ("Calls a round", "▾ ms a round")
    view.sortByColumn(1, Qt.SortOrder.AscendingOrder)
    assert (head(1), head(2)) == ("▴ Calls a round", "ms a round")
    header = view.horizontalHeader()
    for section in range(heads.columnCount()):
        view.sortByColumn(section, Qt.SortOrder.DescendingOrder)
        room = header.sectionSize(section) - 2 * PADDING_PX
        assert header.fontMetrics().horizontalAdvance(head(section)) <= room


def test_what_is_not_side_b_yet_says_how(console) -> None:
    one = console()
    one.window.show_knobs()
    one.window.knobs.select("QWEN38_VERIFY_GRAPH")
    detail = one.window.knobs.detail
    assert not detail.mark_box.isEnabled()
    assert detail.mark_box.toolTip().startswith("Enter another value")
    detail.editor.field.click()
    assert detail.mark_box.isEnabled()
    assert detail.mark_box.toolTip().startswith("Use the value")


def test_a_small_time_is_not_shown_as_none() -> None:
    row = KernelRow("pack", calls=1, total_ms=0.004, share_pct=0.01, read_gbps=38.0, gflops=0.0)
    model = KernelModel()
    model.set_table(KernelTable((row,), 32, 2.0, 0.4))
    texts = [model.index(0, column).data() for column in range(model.columnCount())]
    assert texts == ["pack", "0.031", "< 0.001", "< 0.1", "< 0.1", "38.0", "0.0"]


def test_figures_of_a_row_stand_in_line(console, qtbot) -> None:
    one = console()
    one.window.resize(1320, 860)
    one.window.show_live()
    qtbot.wait(50)
    places = {(figure.y(), figure.height()) for figure in one.window.live._figures}
    assert len(places) == 1


def test_the_conversation_stands_over_the_composer(console, qtbot) -> None:
    one = console(Script(answer="ok", round_ms=3.0))
    one.window.resize(2400, 900)
    one.ask("hello")
    qtbot.wait(50)
    answer, field = one.answer, one.chat.composer.field
    left = answer.mapTo(one.window, QPoint(0, 0)).x()
    assert abs(left - field.mapTo(one.window, QPoint(0, 0)).x()) <= 8
    assert answer.width() > 800


def test_a_note_without_room_is_said_shorter(console, qtbot) -> None:
    one = console()
    long, short = "93 % of memory roof 273.4", "93 % of roof 273.4"
    figure = one.window.live.read
    figure.set_value("254", long, short_note=short)
    metrics = QFontMetrics(figure._label_font)
    figure.setFixedWidth(metrics.horizontalAdvance(long))
    assert figure.note_shown() == long
    figure.setFixedWidth(metrics.horizontalAdvance(long) - 1)
    assert figure.note_shown() == short


def test_every_note_has_room_in_the_smallest_window(console, qtbot) -> None:
    one = console(Script(answer="ok", round_ms=3.0))
    live = one.window.live
    one.window.resize(900, 600)
    one.ask("hello")
    for show in (one.window.show_chat, one.window.show_live):
        show()
        qtbot.wait(300)
        for figure in live._figures:
            wide = QFontMetrics(figure._label_font).horizontalAdvance(figure.note_shown())
            assert wide <= figure.width(), figure.note_shown()


def test_the_conversation_ends_with_its_last_message(console, qtbot) -> None:
    one = console(Script(answer="ok", round_ms=3.0))
    one.window.resize(900, 600)
    for question in ("one", "two", "three", "four"):
        one.ask(question)
    view = one.chat.view
    body, bar = view.widget(), view.verticalScrollBar()
    one.wait(lambda: bar.maximum() > 0)
    end = one.answer.mapTo(body, QPoint(0, one.answer.height())).y()
    assert body.height() - end == body.layout().contentsMargins().bottom()
    assert bar.value() == bar.maximum() == body.height() - view.viewport().height()
    one.chat.new_chat()
    one.ask("one")
    one.wait(lambda: bar.maximum() == 0)
    assert not bar.isEnabled(), "a handle would move nothing"


def test_every_word_has_room_in_the_status_bar(console) -> None:
    one = console()
    bar = one.window.statusBar()
    for state in WORDS:
        one.engine._update(state=state)
        one.bridge.tick()
        bar.refresh()
        assert WORDS[state] in bar.state.text()
        assert bar.state.sizeHint().width() <= bar.state.width()
    one.engine._update(state="ready")
    bar.freshness.setText("▲  no sign of life for 888 s")
    assert bar.freshness.sizeHint().width() <= bar.freshness.width()


def test_a_file_name_without_an_end_widens_no_page(console, qtbot) -> None:
    one = console()
    one.window.show_model()
    folder = "/models/" + "x" * 250
    report = ErrorReport("This folder cannot be opened", f"{folder} does not exist.", "", "")
    one.bridge.load_failed.emit(folder, report)
    page = one.window.model_page
    qtbot.wait(50)
    right = page.open_button.mapTo(page, QPoint(page.open_button.width(), 0)).x()
    assert right <= page.width()


def test_a_long_model_name_ends_in_dots_and_is_told_in_full(console, qtbot) -> None:
    one = console()
    height = one.window.statusBar().height()
    name = "a-model-with-a-long-name-\n" * 8
    one.engine._update(model=replace(one.bridge.model, name=name))
    one.wait(lambda: one.bridge.model.name == name)
    label = one.window.statusBar().model
    one.wait(lambda: label.toolTip().startswith("a-model-with-a-long-name- a-model"))
    assert "\n" not in label.text()
    assert one.window.statusBar().height() == height
    assert label.text().startswith("a-model-with")
    assert label.text().endswith("…")
    assert label.fontMetrics().horizontalAdvance(label.text()) <= label.width()


def test_the_sampling_says_that_its_tokens_are_a_limit() -> None:
    assert Sampling().summary() == "greedy · up to 512 tok"
    assert Sampling(max_tokens=4000, speculate=False).summary() == (
        "greedy · up to 4\u202f000 tok · no speculation"
    )


def test_the_card_follows_a_model_that_was_loaded_anew(console) -> None:
    one = console()
    page = one.window.model_page
    one.engine._update(model=replace(one.bridge.model, roof_gbps=33.8))
    one.wait(lambda: one.bridge.model.roof_gbps == 33.8)
    one.window.show_model()
    assert page.card.texts["Read roof"].startswith("33.8 GB/s")
    assert dict(card_rows(replace(one.bridge.model, roof_gbps=None)))["Read roof"].startswith(
        "not available: "
    )


def test_the_panel_tells_a_change_of_state_with_the_status_bar(console, monkeypatch) -> None:
    one = console(FAST)
    live, at_s = one.window.live, time.monotonic()
    monkeypatch.setattr("app.live.panel.time.monotonic", lambda: at_s)
    one.bridge._timer.stop()
    ready = one.bridge.snapshot
    live._on_tick(ready)
    for state, said in (("writing", "writing"), ("ready", "ready"), ("comparing", "comparing")):
        live._on_tick(replace(ready, state=state))  # at the same time: no figures are due
        assert live.sentence.text().endswith(said)


def test_a_cut_line_of_a_table_shows_its_beginning(console) -> None:
    one = console(FAST)
    views = one.window.findChildren(QTableView)
    assert len(views) > 4
    assert not [view.accessibleName() for view in views if view.wordWrap()]
