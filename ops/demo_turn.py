# SPDX-License-Identifier: MIT OR Apache-2.0
"""One chat turn of the demonstration, streamed to the terminal, without Qt."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.api import (
    EngineHandle,
    ErrorReport,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    Generation,
    Loaded,
    LoadFailed,
    Message,
    ModelCard,
    open_handle,
)
from engine.errors import RondoError

LIMIT_S = 600.0
POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Wish:
    """What to ask of which model."""

    model: str
    prompt: str
    max_tokens: int
    threads: int | None
    knobs: dict[str, str]
    profile: str = "serve"


class TurnFailed(Exception):
    """The load or the answer ended with an error report."""

    def __init__(self, report: ErrorReport) -> None:
        super().__init__(report.cause)
        self.report = report


@dataclass(frozen=True, slots=True)
class Turn:
    """One finished answer: the model that gave it, its figures and its rounds (dtype ROUND_DTYPE)."""

    card: ModelCard
    generation: Generation
    rounds: np.ndarray
    pictures: tuple[Path, ...] = ()


def plain_turn(wish: Wish) -> Turn:
    """The turn without Qt: the handle is polled as the console polls it."""
    handle = open_handle(knobs=wish.knobs, threads=wish.threads, profile=wish.profile)
    try:
        handle.load(wish.model)
        loaded = _await(handle, Loaded)
        assert isinstance(loaded, Loaded)
        introduce(loaded.card, wish.prompt)
        request = GenerateRequest(
            messages=(Message("user", wish.prompt),), max_tokens=wish.max_tokens
        )
        request_id, cursor = handle.generate(request), 0

        def stream() -> None:
            nonlocal cursor
            text, cursor = handle.text_since(request_id, cursor)
            show(text)

        done = _await(handle, Finished, stream)
        assert isinstance(done, Finished)
        stream()
        return Turn(loaded.card, done.generation, handle.ring.since(0)[0])
    finally:
        handle.close()


def _await(
    handle: EngineHandle, wanted: type[Event], meanwhile: Callable[[], object] = int
) -> Event:
    """The event of a type; TurnFailed when a failure comes instead."""
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        for event in handle.events():
            if isinstance(event, LoadFailed | Failed):
                raise TurnFailed(event.report)
            if isinstance(event, wanted):
                return event
        meanwhile()
        time.sleep(POLL_S)
    raise RondoError(f"The engine did not answer within {LIMIT_S:.0f} s.")


def show(text: str) -> None:
    """Write a part of the answer to the terminal at once."""
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    sys.stdout.flush()


def introduce(card: ModelCard, prompt: str) -> None:
    """Say which model answers, and the question."""
    print(f"{card.name} · {card.weight_format} · {card.device}")
    for notice in card.notices:
        print(f"note: {notice}")
    print(f"\nYou: {prompt}\nRondo: ", end="", flush=True)
