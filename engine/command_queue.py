# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the engine thread is to do: commands in order, each with its cancel and its failure."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from engine.api import ErrorReport, Event
from engine.errors import BusyError


@dataclass(frozen=True, slots=True)
class Command:
    """Work for the thread, the event that cancels it, and what is told when it fails unforeseen."""

    run: Callable[[threading.Event], None]
    cancel: threading.Event
    failed: Callable[[ErrorReport], Event]


class CommandQueue:
    """Filled from any thread, emptied by one."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._cancels: set[threading.Event] = set()  # of the commands that wait or run
        self._lock = threading.Lock()
        self._closed = False

    def put(
        self, run: Callable[[threading.Event], None], failed: Callable[[ErrorReport], Event]
    ) -> threading.Event:
        """Queue a command and return the event that cancels it; BusyError after `close`."""
        command = Command(run, threading.Event(), failed)
        # Queued under the lock: behind the end that `close` puts, nobody would take it.
        with self._lock:
            if self._closed:
                raise BusyError("The engine is closing.", next_step="Start Rondo again.")
            self._cancels.add(command.cancel)
            self._waiting.put(command)
        return command.cancel

    def cancel(self) -> None:
        """Cancel the commands that wait or run."""
        with self._lock:
            self._set_all()

    def close(self) -> None:
        """Cancel everything, take nothing in any more and let `take` end."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._set_all()
                self._waiting.put(None)

    def take(self, wait_s: float) -> Command | None:
        """The next command, None behind the last one; raises queue.Empty when none comes in time."""
        return self._waiting.get(timeout=wait_s)

    def done(self, command: Command) -> None:
        """The command ran: cancelling does not mean it any more."""
        with self._lock:
            self._cancels.discard(command.cancel)

    def _set_all(self) -> None:
        """Set every event; the lock is held."""
        for cancel in self._cancels:
            cancel.set()
