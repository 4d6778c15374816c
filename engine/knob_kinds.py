# SPDX-License-Identifier: MIT OR Apache-2.0
"""What one switch is: its declaration, the values it accepts, and whether it acts where the engine runs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from engine.errors import UsageError

PREFIX = "QWEN38_"
BACKENDS = ("native", "reference", "cuda")
_TEXT_LIMIT = 4096
Value = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Knob:
    """One switch.

    kind: bool, int, float, choice, path or text. bits: what a flip does to the text (identical, near-tie,
    other-numbers, proposes-only). flip: when it takes effect (live, recapture, reload). engaged: the counter
    that proves it did. backends: where it acts; `why` says why not on another of the CPU's, `why_cuda` on a
    GPU. needs: what the loaded model or drafter must offer.
    requires, excludes: (switch, value) pairs that must, or must not, hold while this switch is on.
    aliases: (spelling, accepted choice) pairs.
    """

    name: str
    kind: str
    default: str
    effect: str
    bits: str
    flip: str
    engaged: str
    group: str
    low: float = 0
    high: float = 0
    choices: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    backends: tuple[str, ...] = ("native",)
    why: str = ""
    why_cuda: str = ""
    needs: tuple[str, ...] = ()
    requires: tuple[tuple[str, str], ...] = ()
    excludes: tuple[tuple[str, str], ...] = ()

    def accepted(self) -> str:
        """The accepted values in words."""
        if self.kind == "bool":
            return "0 or 1"
        if self.kind == "int":
            return f"a whole number from {self.low} to {self.high}"
        if self.kind == "float":
            return f"a number from {self.low} to {self.high}"
        if self.kind == "path":
            return "a path, or empty for none"
        if self.kind == "text":
            return f"one line of at most {_TEXT_LIMIT} characters, or empty for none"
        return "one of " + ", ".join(choice or "(empty)" for choice in self.choices)

    def parse(self, text: str) -> Value:
        """The typed value of `text`; UsageError names the switch and the accepted values."""
        text = text.strip()
        value = self._value(text)
        if value is None:
            shown = text if len(text) <= 80 else text[:80] + "..."
            raise UsageError(
                f"{PREFIX}{self.name}={shown!r} is not accepted.",
                kept="Nothing was changed.",
                next_step=f"Use {self.accepted()}.",
            )
        return value

    def _value(self, text: str) -> Value | None:
        if self.kind == "bool":
            return {"0": False, "1": True}.get(text)
        if self.kind == "int":
            if not (text.isascii() and text.isdigit() and len(text) < 10):
                return None
            return int(text) if self.low <= int(text) <= self.high else None
        if self.kind == "float":
            return _decimal(text, self.low, self.high)
        if self.kind == "choice":
            text = dict(self.aliases).get(text, text)
            return text if text in self.choices else None
        return text if len(text) <= _TEXT_LIMIT and (text.isprintable()) else None


@dataclass(frozen=True, slots=True)
class KnobStatus:
    """Whether a switch acts in the engine that runs; `reason` says why not."""

    name: str
    available: bool
    reason: str


def status_of(knob: Knob, backend: str, offers: Iterable[str] | None) -> KnobStatus:
    """The status on `backend`; `offers` is what the loaded model and drafters have, None before a load."""
    if backend not in knob.backends:
        where = " or ".join(knob.backends)
        general = f"it acts on the {where} backend only" if where else "not part of this version"
        said = knob.why_cuda if backend == "cuda" else knob.why
        return KnobStatus(knob.name, False, said or general)
    missing = [] if offers is None else [need for need in knob.needs if need not in offers]
    if missing:
        return KnobStatus(knob.name, False, f"{missing[0]} is not loaded")
    return KnobStatus(knob.name, True, "")


def _decimal(text: str, low: float, high: float) -> float | None:
    """Plain decimals such as 1, 0.25 or .5: no exponent, sign, infinity or underscore."""
    digits = text.replace(".", "", 1)
    if not (digits.isascii() and digits.isdigit() and len(digits) < 18):
        return None
    value = float(text)
    return value if math.isfinite(value) and low <= value <= high else None
