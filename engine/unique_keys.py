# SPDX-License-Identifier: MIT OR Apache-2.0
"""JSON objects in which no key may stand twice: the `object_pairs_hook` of what reads files of others."""

from __future__ import annotations

from typing import Any


class RepeatedKeyError(ValueError):
    """One object holds a key twice; says which."""


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs; RepeatedKeyError names a key that stands twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise RepeatedKeyError(f"the key {key!r} stands twice in one object")
            seen.add(key)
    return found
