# SPDX-License-Identifier: MIT OR Apache-2.0
"""Ctrl+C while modules are read, before a command looks for it."""

from __future__ import annotations

import contextlib
import os
import signal

INTERRUPTED = 130  # as shells count an end by SIGINT


def end_on_interrupt() -> None:
    """Ctrl+C ends the process at once, with a sentence, until somebody else handles it.

    There is nothing to save yet, and a KeyboardInterrupt within an import comes out as whatever error the
    module makes of it. A process that was started to ignore interrupts goes on doing so.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def _end(*_: object) -> None:
    with contextlib.suppress(OSError):
        os.write(2, b"rondo: interrupted.\n")
    os._exit(INTERRUPTED)
