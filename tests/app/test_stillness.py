# SPDX-License-Identifier: MIT OR Apache-2.0
"""Nothing moves while an answer is written, a tick stays cheap, and both themes render at both scales."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PySide6.QtWidgets import QWidget

from app.live.figures import Figure
from engine.fake_script import Script

ROOT = Path(__file__).resolve().parents[2]


def _places(window: QWidget) -> dict[QWidget, tuple[int, int, int, int]]:
    """Place of everything visible outside the scrolling conversation, in window coordinates."""
    inside = set(window.chat.view.widget().findChildren(QWidget))
    places = {}
    for widget in window.findChildren(QWidget):
        if widget.isVisible() and widget not in inside and widget is not window.chat.view.widget():
            if "scrollbar" in widget.objectName() or "ScrollBar" in type(widget).__name__:
                continue
            at = widget.mapTo(window, widget.rect().topLeft())
            places[widget] = (at.x(), at.y(), widget.width(), widget.height())
    return places


def test_nothing_moves_while_an_answer_is_written(console, qtbot) -> None:
    one = console(Script(repeat=60, round_ms=4.0, committed=(1, 4, 2, 3)))
    one.chat.composer.sampling.popover.max_tokens.setValue(100_000)
    one.ask("go", wait=False)
    one.wait(lambda: one.bridge.snapshot.state == "writing" and one.engine.ring.count > 3)
    before = _places(one.window)
    assert len(before) > 40
    end = time.monotonic() + 3.0
    seen_values = set()
    while time.monotonic() < end:
        qtbot.wait(150)
        seen_values.add(one.window.live.decode.value)
        now = _places(one.window)
        assert set(now) == set(before), "a widget appeared or went away"
        moved = {
            type(widget).__name__: (before[widget], now[widget])
            for widget in before
            if any(abs(a - b) > 1 for a, b in zip(before[widget], now[widget], strict=True))
        }
        assert not moved
    assert one.bridge.snapshot.state == "writing"
    assert len(seen_values) > 2, "the figures were alive all the while"


def test_a_tick_is_cheap(console, qtbot) -> None:
    one = console(Script(repeat=60, round_ms=2.0))
    one.chat.composer.sampling.popover.max_tokens.setValue(100_000)
    one.ask("go", wait=False)
    one.wait(lambda: one.bridge.snapshot.state == "writing")
    # The thread's own time: what else runs on the machine is not the console's cost.
    ticks: list[float] = []
    for _ in range(40):
        qtbot.wait(25)
        begun_s = time.thread_time()
        one.bridge.tick()
        ticks.append((time.thread_time() - begun_s) * 1e3)
    assert one.bridge.snapshot.state == "writing"
    assert statistics.median(ticks) < 3.0


def test_an_idle_console_pulls_four_times_a_second(console, qtbot) -> None:
    one = console(Script())
    qtbot.wait(1200)
    assert 2 <= one.bridge.ticks_per_second() <= 5


def test_a_figure_keeps_its_size(qtbot, theme) -> None:
    figure = Figure(theme, "Decode, tok/s", widest="88 888", big=True)
    qtbot.addWidget(figure)
    before = figure.sizeHint()
    for value in ("—", "3", "34 120"):
        figure.set_value(value, "note")
        assert figure.sizeHint() == before
    assert "34 120" in figure.accessibleName()


@pytest.mark.parametrize("scale", ["1", "2"])
def test_both_themes_render_without_a_warning(tmp_path: Path, scale: str) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            str(ROOT / "ops" / "screenshots.py"),
            str(tmp_path),
            "--scale",
            scale,
            "--only",
            "answered",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    noise = [
        line
        for line in (done.stderr + done.stdout).splitlines()
        if "propagateSizeHints" not in line and not line.endswith(".png")
    ]
    assert noise == []
    assert {path.name for path in tmp_path.glob("*.png")} == {
        f"answered-{choice}-{scale}x.png" for choice in ("light", "dark")
    }


def test_plots_rest_when_nothing_runs(console, qtbot, monkeypatch) -> None:
    one = console(Script(round_ms=4.0))
    one.ask("go")
    plot, drawn = one.window.live.tps_plot, []
    qtbot.wait(700)  # the last rounds are drawn
    monkeypatch.setattr(plot._curve, "setData", lambda *_: drawn.append(time.monotonic()))
    qtbot.wait(2600)
    assert 1 <= len(drawn) <= 2, "the curve moves on, but seldom"


def test_an_empty_plot_is_not_drawn_again(console, qtbot, monkeypatch) -> None:
    one = console(Script())
    plot, drawn = one.window.live.gbps_plot, []
    qtbot.wait(700)
    monkeypatch.setattr(plot._curve, "setData", lambda *_: drawn.append(time.monotonic()))
    qtbot.wait(2600)
    assert drawn == []
