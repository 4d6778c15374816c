# SPDX-License-Identifier: MIT OR Apache-2.0
"""The switch table with all there is to say about each row: for the panel, the commands and the guide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from engine.api_knobs import KnobRow
from engine.errors import UsageError
from engine.knob_table import GROUPS
from engine.knobs import KNOBS, PREFIX, Knob, KnobSet, read_profile, status_of
from engine.paths import profile_path


def served_values() -> dict[str, str]:
    """Values of the served profile by full name; empty where the file cannot be read."""
    path = profile_path("serve")
    try:
        return read_profile(path) if path else {}
    except UsageError:
        return {}


def knob_rows(
    knobs: KnobSet,
    *,
    backend: str,
    offers: Iterable[str] | None,
    engaged: Mapping[str, int],
    served: Mapping[str, str],
) -> tuple[KnobRow, ...]:
    """Every switch as it stands on `backend`.

    `offers`: what the loaded model and drafters have, None before a load. `engaged`: counters by name.
    """
    offers = None if offers is None else frozenset(offers)
    rows = []
    for knob in KNOBS:
        value, source = knobs.raw(knob.name)
        status = status_of(knob, backend, offers)
        rows.append(
            KnobRow(
                name=PREFIX + knob.name,
                group=GROUPS[knob.group],
                kind=knob.kind,
                value=value,
                default=knob.default,
                served=served.get(PREFIX + knob.name, knob.default),
                source=source,
                accepts=knob.accepted(),
                choices=knob.choices,
                low=knob.low,
                high=knob.high,
                effect=knob.effect,
                bits=knob.bits,
                flip=knob.flip,
                engaged=knob.engaged,
                available=status.available,
                reason=status.reason,
                rules=rules_of(knob),
                engaged_count=engaged.get(knob.engaged),
            )
        )
    return tuple(rows)


def rules_of(knob: Knob) -> tuple[str, ...]:
    """What a switch needs and excludes while it is on, in words."""
    needs = [f"needs {PREFIX}{name}={value}" for name, value in knob.requires]
    return (*needs, *(f"excludes {PREFIX}{name}={value}" for name, value in knob.excludes))


def profile_of(knobs: KnobSet) -> dict[str, str]:
    """The values that differ from their defaults, by full name: what a profile of this set holds."""
    return {
        PREFIX + knob.name: knobs.raw(knob.name)[0]
        for knob in KNOBS
        if knobs.raw(knob.name)[0] != knob.default
    }


def idle_notices(knobs: KnobSet, *, backend: str, offers: Iterable[str]) -> tuple[str, ...]:
    """A sentence for each switch that somebody set and that changes nothing here."""
    offers = frozenset(offers)
    notices = []
    for knob in KNOBS:
        value, source = knobs.raw(knob.name)
        status = status_of(knob, backend, offers)
        if value != knob.default and source in ("environment", "caller") and not status.available:
            notices.append(f"{PREFIX}{knob.name}={value} changes nothing: {status.reason}.")
    return tuple(notices)
