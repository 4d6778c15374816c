# SPDX-License-Identifier: MIT OR Apache-2.0
"""Errors that reach the operator: every one says the cause, what was kept and the next step."""

from __future__ import annotations


class RondoError(Exception):
    """Base of every error the engine raises on purpose.

    `cause` says what went wrong (file, tensor, numbers), `kept` what still stands, `next_step` what to do.
    """

    title = "This could not be done"

    def __init__(self, cause: str, *, kept: str = "", next_step: str = "") -> None:
        super().__init__(cause)
        self.cause = cause
        self.kept = kept
        self.next_step = next_step

    def __str__(self) -> str:
        return " ".join(part for part in (self.cause, self.kept, self.next_step) if part)


class UsageError(RondoError):
    """A wrong option, an unknown switch or a value that does not parse."""

    title = "Not understood"


class CheckpointError(RondoError):
    """A model folder that cannot be read as it stands."""

    title = "This folder cannot be opened"


class UnsupportedModelError(CheckpointError):
    """A well-formed checkpoint of an architecture or format this engine does not run."""

    title = "This model is not supported"


class MemoryShortError(RondoError):
    """The estimate of what is needed exceeds what is free."""

    title = "Not enough memory"


class PromptError(RondoError):
    """A prompt that cannot be run: empty, or longer than the context."""

    title = "This prompt cannot be run"


class LongPromptError(PromptError):
    """A prompt longer than the context; a request may have its oldest part cut."""


class BusyError(RondoError):
    """A command that has to wait for the one that runs."""

    title = "The engine is busy"


class NumericsError(RondoError):
    """The model produced a NaN or an infinity; names the first layer where it appeared."""

    title = "The model produced invalid numbers"


class Cancelled(RondoError):
    """The operator cancelled; nothing is wrong."""

    title = "Cancelled"

    def __init__(self, cause: str = "Cancelled.", *, kept: str = "", next_step: str = "") -> None:
        super().__init__(cause, kept=kept, next_step=next_step)


def reason_of(error: Exception) -> str:
    """Why in words: the system's sentence of an OSError, without its number and its path.

    Of text that is not UTF-8 the first byte that is none.
    """
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 text (byte {error.start})"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
