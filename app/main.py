# SPDX-License-Identifier: MIT OR Apache-2.0
"""Brings the window up: application, theme, window, and only then the engine."""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil
from PySide6.QtCore import QDir, QStandardPaths, QTimer
from PySide6.QtWidgets import QApplication

from app.bridge import Bridge
from app.settings import Settings
from app.theme import Theme
from app.window import Window
from engine.api import EngineHandle, open_handle

# With the default of 5 ms the window waits that long for the interpreter each time the engine holds it.
SWITCH_INTERVAL_S = 0.0005


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked of the console; an empty `model` is the demo model."""

    model: str = ""
    threads: int | None = None
    knobs: dict[str, str] = field(default_factory=dict)
    time_to_window: bool = False
    make_handle: Callable[[], EngineHandle] | None = None


def run(options: Options) -> int:
    """Open the console and return the exit code once it is closed."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    app = QApplication(sys.argv[:1])
    app.setApplicationName("rondo")
    app.setOrganizationName("rondo")
    app.setApplicationDisplayName("Rondo")
    app.setDesktopFileName("rondo")
    crash_log = _crash_log()
    settings = Settings()
    theme = Theme(app, settings.theme)
    bridge = Bridge(
        options.make_handle or (lambda: open_handle(knobs=options.knobs, threads=options.threads))
    )
    window = Window(bridge, theme, settings)
    window.show()
    app.processEvents()
    begun_s = psutil.Process().create_time()
    if options.time_to_window:
        print(f"window ready in {time.time() - begun_s:.2f} s", flush=True)
        bridge.loaded.connect(
            lambda _card: _report(window, f"model ready in {time.time() - begun_s:.2f} s")
        )
        bridge.load_failed.connect(
            lambda _path, report: _report(window, f"load failed: {report.cause}")
        )
    QTimer.singleShot(0, window, lambda: _start(bridge, options.model))
    code = app.exec()
    if crash_log is not None:
        faulthandler.disable()
        crash_log.close()
    if not window.ended_in_time:
        # A thread inside a long native call cannot be joined; tearing the interpreter down under it crashes.
        print(
            "rondo: the engine did not stop in time; it ends with the process",
            file=sys.stderr,
            flush=True,
        )
        os._exit(code or 1)
    return code


def _start(bridge: Bridge, model: str) -> None:
    bridge.start()
    if model:
        bridge.load(model)
    else:
        bridge.load_demo()


def _report(window: Window, line: str) -> None:
    print(line, flush=True)
    QTimer.singleShot(0, window, window.close)


def _crash_log():
    """A native crash leaves its stacks in the state folder."""
    folder = QDir(
        QStandardPaths.writableLocation(QStandardPaths.StandardLocation.AppLocalDataLocation)
    )
    if not folder.mkpath("."):
        return None
    try:
        log = open(folder.filePath("crash.log"), "a", encoding="utf-8")  # noqa: SIM115
    except OSError:
        return None
    faulthandler.enable(log)
    return log
