# SPDX-License-Identifier: MIT OR Apache-2.0
"""The block drafter: one pass proposes a whole block, its lattice a chain or a tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from engine.model.backend import Backend
from engine.model.block_forward import bits_of
from engine.spec.drafter import RoundOutcome
from engine.spec.lattice import MODES, Lattice
from engine.spec.tree import DraftTree

SOURCE = "block"
COUNTED = "the block drafter"
NARROW, WIDE = 8, 16  # rows of a block


class BlockDrafter:
    """See `engine.spec.drafter.Drafter`.

    The backend keeps the drafter's cache in step with what it commits, so several of these may share one
    backend and differ in width. `temperature` sharpens (below 1) or flattens the lattice's probabilities; it
    may be changed between rounds.
    """

    name = SOURCE

    def __init__(
        self,
        backend: Backend,
        *,
        width: int = WIDE,
        temperature: float = 1.0,
        mode: str = "nodes",
        counts: Counter[str] | None = None,
    ) -> None:
        """`backend` has a block drafter attached; `width`: rows of a block, at most what it was made for.

        `counts` gets the verified tokens that it drafted. Raises ValueError for a mode that is not one of
        MODES, or where nothing is attached.
        """
        if mode not in MODES:
            raise ValueError(f"a tree mode is one of {', '.join(MODES)}, not {mode!r}")
        if backend.block is None:
            raise ValueError("no block drafter is attached")
        config, weights = backend.block.config, backend.block.weights
        self._backend = backend
        self._codebooks = bits_of(weights.predecessor), bits_of(weights.successor)
        self._mode = mode
        self.width = max(2, min(width, config.block_size))
        self.temperature = temperature
        self._counts = Counter() if counts is None else counts
        self.read_bytes = 0

    def begin(self, prompt: Sequence[int]) -> None:
        """The backend has followed the prompt already."""

    def propose(self, anchor: int, limit: int) -> DraftTree | None:
        """A tree of at most `limit` nodes besides the anchor; None where no block fits."""
        lattice = self.lattice(anchor, limit)
        return None if lattice is None else lattice.tree(limit, self._mode, SOURCE)

    def lattice(self, anchor: int, limit: int) -> Lattice | None:
        """One pass of the drafter; None where no block fits or it computed no number."""
        width = min(self.width, limit + 1, self._backend.block_room())
        self.read_bytes = 0
        if width < 2:
            return None
        self.read_bytes = self._backend.block_bytes()
        rows = self._backend.draft_block(anchor, width)
        return Lattice.of(rows, anchor, self._codebooks, self.temperature)

    def settle(self, outcome: RoundOutcome) -> None:
        """Count; there is nothing to learn, and the backend adds the accepted rows to the cache."""
        drafted = outcome.tree.sources.count(SOURCE)
        if drafted:
            self._counts[f"tokens drafted by {COUNTED}"] += drafted
