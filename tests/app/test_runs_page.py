# SPDX-License-Identifier: MIT OR Apache-2.0
"""The runs page with an empty store, damaged files, many runs and long labels."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace

import pytest
from PySide6.QtCore import Qt

from app.runs.page import _WHOLE_ROW
from app.runs.text import COLUMNS, summary_row
from engine.api import RunSummary
from engine.fake_compare import CompareScript
from engine.fake_script import Script

STORED = RunSummary(
    "1", "bench", "2026-11-30T23:46:00+00:00", "", "qwen3.8-27b:8", "a processor", "4 cases, 13 s", ""
)  # fmt: skip
CTRL = Qt.KeyboardModifier.ControlModifier


@pytest.fixture
def stored(console: Callable):
    """Makes a console with one stored A/B, multiplied to `count` runs; returns it and the store's folder."""

    def make(count: int = 1):
        one = console(Script("compare", compare=CompareScript(round_ms=0.05)))
        one.window.candidate.mark("QWEN38_VERIFY_GRAPH", "0")
        form = one.window.compare.form
        form.pairs.setValue(6)
        form.tokens.setValue(8)
        one.window.compare.start()
        one.wait(lambda: not one.bridge.is_comparing)
        folder = one.engine._folder / "runs"
        first = next(path for path in folder.iterdir() if path.name[0].isdigit())
        for number in range(1, count):
            shutil.copytree(first, folder / f"20200101T000000Z-{number:06x}")
        one.window.show_runs()
        return one, folder

    return make


def test_an_empty_store_says_how_runs_come_about(console) -> None:
    one = console()
    one.window.show_runs()
    page = one.window.runs
    assert "compare page" in page.words.text()
    assert not page.list.isVisible()
    for button in buttons(page):
        assert not button.isEnabled()
        assert button.toolTip() == "There is no stored run yet"
    one.window.export()
    assert page.notice.isVisible()
    assert page.notice.text() == "There is no stored run yet."


def test_a_button_without_effect_says_why(stored) -> None:
    one, folder = stored(3)
    (folder / "20200101T000000Z-000001" / "summary.json").write_text("{broken")
    (folder / "20200101T000000Z-000001" / "run.json").write_text("")
    page = one.window.runs
    page.reload()

    def why_not() -> list[str]:
        """The reasons of label, run again, export and delete; empty for one that has an effect."""
        assert all(button.isEnabled() == (not button.toolTip()) for button in buttons(page))
        return [button.toolTip().split(" ")[0] for button in buttons(page)]

    def choose(*rows: int) -> list[str]:
        page.list.clearSelection()
        for row in rows:
            page.list.selectionModel().select(page.model.index(row, 0), _WHOLE_ROW)
        return why_not()

    damaged = [summary.damaged != "" for summary in page._summaries].index(True)
    sound = [row for row in range(3) if row != damaged]
    one_run = "Choose one run in the list first"
    assert choose() == ["Choose"] * 4
    assert page.label_button.toolTip() == page.rerun_button.toolTip() == one_run
    assert page.export_button.toolTip() == "Choose one or more runs in the list first"
    one.window.export()
    assert page.notice.text() == "Choose one or more runs in the list first."
    assert choose(sound[0]) == ["", "", "", ""]
    assert not page.notice.isVisible()
    assert choose(*sound) == ["Choose", "Choose", "", ""]
    assert choose(damaged) == ["What", "What", "What", ""]
    assert choose() == ["Choose"] * 4
    one.window.export()
    assert choose(damaged, *sound) == ["Choose", "Choose", "", ""]
    assert not page.notice.isVisible()
    page._list([replace(page._summaries[sound[0]], kind="bench")], 1, set())
    page.list.selectionModel().blockSignals(True)
    page.list.selectRow(0)
    page._refresh_buttons()
    assert page.rerun_button.toolTip().startswith("A bench runs again")


def buttons(page) -> tuple:
    return (page.label_button, page.rerun_button, page.export_button, page.delete_button)


def test_older_runs_are_shown_when_asked_and_the_choice_stays(stored) -> None:
    one, _ = stored(250)
    page = one.window.runs
    assert page.model.rowCount() == 200
    page.list.selectRow(3)
    chosen = page.selected()
    page.older_button.click()
    assert page.model.rowCount() == 250
    assert page.selected() == chosen
    assert not page.older_button.isVisible()
    one.window.show_chat()
    one.window.show_runs()
    assert page.model.rowCount() == 200
    assert page.selected() == chosen


def test_a_damaged_run_is_listed_as_such_and_can_be_deleted(stored) -> None:
    one, folder = stored(3)
    (folder / "20200101T000000Z-000001" / "summary.json").write_text("{broken")
    (folder / "20200101T000000Z-000001" / "run.json").write_text("")
    page = one.window.runs
    page.reload()
    line = [summary.damaged != "" for summary in page._summaries].index(True)
    assert page.model.index(line, 1).data() == "damaged"
    assert page.model.index(line, 3).data().startswith("✕ cannot be read: ")
    page.list.selectRow(0)
    assert page.detail.currentIndex() == 1
    page.list.selectRow(line)
    assert page.detail.currentIndex() == 0, "the report of the run before must not stand there"
    assert not page.rerun_button.isEnabled()
    page.delete_selected()
    assert page.model.rowCount() == 2


def test_no_kind_of_run_is_cut(console) -> None:
    one = console()
    one.window.show_runs()
    page = one.window.runs
    page.model.set_rows(
        [summary_row(summary) for summary in (STORED, replace(STORED, damaged="no end"))]
    )
    for column, name in enumerate(COLUMNS):
        if name in ("When", "Kind", "Model"):
            assert page.list.sizeHintForColumn(column) <= page.list.columnWidth(column), name


def test_a_long_label_is_cut_and_the_list_read_once(stored) -> None:
    one, _ = stored(2)
    page = one.window.runs
    page.list.selectRow(0)
    page.set_label("long label\n" * 1_000_000)
    label = page.model.index(0, 2).data()
    assert label.startswith("long label long label")
    assert len(label) == 200
    assert len(page.selected()) == 1


def test_a_run_that_was_deleted_elsewhere_is_an_error_card(stored) -> None:
    one, folder = stored(2)
    page = one.window.runs
    page.list.selectRow(1)
    shutil.rmtree(folder / page.selected()[0])
    page.set_label("gone")
    assert page.errors.card is not None


def test_ctrl_e_exports_what_is_in_view(stored, qtbot) -> None:
    one, _ = stored()
    page = one.window.runs
    page.list.selectRow(0)
    qtbot.keyClick(one.window, Qt.Key.Key_E, CTRL)
    assert page._dialog.isVisible()
    page._dialog.close()
    one.window.show_compare()
    qtbot.keyClick(one.window, Qt.Key.Key_E, CTRL)
    assert one.window.page == "compare"
    assert one.window.compare._dialog.isVisible()
    one.window.compare._dialog.close()


def test_the_keyboard_follows_the_page(console, qtbot) -> None:
    one = console()
    qtbot.keyClick(one.window, Qt.Key.Key_4, CTRL)
    assert one.window.focusWidget() is one.window.knobs.search
    qtbot.keyClick(one.window, Qt.Key.Key_5, CTRL)
    assert one.window.focusWidget() is one.window.compare.form.workload
    qtbot.keyClick(one.window, Qt.Key.Key_F, CTRL)
    assert one.window.focusWidget() is one.window.knobs.search
    one.chat.composer.field.setFocus()
    qtbot.keyClick(one.window, Qt.Key.Key_1, CTRL)
    assert one.window.focusWidget() is one.chat.composer.field
