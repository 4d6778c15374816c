# SPDX-License-Identifier: MIT OR Apache-2.0
"""Numbers as people read them, on the terminal and in the window: one rule for both.

Groups of three are parted by a narrow no-break space. What a program reads (JSON, CSV) and what is to be typed
(a value of an option) is not grouped.
"""

from __future__ import annotations

SPACE = "\u202f"


def grouped(value: float, decimals: int = 0) -> str:
    """12345.6 -> "12 346"; groups of three parted by SPACE."""
    exact = isinstance(value, int) and not decimals  # as a float it may lose digits
    return (f"{value:,}" if exact else f"{value:,.{decimals}f}").replace(",", SPACE)


def significant(value: float) -> str:
    """A finite value with three significant digits at least, none invented: 0.913, 9.13, 91.3, 913, 9 130."""
    size = abs(value)
    decimals = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 or size == 0 else 3
    return grouped(value, decimals)


def byte_size(count: float) -> str:
    """Bytes in decimal units, as memory rates are: "1.25 GB"."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{significant(count / size)} {unit}"
    return f"{int(count)} B"
