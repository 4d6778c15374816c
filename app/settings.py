# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the console remembers between runs, typed (an INI file keeps no types by itself)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields

from PySide6.QtCore import QByteArray, QSettings

from app.format import grouped

RECENT_LIMIT = 8


@dataclass(frozen=True, slots=True)
class Sampling:
    """How answers are drawn; temperature 0 is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int = 512
    speculate: bool = True
    truncate: bool = False

    def summary(self) -> str:
        """One line for the composer, e.g. "greedy · up to 512 tok · no speculation"."""
        return self.summaries()[0]

    def summaries(self) -> tuple[str, ...]:
        """The same, and shorter, for where it has no room."""
        draw = "greedy" if self.temperature == 0 else f"T {self.temperature:.2f}"
        most = f"{grouped(self.max_tokens)} tok"
        plain = () if self.speculate else ("no speculation",)
        long, short = (draw, f"up to {most}", *plain), (draw, most, *plain)
        return " · ".join(long), " · ".join(short), *(plain or (draw,))


class Settings:
    """Typed access to one QSettings store."""

    def __init__(self, store: QSettings | None = None) -> None:
        self._store = store or QSettings()

    def _text(self, key: str, default: str = "") -> str:
        return str(self._store.value(key, default))

    @property
    def theme(self) -> str:
        return self._text("theme", "system")

    @theme.setter
    def theme(self, choice: str) -> None:
        self._store.setValue("theme", choice)

    @property
    def recent_models(self) -> list[str]:
        """Folders opened lately, newest first."""
        return _strings(self._text("recent_models", "[]"))

    def add_recent_model(self, path: str) -> None:
        kept = [entry for entry in self.recent_models if entry != path]
        self._store.setValue("recent_models", json.dumps([path, *kept][:RECENT_LIMIT]))

    @property
    def last_folder(self) -> str:
        return self._text("last_folder")

    @last_folder.setter
    def last_folder(self, path: str) -> None:
        self._store.setValue("last_folder", path)

    @property
    def conversation_folder(self) -> str:
        """Where a conversation was saved or opened last; models lie elsewhere."""
        return self._text("conversation_folder")

    @conversation_folder.setter
    def conversation_folder(self, path: str) -> None:
        self._store.setValue("conversation_folder", path)

    @property
    def sampling(self) -> Sampling:
        """The stored sampling; a value of the wrong type falls back to its default."""
        try:
            stored = json.loads(self._text("sampling", "{}"))
        except ValueError:
            stored = {}
        if not isinstance(stored, dict):
            stored = {}
        default = Sampling()
        known = {}
        for field in fields(Sampling):
            value, usual = stored.get(field.name), getattr(default, field.name)
            if isinstance(value, type(usual)) or (field.name == "seed" and isinstance(value, int)):
                known[field.name] = value
        return Sampling(**known)

    @sampling.setter
    def sampling(self, sampling: Sampling) -> None:
        self._store.setValue("sampling", json.dumps(asdict(sampling)))

    def layout(self, name: str) -> QByteArray:
        """A saved geometry or splitter state, empty when there is none."""
        value = self._store.value(f"layout/{name}")
        return value if isinstance(value, QByteArray) else QByteArray()

    def set_layout(self, name: str, state: QByteArray) -> None:
        self._store.setValue(f"layout/{name}", state)

    def sync(self) -> None:
        self._store.sync()


def _strings(text: str) -> list[str]:
    try:
        value = json.loads(text)
    except ValueError:
        return []
    return [entry for entry in value if isinstance(entry, str)] if isinstance(value, list) else []
