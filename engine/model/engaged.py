# SPDX-License-Identifier: MIT OR Apache-2.0
"""Counters of the paths a backend took: the proof that a switch is engaged."""

from __future__ import annotations

from collections.abc import Mapping


class Engaged:
    """Counts by path name, written by the thread that runs the model and read from any."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def count(self, path: str, times: int = 1) -> None:
        """The path was taken `times` more."""
        self._counts[path] = self._counts.get(path, 0) + times

    def add(self, paths: Mapping[str, int]) -> None:
        """Each of these paths was taken that often more."""
        for path, times in paths.items():
            self._counts[path] = self._counts.get(path, 0) + times

    def counts(self) -> dict[str, int]:
        """A copy of the counts so far."""
        return self._counts.copy()
