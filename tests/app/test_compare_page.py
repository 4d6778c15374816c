# SPDX-License-Identifier: MIT OR Apache-2.0
"""The compare page and the runs page on the scripted engine: start, follow, stop, refuse, keep, run again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtGui import QGuiApplication

from app.compare.plot import difference_pct
from engine.api import ComparePair
from engine.fake_compare import CompareScript
from engine.fake_script import Script

GRAPH = "QWEN38_VERIFY_GRAPH"
FAST = 0.05  # ms of a scripted round


@pytest.fixture(autouse=True)
def _own_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture
def comparing(console: Callable):
    """Makes a console on a scripted A/B, with side B marked and the fewest pairs asked for."""

    def make(**script):
        one = console(Script("compare", compare=CompareScript(round_ms=FAST, **script)))
        one.window.candidate.mark(GRAPH, "0")
        one.window.show_compare()
        one.window.compare.form.pairs.setValue(6)
        one.window.compare.form.tokens.setValue(8)
        return one

    return make


def run(one):
    page = one.window.compare
    page.start()
    one.wait(lambda: not one.bridge.is_comparing)
    return page


def test_nothing_marked_means_nothing_to_start(console) -> None:
    page = console().window.compare
    assert not page.start_button.isEnabled()
    assert "knobs page" in page.start_button.toolTip()


def test_an_ab_is_measured_and_answered_in_words(comparing) -> None:
    one = comparing(effect_pct=-5.0, noise_pct=0.1)
    page = run(one)
    assert page.view.headline.text().startswith("▲  B is faster by ")
    assert page.view.report.n_pairs == 6
    assert page.view.tokens.text().startswith("✓")
    page.view.copy_text()
    text = QGuiApplication.clipboard().text()
    assert f"B: {GRAPH}=0" in text
    assert "unaccounted" in text
    assert page.start_button.isEnabled()


def test_the_dots_are_the_pairs_of_the_report(comparing) -> None:
    page = run(comparing(effect_pct=3.0, noise_pct=0.1))
    dots = [spot.pos().y() for spot in page.view.plot._dots.points()]
    assert dots == pytest.approx([difference_pct(pair) for pair in page.view.report.pairs])
    assert page.view.headline.text().startswith("▼  B is slower by ")


def test_a_difference_is_in_percent_of_the_base() -> None:
    pair = ComparePair(0, "AB", base_ms=10.0, candidate_ms=10.2, log_ratio=0.019802627296)
    assert difference_pct(pair) == pytest.approx(2.0)


def test_different_texts_are_called_invalid(comparing) -> None:
    page = run(comparing(same_text=False))
    assert "Not a valid comparison" in page.view.headline.text()
    assert page.view.tokens.text().startswith("✕")


def test_stop_keeps_the_pairs_so_far(comparing) -> None:
    one = comparing()
    one.window.compare.form.pairs.setValue(200)
    page = one.window.compare
    page.start()
    one.wait(lambda: len(page.view.plot._pairs) >= 1)
    one.window.stop()
    one.wait(lambda: not one.bridge.is_comparing)
    assert page.view.report.planned_pairs == 200
    assert 1 <= page.view.report.n_pairs < 200


def test_the_display_is_quiet_while_an_ab_is_timed(comparing) -> None:
    one = comparing()
    one.window.compare.form.pairs.setValue(100)
    one.window.compare.start()
    one.wait(lambda: one.bridge.snapshot.state == "comparing")
    assert one.bridge._timer.interval() == 500
    one.window.stop()
    one.wait(lambda: not one.bridge.is_comparing)
    assert one.bridge._timer.interval() != 500


def test_a_run_is_kept_labelled_run_again_and_deleted(comparing) -> None:
    one = comparing(effect_pct=-5.0, noise_pct=0.1)
    run(one)
    one.window.show_runs()
    page = one.window.runs
    assert page.model.rowCount() == 1
    page.list.selectRow(0)
    assert page.report.report.n_pairs == 6
    page.set_label("graphs off")
    assert page.model.index(0, 2).data() == "graphs off"
    page.rerun_button.click()
    one.wait(lambda: one.bridge.is_comparing)
    one.wait(lambda: not one.bridge.is_comparing)
    one.window.show_runs()
    assert page.model.rowCount() == 2
    page.list.selectAll()
    assert page.detail.currentIndex() == 3
    page.delete_selected()
    assert page.model.rowCount() == 0


def test_runs_are_exported_and_a_bad_folder_is_an_error_card(comparing, tmp_path: Path) -> None:
    one = comparing()
    run(one)
    one.window.show_runs()
    page = one.window.runs
    page.list.selectRow(0)
    (tmp_path / "out").mkdir()
    page.export(str(tmp_path / "out"))
    assert page.errors.card is None
    assert list((tmp_path / "out").rglob("*.csv"))
    (tmp_path / "file").write_text("in the way")
    page.export(str(tmp_path / "file" / "inside"))
    assert page.errors.card is not None
