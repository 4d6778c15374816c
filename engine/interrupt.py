# SPDX-License-Identifier: MIT OR Apache-2.0
"""Ctrl+C where nobody looks for it: while modules are read, and in commands that hold nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

INTERRUPTED = 130  # as shells count an end by SIGINT


def end_on_interrupt() -> None:
    """Ctrl+C ends the process at once, with a sentence, until somebody else handles it.

    There is nothing to save yet, and a KeyboardInterrupt within an import comes out as whatever error the
    module makes of it. A process that was started to ignore interrupts goes on doing so.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


@contextlib.contextmanager
def ending_at_once(sentence: str) -> Iterator[None]:
    """Within, Ctrl+C ends the process with `sentence`, even in the middle of a native call.

    Python runs a handler only when such a call returns, so a thread waits for the signal instead. It wants a
    handler of Python's for SIGINT, and the main thread.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    watcher = threading.Thread(
        target=_watch, args=(reader, sentence), name="interrupt", daemon=True
    )
    watcher.start()
    before = signal.set_wakeup_fd(writer)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)  # which ends the watch
        watcher.join()
        os.close(reader)


def _watch(reader: int, sentence: str) -> None:
    while number := os.read(reader, 1):
        if number[0] == signal.SIGINT:
            _say_and_end(sentence)


def _end(*_: object) -> None:
    _say_and_end("interrupted.")


def _say_and_end(sentence: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"rondo: {sentence}\n".encode())
    os._exit(INTERRUPTED)
