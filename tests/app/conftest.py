# SPDX-License-Identifier: MIT OR Apache-2.0
"""Guards for the console's tests: no leaked thread or timer, no Qt warning, no touch of the user's settings."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

os.environ["QT_QPA_PLATFORM"] = "offscreen"

from PySide6.QtCore import QCoreApplication, QEvent, QSettings, QTimer
from PySide6.QtWidgets import QApplication

from app.bridge import Bridge
from app.settings import Settings
from app.theme import Theme
from app.window import Window
from engine.fake import FakeEngine
from engine.fake_script import Script


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            # The offscreen platform says so of size hints, raise and grabs; there is nothing to mend.
            item.add_marker(pytest.mark.qt_log_ignore("This plugin does not support"))


@pytest.fixture(autouse=True)
def _no_leaks() -> Iterator[None]:
    """Fails a test that leaves a thread (the scripted engine's is a daemon), a window or a timer behind."""
    before = set(threading.enumerate())
    yield
    app = QApplication.instance()
    if app is None:
        return
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)
    left = [thread.name for thread in threading.enumerate() if thread not in before]
    assert not left, f"threads left running: {left}"
    shown = [widget for widget in app.topLevelWidgets() if widget.isVisible()]
    assert not shown, f"windows left open: {shown}"
    owners = [app, *app.topLevelWidgets()]
    running = [t.parent() for owner in owners for t in owner.findChildren(QTimer) if t.isActive()]
    assert not running, f"timers left running, of {running}"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(QSettings(str(tmp_path / "settings.ini"), QSettings.Format.IniFormat))


@pytest.fixture
def theme(qapp: QApplication) -> Iterator[Theme]:
    theme = Theme(qapp, "light")
    yield theme
    theme.deleteLater()


class Console:
    """The real window on a scripted engine, with the waits that tests need."""

    def __init__(self, qtbot, theme: Theme, settings: Settings, script: Script | str) -> None:
        self._qtbot = qtbot
        self.theme, self.settings = theme, settings
        self.bridge = Bridge(lambda: FakeEngine(script))
        self.window = Window(self.bridge, theme, settings)
        self.window.show()
        self.window.activateWindow()
        self.wait(self.window.isActiveWindow)  # shortcuts work in the active window only
        self.bridge.start()

    @property
    def engine(self) -> FakeEngine:
        return self.bridge._handle

    @property
    def chat(self):
        return self.window.chat

    def wait(self, condition: Callable[[], bool], timeout_ms: int = 30_000) -> None:
        self._qtbot.waitUntil(condition, timeout=timeout_ms)

    def wait_idle(self) -> None:
        self.wait(lambda: not self.bridge.is_busy)

    def load(self, path: str = "models/first") -> None:
        self.bridge.load(path)
        self.wait(lambda: not self.bridge.loading_path and not self.bridge.is_busy)

    def ask(self, text: str, *, wait: bool = True) -> None:
        self.chat.composer.set_text(text)
        self.chat.send()
        if wait:
            self.wait_idle()

    @property
    def answer(self):
        """The last message widget."""
        return self.chat.view.messages[-1]

    def close(self) -> None:
        self.window.close()
        assert not self.bridge.findChildren(QTimer)[0].isActive(), (
            "the pull goes on after the close"
        )
        self.window.deleteLater()
        self.bridge.deleteLater()


@pytest.fixture
def console(qtbot, theme: Theme, settings: Settings) -> Iterator[Callable[..., Console]]:
    """Makes consoles; each is closed at the end of the test."""
    made: list[Console] = []

    def make(script: Script | str = "steady", *, load: bool = True) -> Console:
        made.append(Console(qtbot, theme, settings, script))
        if load:
            made[-1].load()
        return made[-1]

    yield make
    for one in made:
        one.close()
