# SPDX-License-Identifier: MIT OR Apache-2.0
"""Numbers as the console writes them: grouped as the engine's, and an em dash for "not measured"."""

from __future__ import annotations

import math

from engine import api
from engine.api import grouped

NONE = "—"


def number(value: float | None, decimals: int = 0) -> str:
    """A grouped number, or an em dash for None and NaN."""
    if value is None or not math.isfinite(value):
        return NONE
    return grouped(value, decimals)


def significant(value: float | None) -> str:
    """Three significant digits at least and none invented, or an em dash for None and NaN."""
    if value is None or not math.isfinite(value):
        return NONE
    return api.significant(value)


def percent(value: float | None, decimals: int = 0) -> str:
    return NONE if value is None or not math.isfinite(value) else f"{value:.{decimals}f} %"


def of_roof(rate: float, roof: float, name: str) -> str:
    """A read rate as a share of the roof of that name: "42 % of roof 41.2"."""
    share = 100 * rate / roof
    return f"{percent(share, 0 if share >= 1 else 1)} of {name} {significant(roof)}"


def byte_size(count: float | None) -> str:
    """Bytes in decimal units, as memory rates are: "1.25 GB"."""
    return NONE if count is None else api.byte_size(count)


def of_bytes(done: float, total: float) -> str:
    """ "1.20 of 3.41 GB": both in the unit of the total, with two decimals so that the width holds still."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if total >= size:
            return f"{done / size:.2f} of {total / size:.2f} {unit}"
    return f"{int(done)} of {int(total)} B"


def duration(seconds: float | None) -> str:
    """ "0.4 s", "12 s", "3 min 5 s"."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


def milliseconds(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return NONE
    return f"{significant(value)} ms" if value < 1000 else f"{significant(value / 1000)} s"


def parameters(count: int) -> str:
    """8 100 000 -> "8.1 M", 27 000 000 000 -> "27.0 B"."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return str(count)
