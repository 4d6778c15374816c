# SPDX-License-Identifier: MIT OR Apache-2.0
"""The window on the scripted engine: closing, silence, the tables beside it, and what cannot be done now."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from console_scripts import FAST, LONG
from PySide6.QtGui import QGuiApplication

from app.errors import ErrorCard
from engine.api import ErrorReport, KernelTable
from engine.fake_script import SCRIPTS, Script


@pytest.mark.parametrize("script", ["slow-prefill", LONG, "stall"])
def test_closing_during_an_answer_ends_in_time(console, script) -> None:
    one = console(script)
    one.ask("word " * 300, wait=False)
    one.wait(lambda: one.bridge.snapshot.state in ("prefilling", "writing"))
    engine, begin = one.engine, time.monotonic()
    one.window.close()
    assert time.monotonic() - begin < 2.0
    assert engine.snapshot().state == "closed"


def test_silence_is_said(console, monkeypatch) -> None:
    one = console(Script(stall_after_rounds=2, stall_s=20.0, round_ms=3.0))
    one.ask("go", wait=False)
    one.wait(lambda: one.engine.ring.count == 2 and one.bridge.snapshot.state == "writing")
    status = one.window.statusBar()
    status.refresh()
    assert status.freshness.text().endswith("refreshes/s")
    real = time.monotonic
    for later_s, level in ((4.0, 1), (12.0, 2)):
        monkeypatch.setattr("app.bridge.time.monotonic", lambda later_s=later_s: real() + later_s)
        status.refresh()
        assert status.silence_level == level
        assert "no sign of life" in status.freshness.text()
    monkeypatch.undo()


def test_the_kernel_table(console, qtmodeltester) -> None:
    one = console(FAST)
    page = one.window.kernels
    one.window.show_kernels()
    assert page.reason.text() == (
        "Not available: no round has run yet.\n\n"
        "The table fills while an answer is written: one row per operation, its time in a round."
    )
    one.window.show_chat()
    one.ask("hello")
    one.window.show_kernels()
    assert page.model.rowCount() == 4
    qtmodeltester.check(page.model)
    page.copy_button.click()
    lines = QGuiApplication.clipboard().text().splitlines()
    assert lines[0].split("\t")[:3] == ["operation", "calls_per_round", "ms_per_round"]
    shares = [float(line.split("\t")[4]) for line in lines[1:]]
    assert sum(shares) == pytest.approx(100.0, abs=0.1)
    page.reset_button.click()
    assert page.model.rowCount() == 0


def test_a_kernel_table_that_stays_empty_promises_nothing(console, monkeypatch) -> None:
    one = console(FAST)
    why = "PyTorch operations run"
    monkeypatch.setattr(one.engine, "kernel_table", lambda: KernelTable((), 9, 0.0, 0.0, why))
    one.window.show_kernels()
    assert one.window.kernels.reason.text() == "Not available: PyTorch operations run."


def test_plot_data_can_be_copied(console) -> None:
    one = console(Script(round_ms=6.0, repeat=2))
    one.ask("hello")
    live = one.window.live
    live._show_plots(time.monotonic() + 1.0)
    live.gbps_plot.copy_button.click()
    lines = QGuiApplication.clipboard().text().splitlines()
    assert lines[0] == "age_s\tread_rate (GB/s)\troof"
    assert len(lines) > 1
    assert float(lines[1].split("\t")[2]) == 41.0


def test_what_cannot_be_done_now_is_disabled(console) -> None:
    one = console(LONG)
    one.ask("go")
    edit, retry = one.chat.view.messages[0].edit_button, one.answer.retry_button
    assert edit.isEnabled()
    assert retry.isEnabled()
    one.ask("more", wait=False)
    assert not edit.isEnabled()
    assert not retry.isEnabled()
    assert not one.answer.retry_button.isEnabled()
    one.window.stop()
    one.wait_idle()
    assert edit.isEnabled()
    assert retry.isEnabled()
    assert one.answer.retry_button.isEnabled()


def test_a_notice_can_be_dismissed(console) -> None:
    one = console(FAST)
    one.chat.show_notice(ErrorReport("The last run ended badly", "It crashed.", "", ""))
    one.wait(one.chat.notice.isVisible)
    one.chat.notice.close_button.click()
    assert one.chat.notice is None


def test_nothing_is_cut_off_in_the_smallest_window(console, qtbot) -> None:
    one = console(Script(round_ms=3.0, demo=True))
    one.ask("hello")
    one.window.resize(one.window.minimumSize())
    qtbot.wait(100)
    assert one.window.size() == one.window.minimumSize()
    button = one.chat.composer.sampling
    assert button.text() == " greedy · up to 512 tok"
    assert button.width() >= button.sizeHint().width()
    live = one.window.live
    for widget in (*live._figures, live.split, live.context):
        assert widget.height() >= widget.minimumSizeHint().height()
        assert widget.width() >= widget.minimumSizeHint().width()


def test_the_sampling_is_said_shorter_where_it_has_no_room(console, qtbot) -> None:
    one = console(replace(SCRIPTS["thinking"], round_ms=3.0))
    button = one.chat.composer.sampling
    assert button.text() == " greedy · up to 512 tok"
    one.window.resize(one.window.minimumSize())
    qtbot.wait(50)
    assert button.text() == " greedy · 512 tok"
    assert "up to 512 tok" in button.toolTip()
    button._take(replace(button.value, speculate=False))
    qtbot.wait(50)
    assert button.text() == " no speculation"
    assert button.width() >= button.minimumSizeHint().width()
    one.window.resize(1320, 860)
    qtbot.wait(50)
    assert button.text() == " greedy · up to 512 tok · no speculation"


def test_fields_of_the_sampling_show_their_values(console, qtbot) -> None:
    one = console()
    popover = one.chat.composer.sampling.popover
    one.chat.composer.sampling._open()
    qtbot.wait(20)
    for field in (popover.temperature, popover.seed, popover.max_tokens):
        text = field.lineEdit()
        assert text.width() > text.fontMetrics().horizontalAdvance(text.text())
    popover.hide()


def test_the_figures_of_an_answer_are_readable_in_the_smallest_window(console, qtbot) -> None:
    one = console(Script(answer="ok", round_ms=3.0))
    one.window.resize(900, 600)
    one.ask("hello")
    qtbot.wait(50)
    figures = one.answer.figures
    assert "stopped: end of answer" in figures.text()
    assert figures.height() >= figures.heightForWidth(figures.width())


def test_the_live_panel_says_who_drafted(console, qtbot) -> None:
    one = console(Script(round_ms=3.0))
    one.ask("hello")
    one.wait(lambda: one.window.live.drafters.texts != ["—"] * 4)
    shares = [int(text.removesuffix(" %")) for text in one.window.live.drafters.texts]
    assert 99 <= sum(shares) <= 101
    assert "MTP" in one.window.live.drafters.accessibleName()
    assert one.window.live.route.text().startswith("Router: not available: ")


def test_a_copied_report_says_so(console) -> None:
    one = console()
    card = ErrorCard(ErrorReport("Refused", "a cause", "kept", "a step"), one.bridge.snapshot)
    card.copy_button.click()
    assert "Cause: a cause" in QGuiApplication.clipboard().text()
    assert card.copy_button.text() == "Report copied"
    card.deleteLater()
