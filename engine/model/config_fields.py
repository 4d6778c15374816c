# SPDX-License-Identifier: MIT OR Apache-2.0
"""Fields of a config.json with their types and limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

from engine.errors import CheckpointError, UnsupportedModelError


class ConfigFields:
    """Typed reads of a config's fields; every failure names the file and the field."""

    def __init__(self, values: Mapping[str, Any], file: str) -> None:
        self.values = values
        self.file = file

    def get(self, name: str) -> Any:
        return self.values.get(name)

    def integer(self, name: str, largest: int, *, smallest: int = 1) -> int:
        value = self._required(name)
        if isinstance(value, bool) or not isinstance(value, int):
            self.wrong(name, "a whole number", value)
        if not smallest <= value <= largest:
            self.wrong(name, f"a whole number from {smallest} to {largest}", value)
        return value

    def number(self, name: str, largest: float, value: Any = None) -> float:
        value = self._required(name) if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.wrong(name, "a number", value)
        if not (math.isfinite(value) and 0 < value <= largest):
            self.wrong(name, f"a number above 0 and at most {largest:g}", value)
        return float(value)

    def boolean(self, name: str, value: Any) -> bool:
        if not isinstance(value, bool):
            self.wrong(name, "true or false", value)
        return value

    def _required(self, name: str) -> Any:
        value = self.values.get(name)
        if value is None:
            self.absent(name, null=name in self.values)
        return value

    def absent(self, name: str, *, null: bool) -> NoReturn:
        """Refuse a field that has to have a value; `null`: it is there, with none."""
        raise CheckpointError(
            f"{self.file}: the field {name} is {'null' if null else 'missing'}.",
            next_step="Use the config.json that was published with this model.",
        )

    def wrong(self, name: str, expected: str, got: Any) -> NoReturn:
        raise CheckpointError(
            f"{self.file}: {name} must be {expected}, but is {shortened(got)}.",
            next_step="Use the config.json that was published with this model.",
        )

    def unsupported(self, name: str, expected: str, got: Any, next_step: str) -> NoReturn:
        raise UnsupportedModelError(
            f"{self.file}: {name} is {shortened(got)}; this engine runs {expected}.",
            next_step=next_step,
        )


def shortened(value: Any) -> str:
    """A value as an error shows it, with the names that JSON has for three of them."""
    names = {None: "null", True: "true", False: "false"}
    text = names[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
