# SPDX-License-Identifier: MIT OR Apache-2.0
"""The ring of round records: one writer (the engine thread), any number of readers that pull.

The writer fills a preallocated row and then publishes it by raising the count, so a reader never sees a row
that is being written. Old rows may be overwritten before a slow reader comes by; it is told how many it lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from engine.spec.decode import Round

DRAFTERS = ("none", "mtp", "lookup", "block")
# What a router chose; the first: no router was asked.
ROUTES = (
    "",
    "plain",
    "lookup",
    "mtp",
    "mtp line",
    "mtp+lookup",
    "block",
    "block line",
    "block+lookup",
)

ROUND_DTYPE = np.dtype(
    [
        ("round_index", "i8"),  # since the engine started
        ("request_id", "i8"),
        ("end_s", "f8"),  # time.monotonic() when the round ended
        ("committed_tokens", "i4"),  # tokens appended to the text by this round
        ("drafted_tokens", "i4"),
        ("accepted_tokens", "i4"),  # of the drafted ones
        ("rows", "i4"),  # rows of the verify pass, anchor included
        ("context_tokens", "i4"),  # committed positions after the round
        ("drafter", "i4"),  # index into DRAFTERS
        ("route", "i4"),  # index into ROUTES; the next three are 0 where it is
        ("left_out_nodes", "i4"),  # of the chosen draft, cut off before the verify pass
        ("expected_tokens", "f4"),  # what the router expected the round to add
        ("expected_gain", "f4"),  # expected tokens a second over those of a round without a draft
        ("draft_ms", "f4"),
        ("verify_ms", "f4"),
        ("commit_ms", "f4"),
        ("sample_ms", "f4"),
        ("round_ms", "f4"),  # whole round, the unnamed rest included
        ("bytes_read", "i8"),  # weights, state and KV this round had to read
    ]
)

_NAMED = ROUND_DTYPE.names[1:]  # by whoever appends
_FIELDS = frozenset(_NAMED)


def round_fields(done: Round) -> dict[str, float]:
    """The fields of a record that a round knows of itself."""
    fields: dict[str, float] = {
        "committed_tokens": len(done.tokens),
        "drafted_tokens": done.drafted,
        "accepted_tokens": done.accepted,
        "rows": done.rows,
        "drafter": DRAFTERS.index(done.drafter),
        "draft_ms": done.draft_ms,
        "verify_ms": done.verify_ms,
        "commit_ms": done.commit_ms,
        "sample_ms": done.sample_ms,
        "bytes_read": done.bytes_read,
    }
    if done.choice is not None:
        fields["route"] = ROUTES.index(done.choice.candidate)
        fields["left_out_nodes"] = done.choice.left_out
        fields["expected_tokens"] = done.choice.expected_tokens
        fields["expected_gain"] = done.choice.gain
    return fields


class RoundRing:
    """A ring of `capacity` round records (dtype ROUND_DTYPE)."""

    def __init__(self, capacity: int = 1 << 14) -> None:
        self._rows = np.zeros(capacity, ROUND_DTYPE)
        self._count = 0

    @property
    def count(self) -> int:
        """Records written since the start."""
        return self._count

    def append(self, **fields: float) -> None:
        """Write one record; unnamed fields are zero, `round_index` is set here."""
        if not _FIELDS.issuperset(fields):
            raise TypeError(f"unknown round fields: {', '.join(sorted(fields.keys() - _FIELDS))}")
        at = self._count % len(self._rows)
        # At once: a field at a time would take a twentieth of a short round.
        self._rows[at] = self._count, *[fields.get(name, 0) for name in _NAMED]
        self._count += 1

    def since(self, cursor: int) -> tuple[np.ndarray, int, int]:
        """Records from `cursor` on: (copy of the rows in order, new cursor, rows lost to overwriting)."""
        end = self._count
        size = len(self._rows)
        # One row is left out at the tail: the writer may be filling it.
        begin = max(cursor, end - size + 1, 0)
        lost = begin - cursor
        index = np.arange(begin, end) % size
        rows = self._rows[index]
        # Rows the writer reached while they were copied are torn: drop them.
        torn = min(max(0, self._count - size + 1 - begin), len(rows))
        return rows[torn:], end, lost + torn
