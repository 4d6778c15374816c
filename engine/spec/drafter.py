# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the decode loop needs of a drafter: it only ever proposes; verification alone decides the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from engine.spec.tree import DraftTree


class RoundOutcome(NamedTuple):
    """What verification made of a proposal.

    tree: the nodes that were verified (the anchor alone in a plain round). path: the accepted nodes, from 0,
    ascending. tokens: what the round added to the text, the last one is the next anchor.
    """

    tree: DraftTree
    path: tuple[int, ...]
    tokens: tuple[int, ...]
    draft_ms: float
    verify_ms: float


class RouteChoice(NamedTuple):
    """What a round verifies and why, by a router over several sources.

    candidate: plain, lookup, the head's name, its line ("mtp line") or a merge ("mtp+lookup"). nodes: drafted
    rows of the verify pass. expected_tokens, tokens_per_ms: what the round is expected to add, and at which
    rate over the whole of it. skipped: why no head drafted, empty where one did. probe: one drafted only
    to learn how it stands. left_out: nodes of the candidate that were cut off. gain: tokens_per_ms over a
    plain round's.
    """

    candidate: str
    nodes: int
    expected_tokens: float
    tokens_per_ms: float
    price_source: str
    skipped: str = ""
    probe: bool = False
    left_out: int = 0
    gain: float = 1.0


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
class Routes(Protocol):
    """A drafter that chooses among sources.

    choice: that of its latest proposal. resting: whether the coming round is let pass, plain and without a
    decision: nothing is proposed, and it ends with `pass_by` in place of `settle`, at a small part of the cost.
    """

    choice: RouteChoice
    resting: bool

    def pass_by(self, anchor: int, token: int, verify_ms: float) -> None:
        """A round that was let pass added one token behind the anchor."""


@runtime_checkable
class Learns(Protocol):
    """A drafter that learns across texts."""

    def freeze(self, *, frozen: bool = True) -> None:
        """Hold everything that outlives a text or comes from a clock, or let it be learned again."""
