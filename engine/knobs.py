# SPDX-License-Identifier: MIT OR Apache-2.0
"""Every QWEN38_* switch, declared once, and the values in effect with where each came from.

Precedence: default < profile file < environment < change by the caller. An unknown name or a value that does
not parse is an error. No other module reads a QWEN38_* variable.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.errors import UsageError

PREFIX = "QWEN38_"
SOURCES = ("default", "profile", "environment", "caller")


@dataclass(frozen=True, slots=True)
class Knob:
    """One switch.

    `kind`: bool, int or choice. `bits`: identical, near-tie, other-weights or proposes-only (what a flip does
    to the text). `flip`: live, recapture or reload. `engaged`: the counter that proves it took effect.
    """

    name: str
    kind: str
    default: str
    effect: str
    bits: str
    flip: str
    engaged: str
    low: int = 0
    high: int = 0
    choices: tuple[str, ...] = ()

    def accepted(self) -> str:
        """The accepted values in words."""
        if self.kind == "bool":
            return "0 or 1"
        if self.kind == "int":
            return f"a whole number from {self.low} to {self.high}"
        return "one of " + ", ".join(choice or "(empty)" for choice in self.choices)

    def parse(self, text: str) -> bool | int | str:
        """The typed value of `text`; UsageError names the switch and the accepted values."""
        text = text.strip()
        if self.kind == "bool" and text in ("0", "1"):
            return text == "1"
        if self.kind == "int" and text.isascii() and text.isdigit() and len(text) < 10:
            number = int(text)
            if self.low <= number <= self.high:
                return number
        if self.kind == "choice" and text in self.choices:
            return text
        raise UsageError(
            f"{PREFIX}{self.name}={text!r} is not accepted.",
            kept="Nothing was changed.",
            next_step=f"Use {self.accepted()}.",
        )


KNOBS: tuple[Knob, ...] = (
    Knob(
        "MTP_DEPTH", "int", "3",
        "How many tokens the checkpoint's own MTP head drafts for one verify pass; 0 drafts none.",
        "proposes-only", "live", "drafted tokens a round", 0, 4,
    ),
    Knob(
        "VERIFY_GRAPH", "bool", "1",
        "Replay a recorded tape of the forward pass in one native call instead of issuing every operation.",
        "identical", "live", "tape replays a round",
    ),
    Knob(
        "CPU_ISA", "choice", "",
        "Force the instruction set of the native kernels (reference: the readable PyTorch operations instead); "
        "empty picks the best this processor has.",
        "near-tie", "reload", "instruction set of the loaded library",
        choices=("", "avx512bf16", "avx512", "avx2", "portable", "reference"),
    ),
)  # fmt: skip

_BY_NAME = {knob.name: knob for knob in KNOBS}


class KnobSet:
    """The values in effect; each knows its source (one of SOURCES)."""

    def __init__(self, values: Mapping[str, tuple[str, str]]) -> None:
        self._raw = {knob.name: values.get(knob.name, (knob.default, "default")) for knob in KNOBS}
        self._parsed = {name: _BY_NAME[name].parse(raw) for name, (raw, _) in self._raw.items()}

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

    def raw(self, name: str) -> tuple[str, str]:
        """(text, source) of a switch named without its prefix."""
        return self._raw[name]

    def signature(self) -> tuple[tuple[str, str], ...]:
        """The switches that a recorded pass depends on, with their values."""
        return tuple(
            (knob.name, self._raw[knob.name][0])
            for knob in KNOBS
            if knob.flip != "reload" and knob.bits != "proposes-only"
        )

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

    def choice(self, name: str) -> str:
        """Value of a choice switch."""
        value = self._parsed[name]
        assert isinstance(value, str)
        return value


def read_profile(path: Path) -> dict[str, str]:
    """The KEY=value lines of an env file; nothing in it is executed.

    Blank lines and lines that start with # are skipped. Errors carry the line number.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_PROFILE_LIMIT_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: cannot read the profile: {error.strerror}.") from error
    if len(data) > _PROFILE_LIMIT_BYTES:
        raise UsageError(f"{path}: larger than {_PROFILE_LIMIT_BYTES} bytes, not a profile.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: the profile is not UTF-8 text (byte {error.start}).") from error
    values: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        key, equals, value = line.partition("=")
        key, value = key.strip(), value.strip()
        where = f"{path}, line {number}"
        if not equals:
            raise UsageError(f"{where}: expected KEY=value, got {line[:80]!r}.")
        if key in values:
            raise UsageError(f"{where}: {key} stands twice.", next_step="Remove one of them.")
        try:
            knob_named(key).parse(value)
        except UsageError as error:
            raise UsageError(f"{where}: {error.cause}", next_step=error.next_step) from None
        values[key] = value
    return values


_PROFILE_LIMIT_BYTES = 1 << 20


def knob_named(key: str) -> Knob:
    """The switch of a full name; UsageError when there is none."""
    name = key.removeprefix(PREFIX)
    if not key.startswith(PREFIX) or name not in _BY_NAME:
        known = ", ".join(PREFIX + knob for knob in _BY_NAME)
        raise UsageError(
            f"{key} is not a switch of this engine.",
            kept="Nothing was changed.",
            next_step=f"Known switches: {known}.",
        )
    return _BY_NAME[name]


def _lay(values: dict[str, tuple[str, str]], updates: Mapping[str, str], source: str) -> None:
    for key, value in updates.items():
        knob = knob_named(key)
        knob.parse(value)
        values[knob.name] = (value.strip(), source)
