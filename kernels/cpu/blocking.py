# SPDX-License-Identifier: MIT OR Apache-2.0
"""How a native product walks its weights and rows; none of it changes the order of a sum."""

from __future__ import annotations

from dataclasses import dataclass

MOST_TILES = 64
MOST_ROWS = 16
MOST_INPUTS = 1 << 20
MOST_AHEAD_BYTES = 1 << 16
INPUTS_UNIT = 128  # a block of FP8 scales; sums are kept in float32 between steps, group by group


@dataclass(frozen=True, slots=True)
class Blocking:
    """Sizes of one product.

    rows: rows computed together, 0 for the most that the kernel holds in registers. tiles: tiles of 16 outputs
    whose sums are kept while the inputs are taken step by step, even. inputs: inputs of such a step, 0 for the
    kernel's own rule by rows. ahead_bytes: how far ahead weights are fetched, whole cache lines.

    Raises:
        ValueError: a size out of range, or inputs that would cut a group of scales, which would change the
            order of the sum over K.
    """

    rows: int = 0
    tiles: int = 16
    inputs: int = 0
    ahead_bytes: int = 4096

    def __post_init__(self) -> None:
        limits = (
            ("rows", self.rows, 0, MOST_ROWS, 1),
            ("tiles", self.tiles, 2, MOST_TILES, 2),
            ("ahead_bytes", self.ahead_bytes, 0, MOST_AHEAD_BYTES, 64),
            ("inputs", self.inputs, 0, MOST_INPUTS, 1),
        )
        for name, value, low, high, unit in limits:
            if not low <= value <= high or value % unit:
                step = f", in steps of {unit}" if unit > 1 else ""
                raise ValueError(f"{name} must lie in {low}..{high}{step}, got {value}")
        if self.inputs % INPUTS_UNIT:
            raise ValueError(
                f"inputs must be a multiple of {INPUTS_UNIT}, got {self.inputs}: another step would cut a "
                "group of scales and change the order of the sum over K"
            )


DEFAULT = Blocking()
