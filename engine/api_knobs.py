# SPDX-License-Identifier: MIT OR Apache-2.0
"""The switches as the console shows them, and the calls that change them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class KnobRow:
    """One QWEN38_* switch and its value in effect.

    `kind`: bool, int, float, choice, path or text. `source`: default, profile, environment or caller. `served`:
    its value in the served profile. `bits`: what a flip does to the text (identical, near-tie, other-numbers,
    proposes-only). `flip`: when it takes effect (live, recapture: live too, with new recordings; reload). Where
    `available` is False the switch changes nothing here, and `reason` says why. `engaged_count`: the counter
    `engaged` since the load, None where this engine does not count it.
    """

    name: str  # with its prefix
    group: str  # its title
    kind: str
    value: str
    default: str
    served: str
    source: str
    accepts: str  # in words
    choices: tuple[str, ...]
    low: float  # of an int or a float
    high: float
    effect: str
    bits: str
    flip: str
    engaged: str  # the counter that proves it took effect
    available: bool
    reason: str
    rules: tuple[str, ...] = ()  # what it needs or excludes while it is on, in words
    engaged_count: int | None = None


class KnobHandle(Protocol):
    """The part of an engine handle that concerns switches."""

    def knobs(self) -> tuple[KnobRow, ...]:
        """Every switch with its value in effect; before a load, as a load would find it."""

    def set_knobs(self, changes: Mapping[str, str]) -> None:
        """Queue changes by full name; all are applied between two rounds, or none.

        KnobsChanged or KnobsRefused tells. A switch that only a reload changes is refused while a model is
        loaded: pass it to `load`.
        """

    def save_profile(self, path: str) -> None:
        """Write the values that differ from their defaults as a profile file; RondoError when that fails."""
