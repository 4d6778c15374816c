# SPDX-License-Identifier: MIT OR Apache-2.0
"""The knobs page: find, change, refuse, reset, mark, save."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import Qt

from app.knobs.candidate import Candidate
from app.knobs.model import KnobModel

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


def test_a_switch_is_found_by_words_of_its_effect(page) -> None:
    page.search.setText("mtp drafts")
    names = [page.filter.index(row, 0).data() for row in range(page.filter.rowCount())]
    assert "MTP_DEPTH" in names
    assert len(names) < len(page.model.rows) / 4
    page.search.setText("no such words anywhere")
    assert page.filter.rowCount() == 0


def test_only_changed_switches_are_listed_when_asked(page, console, qtbot) -> None:
    choose(page, DEPTH)
    page.detail.editor.field.setValue(1)
    page.detail.set_button.click()
    qtbot.waitUntil(lambda: row_of(page, DEPTH).value == "1")
    page.changed_only.setChecked(True)
    assert [page.filter.index(r, 0).data() for r in range(page.filter.rowCount())] == ["MTP_DEPTH"]


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
    number = [row.name for row in model.rows].index(GRAPH)
    assert model.index(number, 3).data(Qt.ItemDataRole.DisplayRole) == "0"


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
