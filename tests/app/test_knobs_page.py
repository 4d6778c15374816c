# SPDX-License-Identifier: MIT OR Apache-2.0
"""The knobs page: find, change, refuse, reset, mark, save."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtCore import QModelIndex, Qt
from PySide6.QtWidgets import QLabel

from app.knobs.candidate import Candidate
from app.knobs.detail import value_line
from app.knobs.model import SIDE_B, Heading, KnobModel
from engine.api import ErrorReport
from engine.fake_compare import CompareScript
from engine.fake_script import Script
from engine.knob_table import GROUPS

DEPTH, GRAPH, ISA = "QWEN38_MTP_DEPTH", "QWEN38_VERIFY_GRAPH", "QWEN38_CPU_ISA"


@pytest.fixture
def page(console: Callable):
    """The page of a loaded console, in view."""
    window = console().window
    window.show_knobs()
    return window.knobs


def row_of(page, name: str):
    return next(row for row in page.model.rows if row.name == name)


def choose(page, name: str) -> None:
    page.select(name)
    assert page.detail.row.name == name


def test_a_switch_is_chosen_by_keys_alone(page, qtbot) -> None:
    first, second = (row.name for row in page.model.rows[:2])
    page.view.setFocus()
    assert page.detail.row.name == first
    assert page.view.selectionModel().isRowSelected(page.view.currentIndex().row())
    qtbot.keyClick(page.view, Qt.Key.Key_Down)
    assert page.detail.row.name == second
    page.view.setCurrentIndex(QModelIndex())
    qtbot.keyClick(page.view, Qt.Key.Key_Down)
    assert page.detail.row.name == first
    page.search.setFocus()
    qtbot.keyClicks(page.search, DEPTH.removeprefix("QWEN38_"))
    qtbot.keyClick(page.search, Qt.Key.Key_Return)
    assert page.detail.row.name == page.filter.names()[0] == DEPTH
    assert page.window().focusWidget() is page.view


@pytest.mark.parametrize("name", [DEPTH, GRAPH, ISA, "QWEN38_SKINNY_TILES"])
def test_tab_comes_from_the_table_to_the_value_and_its_buttons(page, qtbot, name: str) -> None:
    for chosen in (DEPTH, name):
        choose(page, chosen)
    qtbot.waitUntil(lambda: all(control.isVisible() for control in page.detail.editor.controls))
    page.view.setFocus()
    walked = []
    while len(walked) < 8:
        qtbot.keyClick(page.window().focusWidget(), Qt.Key.Key_Tab)
        walked.append(page.window().focusWidget())
    detail = page.detail
    buttons = (detail.set_button, detail.reset_button, detail.mark_box)
    wanted = [*detail.editor.controls, *(button for button in buttons if button.isEnabled())]
    wanted = [widget for widget in wanted if widget.isEnabled()]
    assert wanted
    assert walked[: len(wanted)] == wanted


def test_a_switch_is_found_by_words_of_its_effect(page) -> None:
    page.search.setText("mtp drafts")
    names = page.filter.names()
    assert DEPTH in names
    assert len(names) < len(page.model.rows) / 4
    page.search.setText("no such words anywhere")
    assert page.filter.rowCount() == 0
    assert page.nothing.isVisible()
    page.search.setText("[(*\\ \u202e x" + "y" * 200_000)
    assert page.filter.names() == []
    page.search.clear()
    assert page.view.isVisible()


def test_groups_stand_under_headings_with_the_usable_switches_first(page) -> None:
    lines = page.model.lines
    heads = [number for number, line in enumerate(lines) if isinstance(line, Heading)]
    assert [lines[number].title for number in heads] == list(GROUPS.values())
    for begin, end in zip(heads, [*heads[1:], len(lines)], strict=True):
        usable = [row.available for row in lines[begin + 1 : end]]
        assert usable == sorted(usable, reverse=True)
        assert lines[begin].available == sum(usable)
        assert lines[begin].total == len(usable) > 0
    assert page.groups.itemText(1) == GROUPS["verify"]
    page.groups.setCurrentText(GROUPS["router"])
    assert page.filter.index(0, 0).data().startswith("Router")
    assert page.view.columnSpan(0, 0) == page.model.columnCount()
    assert {row_of(page, name).group for name in page.filter.names()} == {GROUPS["router"]}


def test_the_keyboard_steps_over_headings(page, qtbot) -> None:
    last = page.model.lines[: page.model.line_of(DEPTH) - 1][-1]
    choose(page, last.name)
    page.view.setFocus()
    qtbot.keyClick(page.view, Qt.Key.Key_Down)
    assert page.detail.row.name == DEPTH


@pytest.mark.parametrize(
    ("value", "source", "default", "served", "said"),
    [
        ("3", "default", "3", "3", "3  ·  default"),
        ("1", "profile", "1", "1", "1  ·  profile  ·  the default too"),
        ("2", "caller", "3", "3", "2  ·  set here  ·  default 3"),
        ("2", "caller", "3", "4", "2  ·  set here  ·  default 3  ·  served 4"),
        ("", "default", "", "", "(empty)  ·  default"),
    ],
)
def test_a_value_is_told_without_repeating_it(page, value, source, default, served, said) -> None:
    row = replace(row_of(page, DEPTH), value=value, source=source, default=default, served=served)
    assert value_line(row) == said


def test_only_changed_switches_are_listed_when_asked(page, console, qtbot) -> None:
    choose(page, DEPTH)
    page.detail.editor.field.setValue(1)
    page.detail.set_button.click()
    qtbot.waitUntil(lambda: row_of(page, DEPTH).value == "1")
    page.changed_only.setChecked(True)
    assert page.filter.names() == [DEPTH]


def test_a_change_is_applied_and_its_source_is_told(page, qtbot) -> None:
    choose(page, DEPTH)
    assert page.detail.editor.field.maximum() == 4
    page.detail.editor.field.setValue(2)
    page.detail.set_button.click()
    qtbot.waitUntil(lambda: row_of(page, DEPTH).value == "2")
    assert row_of(page, DEPTH).source == "caller"
    assert not page.detail.set_button.isEnabled()
    page.reset_button.click()
    qtbot.waitUntil(lambda: row_of(page, DEPTH).value == row_of(page, DEPTH).default)


def test_what_is_not_available_says_why_and_cannot_be_edited(page) -> None:
    missing = next(row for row in page.model.rows if not row.available)
    choose(page, missing.name)
    assert missing.reason in page.detail.reason.text()
    assert not page.detail.editor.isEnabled()
    assert not page.detail.mark_box.isEnabled()


def test_a_reload_switch_says_so(page) -> None:
    choose(page, ISA)
    assert page.detail.set_button.text() == "Set and reload"


def test_a_value_is_marked_as_side_b_and_follows_the_field(page) -> None:
    candidate: Candidate = page.detail._candidate
    choose(page, DEPTH)
    assert not page.detail.mark_box.isEnabled()  # the present value is side A
    page.detail.editor.field.setValue(1)
    page.detail.mark_box.click()
    assert candidate.values == {DEPTH: "1"}
    page.detail.editor.field.setValue(2)
    assert candidate.values == {DEPTH: "2"}
    assert page.compare_button.text() == "Compare with B (1)"
    page.detail.mark_box.click()
    assert candidate.values == {}


def test_a_mark_shows_in_the_table(page) -> None:
    page.detail._candidate.mark(GRAPH, "0")
    model: KnobModel = page.model
    assert model.index(model.line_of(GRAPH), SIDE_B).data(Qt.ItemDataRole.DisplayRole) == "0"


def test_a_profile_is_saved_and_a_bad_folder_is_an_error_card(page, qtbot, tmp_path: Path) -> None:
    choose(page, DEPTH)
    page.detail.editor.field.setValue(2)
    page.detail.set_button.click()
    qtbot.waitUntil(lambda: row_of(page, DEPTH).value == "2")
    page.save_profile(str(tmp_path / "mine.env"))
    assert f"{DEPTH}=2" in (tmp_path / "mine.env").read_text("utf-8")
    assert page.notice.isVisible()
    page.save_profile(str(tmp_path / "mine.env" / "inside.env"))
    assert page.errors.card is not None
    assert page.errors.card.report.cause
    assert page.errors.card.report.title == "This could not be done", "nothing stopped"


def test_the_switches_rest_while_an_ab_is_timed(console) -> None:
    one = console(Script("compare", compare=CompareScript(round_ms=0.5)))
    one.window.candidate.mark(GRAPH, "0")
    one.window.compare.form.pairs.setValue(200)
    one.window.show_knobs()
    page = one.window.knobs
    choose(page, DEPTH)
    page.detail.editor.field.setValue(1)
    assert page.detail.set_button.isEnabled()
    one.window.compare.start()
    one.wait(lambda: one.bridge.snapshot.state == "comparing")
    rows = page.model.rows
    page.refresh()
    assert page.model.rows is rows
    assert page.notice_comparing.isVisible()
    assert not page.detail.set_button.isEnabled()
    one.window.stop()
    one.wait(lambda: not one.bridge.is_busy)
    assert not page.notice_comparing.isVisible()
    assert page.detail.set_button.isEnabled()


def test_the_chosen_switch_stays_whole_in_the_smallest_window(console, qtbot) -> None:
    window = console().window
    window.resize(900, 600)
    window.show_knobs()
    choose(window.knobs, DEPTH)
    window.knobs.errors.show_report(ErrorReport("Refused", "a cause", "kept", "a step"))
    qtbot.wait(50)
    labels = window.knobs.detail.findChildren(QLabel)
    shown = [label for label in labels if label.isVisible() and label.text()]
    assert len(shown) > 6
    for label in shown:
        assert label.height() >= label.fontMetrics().height(), label.text()
