# SPDX-License-Identifier: MIT OR Apache-2.0
"""The values of the QWEN38_* switches in effect, with where each came from.

Precedence: default < profile file < environment < change by the caller. An unknown name or a value that does
not parse is an error. No other module reads a QWEN38_* variable.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from engine.errors import UsageError
from engine.knob_kinds import PREFIX, Knob, KnobStatus, Value, status_of
from engine.knob_profile import read_profile, write_profile
from engine.knob_table import KNOBS, PASS_GROUPS, knob_named
from engine.paths import product_path

__all__ = [
    "KNOBS",
    "PREFIX",
    "SOURCES",
    "Knob",
    "KnobSet",
    "KnobStatus",
    "knob_named",
    "read_profile",
    "status_of",
    "write_profile",
]

SOURCES = ("default", "profile", "environment", "caller")


class KnobSet:
    """The values in effect; each knows its source (one of SOURCES)."""

    def __init__(self, values: Mapping[str, tuple[str, str]]) -> None:
        self._raw = {knob.name: values.get(knob.name, (knob.default, "default")) for knob in KNOBS}
        self._parsed = {knob.name: knob.parse(self._raw[knob.name][0]) for knob in KNOBS}
        for knob in KNOBS:
            self._check_rules(knob)

    @staticmethod
    def resolve(
        *,
        profile: str | Path | None = None,
        environ: Mapping[str, str] | None = None,
        changes: Mapping[str, str] | None = None,
    ) -> KnobSet:
        """Values from a profile file, an environment (default: the process's) and the caller's changes."""
        values: dict[str, tuple[str, str]] = {}
        if profile is not None:
            _lay(values, read_profile(Path(profile)), "profile")
        environ = os.environ if environ is None else environ
        _lay(values, {k: v for k, v in environ.items() if k.startswith(PREFIX)}, "environment")
        _lay(values, changes or {}, "caller")
        return KnobSet(values)

    def changed(self, changes: Mapping[str, str]) -> KnobSet:
        """A set with the caller's changes on top."""
        values = dict(self._raw)
        _lay(values, changes, "caller")
        return KnobSet(values)

    def flipped(
        self, changes: Mapping[str, str], *, backend: str, offers: Iterable[str]
    ) -> KnobSet:
        """A set with changes that a loaded model can take between two rounds.

        Raises UsageError for an unknown name, a value that does not parse, a switch that only a reload changes,
        or one that changes nothing here. A value that stands already is no change.
        """
        knobs = self.changed(changes)
        for name in changes:
            knob = knob_named(name)
            if knobs._parsed[knob.name] == self._parsed[knob.name]:
                continue
            status = status_of(knob, backend, offers)
            if not status.available:
                raise UsageError(
                    f"{name} changes nothing here: {status.reason}.", kept="Nothing was changed."
                )
            if knob.flip == "reload":
                raise UsageError(
                    f"{name} takes effect when a model is loaded.",
                    kept="Nothing was changed.",
                    next_step="Load the model again with the new value.",
                )
        return knobs

    def raw(self, name: str) -> tuple[str, str]:
        """(text, source) of a switch named without its prefix."""
        return self._raw[name]

    def signature(self) -> tuple[tuple[str, str], ...]:
        """The switches that a recorded pass depends on, with their values."""
        return tuple(
            (knob.name, self._raw[knob.name][0]) for knob in KNOBS if knob.flip == "recapture"
        )

    def of_passes(self) -> tuple[tuple[str, str], ...]:
        """The switches that say how a pass is computed, where their values are not the defaults."""
        return tuple(
            (knob.name, self._raw[knob.name][0])
            for knob in KNOBS
            if knob.group in PASS_GROUPS
            and knob.flip != "live"
            and self._parsed[knob.name] != knob.parse(knob.default)
        )

    def same_bits(self, other: KnobSet) -> bool:
        """Whether what a model computes has the same bits under both, whatever they have it propose."""
        changing = (knob.name for knob in KNOBS if knob.bits not in ("identical", "proposes-only"))
        return all(self.raw(name)[0] == other.raw(name)[0] for name in changing)

    def value(self, name: str) -> Value:
        """Value of a switch of any kind."""
        return self._parsed[name]

    def flag(self, name: str) -> bool:
        """Value of a bool switch."""
        value = self._parsed[name]
        assert isinstance(value, bool)
        return value

    def number(self, name: str) -> int:
        """Value of an int switch."""
        value = self._parsed[name]
        assert isinstance(value, int)
        assert not isinstance(value, bool)
        return value

    def decimal(self, name: str) -> float:
        """Value of a float switch."""
        value = self._parsed[name]
        assert isinstance(value, float)
        return value

    def choice(self, name: str) -> str:
        """Value of a choice switch, an alias as what it stands for."""
        return self._text(name)

    def text(self, name: str) -> str:
        """Value of a text switch."""
        return self._text(name)

    def path(self, name: str) -> Path | None:
        """Value of a path switch, None where it is empty; whether the path exists is for its reader to say.

        A relative path is looked for in the present folder, then in the product's own; one of a profile that
        does not lie beside it, the other way round.
        """
        value = self._text(name)
        own_first = self._raw[name][1] == "profile"
        return product_path(value, own_first=own_first) if value else None

    def _text(self, name: str) -> str:
        value = self._parsed[name]
        assert isinstance(value, str)
        return value

    def _check_rules(self, knob: Knob) -> None:
        if not self._parsed[knob.name]:
            return
        for rules, holds in ((knob.requires, True), (knob.excludes, False)):
            for other, value in rules:
                if (self._raw[other][0] == value) != holds:
                    word = "needs" if holds else "excludes"
                    raise UsageError(
                        f"{PREFIX}{knob.name}={self._raw[knob.name][0]} {word} {PREFIX}{other}={value}.",
                        kept="Nothing was changed.",
                        next_step=f"Change {PREFIX}{other} or {PREFIX}{knob.name}.",
                    )


def _lay(values: dict[str, tuple[str, str]], updates: Mapping[str, str], source: str) -> None:
    for key, value in updates.items():
        knob = knob_named(key)
        knob.parse(value)
        values[knob.name] = (value.strip(), source)
