# SPDX-License-Identifier: MIT OR Apache-2.0
"""The demonstration's turn in the real window, drawn off screen, with its pictures."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QSettings
from PySide6.QtWidgets import QApplication

from app.bridge import Bridge
from app.settings import Sampling, Settings
from app.theme import Theme
from app.window import Window
from engine.api import EngineHandle, ErrorReport, Generation, ModelCard, open_handle
from engine.errors import RondoError
from ops.demo_turn import LIMIT_S, Turn, TurnFailed, Wish, introduce, show

SETTLE_S = 0.7  # until the figures and plots of the last rounds are drawn
THEMES = ("light", "dark")


def window_turn(wish: Wish, folder: Path) -> Turn:
    """Ask the question in the window, stream the answer to the terminal, save a picture in each theme.

    The operator's own settings are neither read nor changed. Raises TurnFailed.
    """
    application = QApplication.instance() or QApplication(["rondo"])
    assert isinstance(application, QApplication)
    handles: list[EngineHandle] = []

    def make_handle() -> EngineHandle:
        handles.append(open_handle(knobs=wish.knobs, threads=wish.threads, profile=wish.profile))
        return handles[0]

    with tempfile.TemporaryDirectory() as scratch:
        settings = Settings(QSettings(f"{scratch}/rondo.ini", QSettings.Format.IniFormat))
        settings.sampling = Sampling(max_tokens=wish.max_tokens)
        theme = Theme(application, THEMES[0])
        window = Window(Bridge(make_handle), theme, settings)
        window.show()
        window.bridge.start()
        try:
            card, generation = _chat(application, window, wish)
            rounds = handles[0].ring.since(0)[0]
            pictures = tuple(_picture(application, window, theme, folder, name) for name in THEMES)
        finally:
            window.close()
            window.deleteLater()
            _run(application, 0.1)
    return Turn(card, generation, rounds, pictures)


def _chat(application: QApplication, window: Window, wish: Wish) -> tuple[ModelCard, Generation]:
    """Load, ask, wait for the end of the answer."""
    cards: list[ModelCard] = []
    ends: list[Generation] = []
    reports: list[ErrorReport] = []
    bridge = window.bridge
    bridge.loaded.connect(cards.append)
    bridge.load_failed.connect(lambda _path, report: reports.append(report))
    bridge.text.connect(lambda _request, text: show(text))
    bridge.finished.connect(lambda _request, generation: ends.append(generation))
    bridge.failed.connect(lambda _request, report, _text: reports.append(report))

    def wait_for(arrived: list) -> None:
        _run(application, LIMIT_S, lambda: bool(arrived or reports))
        if reports:
            raise TurnFailed(reports[0])
        if not arrived:
            raise RondoError(f"The engine did not answer within {LIMIT_S:.0f} s.")

    bridge.load(wish.model)
    wait_for(cards)
    # The window is ready to send once the load has left its queue.
    _run(application, LIMIT_S, lambda: not bridge.is_busy)
    introduce(cards[0], wish.prompt)
    window.chat.ask(wish.prompt)
    wait_for(ends)
    return cards[0], ends[0]


def _picture(
    application: QApplication, window: Window, theme: Theme, folder: Path, name: str
) -> Path:
    theme.set_choice(name)
    _run(application, SETTLE_S)
    path = folder / f"console-{name}.png"
    if not window.grab().save(str(path)):
        raise RondoError(
            f"{path} cannot be written.", next_step="Choose another folder: --out DIR."
        )
    return path


def _run(
    application: QApplication, limit_s: float, until: Callable[[], bool] = lambda: False
) -> None:
    """Let the window live until a condition holds, `limit_s` at most."""
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s and not until():
        application.processEvents()
        time.sleep(0.005)
