# SPDX-License-Identifier: MIT OR Apache-2.0
"""The sweep of a GPU product's launch settings: `sweep(run, time_us, ...)`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from kernels.checks import same_bits

MOST_ROWS = 32
LEAST_GAIN = 0.01

T = TypeVar("T")


@dataclass(frozen=True)
class Swept(Generic[T]):
    """What a sweep found for one shape.

    Attributes:
        tile: the fastest setting, the default where none gains LEAST_GAIN in two comparisons.
        us, default_us: microseconds of one product, by the rows' shares.
        tried: settings that were timed, the default among them.
        refused: settings that changed a bit or cannot be launched.
    """

    tile: T
    us: float
    default_us: float
    tried: int
    refused: tuple[T, ...]


def sweep(
    run: Callable[[int, T], Tensor],
    time_us: Callable[[int, T], float],
    *,
    default: T,
    tiles: Iterable[T],
    shares: Mapping[int, float],
    unlaunchable: tuple[type[Exception], ...] = (),
) -> Swept[T]:
    """The fastest setting whose results are those of the default, bit for bit, at 1 to 32 rows.

    Args:
        run: (rows, setting) -> the product of the first `rows` rows of one input.
        time_us: (rows, setting) -> microseconds of one product over cold weights.
        shares: rows -> its weight in the time that counts.
        unlaunchable: what `run` raises for a setting that this device has no room for.
    """
    wanted = {rows: run(rows, default) for rows in range(1, MOST_ROWS + 1)}

    def mixed(tile: T) -> float:
        return sum(share * time_us(rows, tile) for rows, share in shares.items())

    best, tried, refused = default, 1, []
    best_us = mixed(default)
    for tile in tiles:
        if tile == default:
            continue
        try:
            same = all(same_bits(run(rows, tile), result) for rows, result in wanted.items())
        except unlaunchable:
            same = False
        if not same:
            refused.append(tile)
            continue
        tried += 1
        us = mixed(tile)
        if us < best_us:
            best, best_us = tile, us
    # Twice, in alternation: a gain of chance or of a clock that rose seldom shows both times.
    compared = [(mixed(default), mixed(best)) for _ in range(2)]
    default_us, best_us = (sum(column) / 2 for column in zip(*compared, strict=True))
    if any(us > plain * (1 - LEAST_GAIN) for plain, us in compared):
        best, best_us = default, default_us
    return Swept(best, best_us, default_us, tried, tuple(refused))
