# SPDX-License-Identifier: MIT OR Apache-2.0
"""The switches of the scripted engine: the real table and rules; a flip changes nothing in the script."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping
from pathlib import Path

from engine.api import ErrorReport, Event, KnobRow, KnobsChanged, KnobsRefused, Snapshot
from engine.errors import UsageError
from engine.knob_rows import knob_rows, profile_of
from engine.knobs import KnobSet, write_profile

_BACKEND = "native"
_OFFERS = frozenset({"the MTP head", "an NVFP4 weight for the vector units"})


class FakeKnobs:
    """The part of `FakeEngine` behind `engine.api_knobs.KnobHandle`."""

    _events: queue.SimpleQueue[Event]
    _now: Snapshot
    _put: Callable[[str, object], None]
    _comparing: bool
    _refuse_knobs: Callable[[Mapping[str, str]], None]

    def __init__(self) -> None:
        self._knob_set = KnobSet({})
        self._knob_changes: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()

    def knobs(self) -> tuple[KnobRow, ...]:
        offers = _OFFERS if self._now.model else None
        return knob_rows(self._knob_set, backend=_BACKEND, offers=offers, engaged={}, served={})

    def set_knobs(self, changes: Mapping[str, str]) -> None:
        if self._comparing:
            self._refuse_knobs(changes)
            return
        self._knob_changes.put(dict(changes))
        self._put("knobs", None)

    def save_profile(self, path: str) -> None:
        write_profile(Path(path), profile_of(self._knob_set))

    def _load_knobs(self, changes: Mapping[str, str] | None) -> None:
        """Take over what a load was given; UsageError refuses the load."""
        self._knob_set = self._knob_set.changed(changes or {})

    def _apply_knobs(self) -> None:
        """Make the queued changes, between two rounds."""
        while True:
            try:
                changes = self._knob_changes.get_nowait()
            except queue.Empty:
                return
            pairs = tuple(changes.items())
            try:
                if self._now.model:
                    knobs = self._knob_set.flipped(changes, backend=_BACKEND, offers=_OFFERS)
                else:
                    knobs = self._knob_set.changed(changes)
            except UsageError as error:
                self._events.put(KnobsRefused(pairs, ErrorReport.of(error)))
            else:
                self._knob_set = knobs
                self._events.put(KnobsChanged(pairs))
