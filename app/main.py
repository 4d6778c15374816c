# SPDX-License-Identifier: MIT OR Apache-2.0
"""Brings the window up: application, theme, window, and only then the engine."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from PySide6.QtCore import QStandardPaths, QTimer
from PySide6.QtWidgets import QApplication

from app.bridge import Bridge
from app.interpreter import hold_still, link_libraries, loaded_once
from app.last_run import RunFile, take_trace
from app.settings import Settings
from app.theme import Theme
from app.window import Window
from engine.api import EngineHandle, open_handle

_LINK_POLL_MS = 20


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked of the console; an empty `model` is the demo model."""

    model: str = ""
    threads: int | None = None
    knobs: dict[str, str] = field(default_factory=dict)
    profile: str = "serve"
    time_to_window: bool = False
    make_handle: Callable[[], EngineHandle] | None = None


def run(options: Options) -> int:
    """Open the console and return the exit code once it is closed."""
    hold_still()
    linking = link_libraries() if options.make_handle is None else None
    app = QApplication(sys.argv[:1])
    app.setApplicationName("rondo")
    app.setOrganizationName("rondo")
    app.setApplicationDisplayName("Rondo")
    app.setDesktopFileName("rondo")
    settings = Settings()
    theme = Theme(app, settings.theme)

    def make_handle() -> EngineHandle:
        return open_handle(knobs=options.knobs, threads=options.threads, profile=options.profile)

    bridge = Bridge(options.make_handle or make_handle)
    window = Window(bridge, theme, settings)
    run_file = _open_run_file(window)
    _end_on_signals(window)
    window.show()
    app.processEvents()
    begun_s = psutil.Process().create_time()
    failures: list[str] = []  # of a start that is only measured
    if options.time_to_window:
        print(f"window ready in {time.time() - begun_s:.2f} s", flush=True)
        bridge.loaded.connect(
            lambda _card: _report(window, f"model ready in {time.time() - begun_s:.2f} s")
        )
        bridge.load_failed.connect(
            lambda _path, report: _report(window, f"load failed: {report.cause}")
        )
        bridge.load_failed.connect(lambda path, _report: failures.append(path))
    bridge.loaded.connect(lambda _card: loaded_once())
    bridge.load_failed.connect(lambda _path, _report: loaded_once())
    QTimer.singleShot(0, window, lambda: _start(window, options.model, linking))
    code = app.exec()
    if run_file is not None:
        run_file.close()
    if not window.ended_in_time:
        # A thread inside a long native call cannot be joined; tearing the interpreter down under it crashes.
        print(
            "rondo: the engine did not stop in time; it ends with the process",
            file=sys.stderr,
            flush=True,
        )
        os._exit(code or 1)
    return code or int(bool(failures))


def _start(window: Window, model: str, linking: threading.Thread | None) -> None:
    """The engine, once the libraries are linked: an import that has to wait for them holds the window."""
    if linking is not None and linking.is_alive():
        QTimer.singleShot(_LINK_POLL_MS, window, lambda: _start(window, model, linking))
        return
    bridge = window.bridge
    bridge.start()
    if model:
        bridge.load(model)
    else:
        bridge.load_demo()


def _report(window: Window, line: str) -> None:
    print(line, flush=True)
    QTimer.singleShot(0, window, window.close)


def _run_folder() -> Path:
    place = QStandardPaths.StandardLocation.AppLocalDataLocation
    return Path(QStandardPaths.writableLocation(place))


def _open_run_file(window: Window) -> RunFile | None:
    """Tell how the last run ended and begin the trace of this one.

    A folder that cannot be read or written costs the trace, not the start.
    """
    try:
        last_run = take_trace(_run_folder())
        run_file = RunFile(_run_folder(), window)
    except OSError as error:
        print(f"rondo: no trace of this run is kept: {error}", file=sys.stderr)
        return None
    if last_run is not None:
        window.chat.show_notice(last_run)
    window.bridge.state_changed.connect(run_file.note)
    return run_file


def _end_on_signals(window: Window) -> None:
    """Ctrl+C, a polite kill and the end of its terminal close the window as its button does.

    The handlers run between two steps of Python, which the pull takes four times a second at least. What the
    start was told to ignore (`nohup rondo`) stays ignored.
    """
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: QTimer.singleShot(0, window, window.close))
