# SPDX-License-Identifier: MIT OR Apache-2.0
"""Renders the real window to PNG files, without a display: on the scripted engine, or on a real model.

    python ops/screenshots.py OUT_DIR [--scale 1] [--size 1320x860] [--model DIR] [--ask TEXT]
    python ops/screenshots.py assets/screenshots --model demo   # the README's pictures, on a quiet machine

Each scale needs a process of its own; `--scale` sets it. Settings and runs go into a temporary folder.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

_SWITCH = "QWEN38_VERIFY_GRAPH"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--theme", default="light,dark")
    parser.add_argument("--model", help="a model folder, or 'demo' for the shipped one")
    parser.add_argument("--ask", default="Why is decoding memory bound?")
    parser.add_argument("--size", default="1320x860")
    parser.add_argument("--pairs", type=int, default=10, help="of the A/B on a real model")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer of that A/B")
    parser.add_argument("--only", default="", help="comma-separated scene names")
    options = parser.parse_args()
    os.environ["QT_QPA_PLATFORM"] = "offscreen"
    os.environ["QT_SCALE_FACTOR"] = f"{options.scale:g}"
    options.out.mkdir(parents=True, exist_ok=True)

    from PySide6.QtCore import QSettings
    from PySide6.QtWidgets import QApplication

    from app.interpreter import SWITCH_INTERVAL_S
    from app.theme import Theme

    sys.setswitchinterval(SWITCH_INTERVAL_S)
    app = QApplication(["rondo"])
    theme = Theme(app, "light")
    scenes = _real_scenes(options) if options.model else _scripted_scenes()
    wanted = set(filter(None, options.only.split(",")))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_DATA_HOME"] = os.environ["XDG_CONFIG_HOME"] = folder
        for name, script, play in scenes:
            if wanted and name not in wanted:
                continue
            store = QSettings(f"{folder}/{name}.ini", QSettings.Format.IniFormat)
            _shoot(app, theme, store, options, name, script, play)
    return 0


def _shoot(app, theme, store, options, name, script, play) -> None:
    from app.bridge import Bridge
    from app.settings import Settings
    from app.window import Window
    from engine.api import open_handle
    from engine.fake import FakeEngine

    bridge = Bridge(open_handle if script is None else lambda: FakeEngine(script))
    window = Window(bridge, theme, Settings(store))
    window.resize(*map(int, options.size.split("x")))
    window.show()
    bridge.start()
    play(app, window)
    for choice in options.theme.split(","):
        theme.set_choice(choice)
        _spin(app, 0.7)
        scale = "" if options.scale == 1 and script is None else f"-{options.scale:g}x"
        path = options.out / f"{name}-{choice}{scale}.png"
        window.grab().save(str(path))
        print(path)
    window.close()
    window.deleteLater()
    _spin(app, 0.1)


def _spin(app, seconds: float, until=None) -> None:
    """Let the window run for a time, or until a condition holds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not (until and until()):
        app.processEvents()
        time.sleep(0.005)


def _load(app, window, path: str = "") -> None:
    bridge = window.bridge
    bridge.load(path) if path else bridge.load_demo()
    _spin(app, 120.0, lambda: not bridge.loading_path)
    _spin(app, 0.3, lambda: not bridge.is_busy)


def _ask(app, window, text: str, *, wait_s: float = 120.0) -> None:
    window.chat.composer.set_text(text)
    window.chat.send()
    _spin(app, wait_s, lambda: not window.bridge.is_busy)


def _scripted_scenes():
    """(name, script, play) of each scene; `play` brings the window to where it is worth a picture."""
    from dataclasses import replace

    from engine.fake_compare import CompareScript
    from engine.fake_script import SCRIPTS

    question = "Why is decoding memory bound, and what can be done about it?"

    def empty(app, window) -> None:
        _load(app, window)

    def answered(app, window) -> None:
        _load(app, window)
        _ask(app, window, question)
        _ask(app, window, "And in one sentence?")

    def writing(app, window) -> None:
        _load(app, window)
        _ask(app, window, question)
        _ask(app, window, "Say that again, more slowly.", wait_s=1.2)

    def thinking(app, window) -> None:
        _load(app, window)
        _ask(app, window, question)
        window.chat.view.messages[-1].thinking.set_open(True)

    def prefill(app, window) -> None:
        _load(app, window)
        _ask(app, window, "A long prompt. " + "word " * 900, wait_s=4.0)

    def stall(app, window) -> None:
        _load(app, window)
        _ask(app, window, question, wait_s=5.0)

    def error(app, window) -> None:
        _load(app, window)
        _ask(app, window, question)

    def load_failure(app, window) -> None:
        _load(app, window, "models/first")
        _load(app, window, "models/broken")

    def loading(app, window) -> None:
        window.model_page.open("models/large")
        _spin(app, 2.0)

    def model(app, window) -> None:
        _load(app, window, "models/first")
        window.show_model()

    def kernels(app, window) -> None:
        _load(app, window)
        _ask(app, window, question)
        window.show_kernels()

    def live(app, window) -> None:
        answered(app, window)
        window.show_live()

    def knobs(app, window) -> None:
        _load(app, window)
        _mark(app, window)

    def compare(app, window) -> None:
        _load(app, window)
        window.candidate.mark(_SWITCH, "0")
        _compare(app, window, pairs=10, tokens=16)

    def runs(app, window) -> None:
        compare(app, window)
        _read_runs(app, window)

    quick = replace(SCRIPTS["demo"], compare=CompareScript(round_ms=0.5))
    slow = replace(SCRIPTS["slow-load"], load_s=60.0)
    broken = replace(SCRIPTS["load-failure"], fail_loads_after=1)
    return [
        ("empty", "demo", empty),
        ("answered", "demo", answered),
        ("writing", "demo", writing),
        ("thinking", "thinking", thinking),
        ("prefill", "slow-prefill", prefill),
        ("stall", "stall", stall),
        ("error", "error", error),
        ("load-failure", broken, load_failure),
        ("loading", slow, loading),
        ("model", "steady", model),
        ("kernels", "demo", kernels),
        ("live", "demo", live),
        ("knobs", "demo", knobs),
        ("compare", quick, compare),
        ("runs", quick, runs),
    ]


def _mark(app, window) -> None:
    """The knobs page with one switch chosen and marked as side B."""
    window.show_knobs()
    _spin(app, 0.3)
    window.knobs.select(_SWITCH)
    window.knobs.detail.editor.field.setChecked(False)
    window.knobs.detail.mark_box.click()
    _spin(app, 0.3)


def _compare(app, window, *, pairs: int, tokens: int) -> None:
    window.show_compare()
    form = window.compare.form
    form.pairs.setValue(pairs)
    form.tokens.setValue(tokens)
    window.compare.start()
    _spin(app, 900.0, lambda: not window.bridge.is_comparing)


def _read_runs(app, window) -> None:
    window.show_runs()
    window.runs.list.selectRow(0)
    _spin(app, 0.3)


def _real_scenes(options):
    """Pictures of a real model, taken late: after answers that compiled and warmed every kernel."""
    path = "" if options.model == "demo" else options.model
    asked = ("What is a round?", "How does speculative decoding work?", options.ask)

    def console(app, window) -> None:
        _load(app, window, path)
        for text in asked[:-1]:
            _ask(app, window, text)
        window.chat.new_chat()
        window.bridge.reset_kernel_table()
        _ask(app, window, asked[-1])

    def kernels(app, window) -> None:
        console(app, window)
        window.show_kernels()

    def knobs(app, window) -> None:
        console(app, window)
        _mark(app, window)

    def compare(app, window) -> None:
        console(app, window)
        window.candidate.mark(_SWITCH, "0")
        _compare(app, window, pairs=options.pairs, tokens=options.tokens)

    def runs(app, window) -> None:
        compare(app, window)
        window.candidate.replace({"QWEN38_MTP_DEPTH": "1"})
        _compare(app, window, pairs=options.pairs, tokens=options.tokens)
        _read_runs(app, window)

    return [
        ("console", None, console),
        ("kernels", None, kernels),
        ("knobs", None, knobs),
        ("compare", None, compare),
        ("runs", None, runs),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
