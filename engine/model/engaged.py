# SPDX-License-Identifier: MIT OR Apache-2.0
"""Counters of the paths a backend took: the proof that a switch is engaged."""

from __future__ import annotations

from collections.abc import Mapping


class Engaged:
    """Counts by path name, written by the thread that runs the model and read from any."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._bundles: dict[frozenset[tuple[str, int]], int] = {}
        self._runs: list[int] = []  # of each bundle

    def count(self, path: str, times: int = 1) -> None:
        """The path was taken `times` more."""
        self._counts[path] = self._counts.get(path, 0) + times

    def most(self, path: str, value: int) -> None:
        """Keep the largest of the values seen instead of a count."""
        self._counts[path] = max(value, self._counts.get(path, 0))

    def bundle(self, paths: Mapping[str, int]) -> int:
        """A number for paths that one pass takes together, so often each: a pass then counts in one step."""
        known = self._bundles.setdefault(frozenset(paths.items()), len(self._runs))
        if known == len(self._runs):
            self._runs.append(0)
        return known

    def ran(self, bundle: int) -> None:
        """The paths of a bundle were taken once more."""
        self._runs[bundle] += 1

    def counts(self) -> dict[str, int]:
        """The counts so far."""
        counts = self._counts.copy()
        for paths, bundle in self._bundles.copy().items():
            for path, times in paths:
                counts[path] = counts.get(path, 0) + times * self._runs[bundle]
        return counts
