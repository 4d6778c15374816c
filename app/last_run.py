# SPDX-License-Identifier: MIT OR Apache-2.0
"""A file a run keeps while it lasts, so that the next one can tell how it ended.

It holds the engine's state and, after a native crash, the stacks that faulthandler wrote behind it. A run that
ends by itself removes it; a file whose process is gone is the trace of one that did not.
"""

from __future__ import annotations

import faulthandler
import os
from pathlib import Path

import psutil
from PySide6.QtCore import QObject, Slot

from engine.api import ErrorReport

_PREFIX, _SUFFIX = "run-", ".log"
_CLOCK_SLACK_S = 2.0  # a process and its file are dated by different clocks
_READ_LIMIT = 40_000


class RunFile(QObject):
    """The file of this run, written at each change of the engine's state."""

    def __init__(self, folder: Path, parent: QObject | None = None) -> None:
        """Raises OSError where the folder cannot be written."""
        super().__init__(parent)
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{_PREFIX}{os.getpid()}{_SUFFIX}"
        self._file = open(self.path, "w", encoding="utf-8")  # noqa: SIM115
        self.note("empty")
        faulthandler.enable(self._file)

    @Slot(str)
    def note(self, state: str) -> None:
        """Remember what the engine does now."""
        if self._file.closed:
            return
        self._file.seek(0)
        self._file.truncate()
        self._file.write(f"{state}\n")
        self._file.flush()

    def close(self) -> None:
        """The run ended by itself: remove the file."""
        faulthandler.disable()
        self._file.close()
        self.path.unlink(missing_ok=True)


def take_trace(folder: Path) -> ErrorReport | None:
    """How the latest run that did not end by itself stood, or None. It is told once: all traces go."""
    dead = sorted(
        (path for path in folder.glob(f"{_PREFIX}*{_SUFFIX}") if not _is_running(path)),
        key=lambda path: path.stat().st_mtime,
    )
    report = None
    for path in dead:
        with open(path, encoding="utf-8", errors="replace") as file:
            report = _report(file.read(_READ_LIMIT))
        path.unlink(missing_ok=True)
    return report


def _report(text: str) -> ErrorReport:
    state, _, stacks = text.partition("\n")
    how = "It crashed" if stacks.strip() else "It was ended from outside"
    cause = f"{how} while the engine's state was: {state or 'not known'}."
    next_step = "Copy the report if it happens again."
    if not stacks.strip():
        next_step = "If nobody ended it, see whether memory ran out: the system then ends programs."
    return ErrorReport(
        "The last run ended badly",
        cause,
        "Settings are kept; the conversation of that run only where it was saved.",
        next_step,
        stacks,
    )


def _is_running(path: Path) -> bool:
    """Whether the process that wrote the file lives; its number may have been given to another one."""
    number = path.name[len(_PREFIX) : -len(_SUFFIX)]
    if not number.isdigit() or int(number) == os.getpid():
        return False
    try:
        return psutil.Process(int(number)).create_time() <= path.stat().st_mtime + _CLOCK_SLACK_S
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
