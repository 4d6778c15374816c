# SPDX-License-Identifier: MIT OR Apache-2.0
"""The rare things that happen in the engine thread, as `engine.api.EngineHandle.events` drains them."""

from __future__ import annotations

from dataclasses import dataclass

from engine.api_compare import CompareProgress, CompareReport
from engine.api_records import ErrorReport, Generation, LoadProgress, ModelCard


class Event:
    """Base of the rare things that happen; drained by `EngineHandle.events`."""


@dataclass(frozen=True, slots=True)
class StateChanged(Event):
    state: str


@dataclass(frozen=True, slots=True)
class LoadProgressed(Event):
    progress: LoadProgress


@dataclass(frozen=True, slots=True)
class Loaded(Event):
    card: ModelCard


@dataclass(frozen=True, slots=True)
class LoadFailed(Event):
    """The previous model, if any, is still the one that runs (`kept` in the report says so).

    A load that the operator cancelled ends so too; its report says `cancelled`.
    """

    path: str
    report: ErrorReport


@dataclass(frozen=True, slots=True)
class Started(Event):
    request_id: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Finished(Event):
    request_id: int
    generation: Generation


@dataclass(frozen=True, slots=True)
class Failed(Event):
    request_id: int
    report: ErrorReport
    text: str  # what had been written until then


@dataclass(frozen=True, slots=True)
class CompareProgressed(Event):
    compare_id: int
    progress: CompareProgress


@dataclass(frozen=True, slots=True)
class CompareFinished(Event):
    """The A/B has an answer; a cancelled one too, from the pairs that were complete."""

    compare_id: int
    report: CompareReport


@dataclass(frozen=True, slots=True)
class CompareFailed(Event):
    """The A/B could not go on; `partial` holds the pairs that were complete, if any."""

    compare_id: int
    error: ErrorReport
    partial: CompareReport | None


@dataclass(frozen=True, slots=True)
class KnobsChanged(Event):
    """These (name, value) pairs are in effect from the next round on, and stay for later loads."""

    changes: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class KnobsRefused(Event):
    """None of these changes was made."""

    changes: tuple[tuple[str, str], ...]
    report: ErrorReport
