# SPDX-License-Identifier: MIT OR Apache-2.0
"""Commands of the engine thread: their order, what a cancel means, and the end."""

from __future__ import annotations

import queue
import threading

import pytest

from engine.api import ErrorReport, StateChanged
from engine.command_queue import CommandQueue
from engine.errors import BusyError


def run(cancel: threading.Event) -> None:
    """What the tests only compare."""


def failed(report: ErrorReport) -> StateChanged:
    return StateChanged(report.title)


def test_a_cancel_means_the_commands_that_wait_or_run() -> None:
    commands = CommandQueue()
    ended, running, waiting = (commands.put(run, failed) for _ in range(3))
    first = commands.take(0)
    commands.done(first)
    assert (first.cancel, commands.take(0).cancel) == (ended, running)
    commands.cancel()
    assert [event.is_set() for event in (ended, running, waiting)] == [False, True, True]
    assert not commands.put(run, failed).is_set()


def test_the_end_stands_behind_every_command_and_is_told_once() -> None:
    commands = CommandQueue()
    waiting = commands.put(run, failed)
    commands.close()
    commands.close()
    with pytest.raises(BusyError):
        commands.put(run, failed)
    assert commands.take(0).cancel is waiting
    assert waiting.is_set()
    assert commands.take(0) is None
    with pytest.raises(queue.Empty):
        commands.take(0)


def test_a_close_waits_for_a_command_that_is_being_put(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the end to come first, the command would wait for ever, and nobody would be told."""
    commands = CommandQueue()
    closing = threading.Thread(target=commands.close)
    put = commands._waiting.put

    class Slow:
        get = staticmethod(commands._waiting.get)

        @staticmethod
        def put(command: object) -> None:
            if command is not None:
                closing.start()
                closing.join(0.2)
            put(command)

    monkeypatch.setattr(commands, "_waiting", Slow)
    waiting = commands.put(run, failed)
    closing.join()
    assert commands.take(0).cancel is waiting
    assert waiting.is_set()
    assert commands.take(0) is None
