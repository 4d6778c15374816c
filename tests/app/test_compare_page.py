# SPDX-License-Identifier: MIT OR Apache-2.0
"""The compare page and the runs page on the scripted engine: start, follow, stop, refuse, keep, run again."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QScrollArea, QStyle, QStyleOptionComboBox

from app.compare import text
from app.compare.plot import difference_pct, tick_text
from engine.api import ComparePair, CompareProgress
from engine.fake_compare import CompareScript
from engine.fake_script import Script

GRAPH, DEPTH = "QWEN38_VERIFY_GRAPH", "QWEN38_MTP_DEPTH"
ISA, CORPUS = "QWEN38_CPU_ISA", "QWEN38_CORPUS"
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
    assert " %" in page.view.report.reason
    assert page.view.reason.text() == page.view.report.reason.replace(" %", "\u00a0%")
    assert page.view.tokens.text().startswith("✓")
    page.view.copy_text()
    copied = QGuiApplication.clipboard().text()
    assert f"B: {GRAPH}=0" in copied
    assert "unaccounted" in copied
    assert "out-of-domain" in copied
    assert page.start_button.isEnabled()


def test_the_dots_are_the_pairs_of_the_report(comparing) -> None:
    page = run(comparing(effect_pct=3.0, noise_pct=0.1))
    dots = page.view.plot.dots()
    assert [number for number, _ in dots] == [1, 2, 3, 4, 5, 6]
    wanted = [difference_pct(pair) for pair in page.view.report.pairs]
    assert [height for _, height in dots] == pytest.approx(wanted)
    assert page.view.headline.text().startswith("▼  B is slower by ")


def test_a_difference_is_in_percent_of_the_base() -> None:
    pair = ComparePair(0, "AB", base_ms=10.0, candidate_ms=10.2, log_ratio=0.019802627296)
    assert difference_pct(pair) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.0, "0"), (0.87, "+0.87"), (-3.62, "-3.6"), (47.3, "+47"), (-1320.4, "-1\u202f320")],
)
def test_the_axis_is_written_without_exponents(value, said) -> None:
    assert tick_text(value) == said


def test_what_is_compared_is_told_before_the_start(console) -> None:
    one = console()
    form = one.window.compare.form
    one.window.candidate.replace({GRAPH: "0", DEPTH: "3", ISA: "avx2", "QWEN38_HOST_ASYNC": "1"})
    one.window.show_compare()
    by_name = {line[0]: line[1:] for line in form.sides.lines()}
    assert by_name[GRAPH] == ("1", "0", "")
    assert by_name[DEPTH] == ("3", "3", "◆ the same on both sides")
    assert by_name[ISA][:2] == ("(empty)", "avx2")
    assert "loaded anew" in by_name[ISA][2]
    assert "not available" in by_name["QWEN38_HOST_ASYNC"][2]
    one.window.candidate.replace({GRAPH: "0"})
    one.bridge.set_knobs({GRAPH: "0"})
    one.wait(lambda: form.sides.lines() == [(GRAPH, "0", "0", "◆ the same on both sides")])


def test_a_prompt_of_ones_own_has_to_be_written(comparing) -> None:
    one = comparing()
    page = one.window.compare
    page.form.workload.setCurrentIndex(page.form.workload.findData("prompt"))
    assert not page.start_button.isEnabled()
    assert "prompt" in page.start_button.toolTip()
    page.form.prompt.setPlainText("Count to three.")
    assert page.start_button.isEnabled()
    assert page.form.request().prompt == "Count to three."


def test_a_against_a_measures_the_noise(comparing) -> None:
    one = comparing(effect_pct=-5.0)
    page = one.window.compare
    page.form.same.setChecked(True)
    run(one)
    report = page.view.report
    assert dict(report.request.candidate) == {}
    assert report.verdict == "not resolved"
    assert "A against A" in page.view.sides.text()
    assert not page.use_button.isVisible()


def test_side_b_is_put_in_effect_with_one_click(comparing) -> None:
    one = comparing(effect_pct=-5.0, noise_pct=0.1)
    page = run(one)
    assert page.use_button.isVisible()
    page.use_button.click()
    one.wait(lambda: page.notice.isVisible())
    assert page.notice.text() == f"✓ In effect: {GRAPH}=0"
    assert next(row for row in one.bridge.knobs() if row.name == GRAPH).value == "0"
    assert one.window.candidate.values == {}
    assert not page.use_button.isEnabled()


def test_what_only_a_reload_changes_is_not_put_in_effect(comparing) -> None:
    one = comparing()
    one.window.candidate.replace({ISA: "avx2"})
    page = run(one)
    assert page.view.report.reloaded
    assert not page.use_button.isEnabled()
    assert "reload" in page.use_button.toolTip()


def test_every_class_of_prompt_has_a_line(comparing) -> None:
    page = run(comparing(effect_pct=-5.0, noise_pct=0.1))
    rows = page.view._workloads._rows
    assert [row[0] for row in rows] == ["in-domain", "copy", "edit", "out-of-domain"]
    for row, result in zip(rows, page.view.report.workloads, strict=True):
        assert row[4] == f"{100 * (result.ratio_median - 1):+.2f} %"
        assert row[8] == "same"


def test_a_cancelled_run_tells_the_switches_it_ran_with(comparing) -> None:
    one = comparing()
    one.bridge.set_knobs({DEPTH: "1"})
    one.wait(lambda: any(r.name == DEPTH and r.value == "1" for r in one.bridge.knobs()))
    one.window.compare.form.pairs.setValue(200)
    page = one.window.compare
    page.start()
    one.wait(lambda: one.bridge.snapshot.state == "comparing")
    one.window.stop()
    one.wait(lambda: not one.bridge.is_comparing)
    report = page.view.report
    notes = page.view._notes.text()
    assert f"Switches of A: {text.switches(report.base_knobs)}" in notes
    assert f"Switches of B: {text.switches(report.candidate_knobs)}" in notes


def test_a_new_pair_is_drawn_within_a_tick(console, qtbot) -> None:
    one = console()
    one.window.show_compare()
    view = one.window.compare.view
    view.show()
    pairs = tuple(
        ComparePair(
            n, "AB" if n % 2 else "BA", 10.0, 10.1, 0.01 * (n % 7), outlier="" if n % 9 else "far"
        )
        for n in range(200)
    )
    view.show_progress(CompareProgress(8, 200, "pair 8 of 200", pairs[:8]))
    times_ms = []
    for count in range(180, 200):
        begin = time.thread_time()
        view.show_progress(CompareProgress(count, 200, "a pair", pairs[:count]))
        times_ms.append((time.thread_time() - begin) * 1e3)
        qtbot.wait(1)
    assert len(view.plot.dots()) == 199
    assert statistics.median(times_ms) < 3.0


def test_one_tick_draws_the_last_of_its_reports_only(console, monkeypatch) -> None:
    one = console()
    page, drawn = one.window.compare, []
    monkeypatch.setattr(page.view, "show_progress", drawn.append)
    reports = [CompareProgress(n, 9, "a pair") for n in range(5)]
    for report in reports:
        one.bridge.compare_progressed.emit(0, report)
    one.wait(lambda: bool(drawn))
    assert drawn == [reports[-1]]


def test_nothing_is_cut_off_in_the_smallest_window(comparing, qtbot) -> None:
    one = comparing(effect_pct=-5.0, noise_pct=0.1)
    one.window.resize(900, 600)
    page = run(one)
    one.window.candidate.replace({GRAPH: "0", CORPUS: "/a/long/path/to/some/corpus/that/goes/on"})
    qtbot.wait(50)
    scroll = page.findChild(QScrollArea)
    assert scroll.widget().width() <= scroll.viewport().width()
    workload = page.form.workload
    option = QStyleOptionComboBox()
    workload.initStyleOption(option)
    field = workload.style().subControlRect(
        QStyle.ComplexControl.CC_ComboBox, option, QStyle.SubControl.SC_ComboBoxEditField, workload
    )
    wide = workload.fontMetrics().horizontalAdvance
    assert all(wide(workload.itemText(n)) <= field.width() for n in range(workload.count()))


def test_different_texts_are_called_invalid(comparing) -> None:
    page = run(comparing(same_text=False))
    assert "Not a valid comparison" in page.view.headline.text()
    assert page.view.tokens.text().startswith("✕")


def test_a_run_without_a_pair_has_notes_alone(comparing) -> None:
    page = run(comparing())
    view = page.view
    assert [view.tabs.isTabVisible(n) for n in range(4)] == [True] * 4
    view.copy_text()
    assert "B against A" in QGuiApplication.clipboard().text()
    bare = replace(
        view.report,
        pairs=(),
        base=None,
        candidate=None,
        kernels=(),
        workloads=(),
        verdict="invalid",
    )
    view.show_report(bare)
    assert [view.tabs.isTabVisible(n) for n in range(4)] == [False, False, False, True]
    assert view.tabs.currentIndex() == 3
    view.show_report(replace(bare, verdict="cancelled", n_pairs=0, not_stored="No pair."))
    view.copy_text()
    copied = QGuiApplication.clipboard().text()
    for words in ("B against A", "the same tokens", "figures of a pair"):
        assert words not in copied
    assert "Figures of a pair" not in view._notes.text()
    assert copied.endswith("not stored: No pair.\n")


def test_a_run_without_a_pair_is_not_exported_and_says_why(comparing) -> None:
    one = comparing()
    page = one.window.compare
    run(one)
    assert page.export_button.isEnabled()
    whole = page.view.report
    page._show_report(replace(whole, verdict="cancelled", n_pairs=0, pairs=()))
    why = "No pair was complete, so there are no figures to export"
    assert page.export_button.isVisible()
    assert (page.export_button.isEnabled(), page.export_button.toolTip()) == (False, why)
    one.window.export()
    assert page._dialog is None
    assert (page.notice.isVisible(), page.notice.text()) == (True, why)
    page._show_report(whole)
    assert (page.export_button.isEnabled(), page.export_button.toolTip()) == (True, "")


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
    page.reload()
    assert len(page.selected()) == 2
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
