# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the decode loop needs of a drafter: it only ever proposes; verification alone decides the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from engine.spec.tree import DraftTree


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """What verification made of a proposal.

    tree: the nodes that were verified (the anchor alone in a plain round). path: the accepted nodes, from 0,
    ascending. tokens: what the round added to the text, the last one is the next anchor.
    """

    tree: DraftTree
    path: tuple[int, ...]
    tokens: tuple[int, ...]
    draft_ms: float
    verify_ms: float


class Drafter(Protocol):
    """One source of proposals, or a router over several.

    read_bytes: what the latest proposal had to read of weights and caches, for the bytes of the round; 0 where
    no forward pass ran.
    """

    name: str
    read_bytes: int

    def begin(self, prompt: Sequence[int]) -> None:
        """A new sequence starts with these committed tokens."""

    def propose(self, anchor: int, limit: int) -> DraftTree | None:
        """A tree of at most `limit` nodes besides the anchor, or None where drafting is not worth it.

        `limit` is 1 or more; what lies beyond it is cut off.
        """

    def settle(self, outcome: RoundOutcome) -> None:
        """Learn what the round committed; called after every round, also a plain one."""


@runtime_checkable
class Learns(Protocol):
    """A drafter that learns across texts."""

    def freeze(self, *, frozen: bool = True) -> None:
        """Hold everything that outlives a text or comes from a clock, or let it be learned again."""
