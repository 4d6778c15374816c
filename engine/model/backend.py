# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the decode loop needs of a forward pass, whichever kernels compute it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from engine.knobs import KnobSet
from engine.load.drafter import BlockCheckpoint
from engine.load.memory import FLOOR_BYTES, available_memory_bytes
from engine.model.block_forward import BlockRows
from engine.model.config import ModelConfig
from engine.spec.tree import MAX_NODES, check_order, is_chain

VERIFY_ROWS = MAX_NODES  # the most rows of one verify pass
PREFILL_CHUNK = 256  # tokens of a prompt that are read between two looks at a cancel
MAX_DRAFT = 4  # steps of one draft of the MTP head
MAX_WIDTH = 5  # candidates of one such step


@dataclass(slots=True)  # not frozen: one is made every round, and that would take most of it
class Verified:
    """Result of one verify pass: the best token of every row, and the logits float32 [rows, tokens].

    Padded vocabulary rows, behind the tokens that exist, are left out. `logits` is a view that the
    next pass overwrites. A best token of -1 marks a row with NaN.
    """

    best: list[int]
    logits: np.ndarray


@dataclass(frozen=True, slots=True)
class DraftStep:
    """Candidates of one step of the MTP head, the likeliest first, and their probabilities.

    A first token of -1 marks a step that computed no number.
    """

    tokens: tuple[int, ...]
    probabilities: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class OperationTime:
    """What one operation took, moved and computed over all its calls."""

    name: str
    calls: int
    total_ms: float
    bytes_read: int
    flops: int


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a backend's live sequence that it can go back to.

    sequence: the reset that it belongs to. length: positions that were committed. state: copies of what later
    positions overwrite, for the backend alone; keys and values stay where they are.
    """

    sequence: int
    length: int
    state: Any


class Backend(Protocol):
    """One model with one live sequence.

    The sequence has `length` committed positions. A verify pass computes further rows that count only once
    `commit` keeps them; rows that are not kept leave no trace.
    """

    name: str
    config: ModelConfig
    capacity: int
    length: int
    sequence: int  # how often it was reset
    block: BlockCheckpoint | None  # the drafter that was attached
    takes_int8: bool = False  # whether QWEN38_NVFP4_INT8 has a product to act on

    def apply_knobs(self, knobs: KnobSet) -> None:
        """Take over the values of the switches that flip between rounds; UsageError leaves the old ones."""

    def engaged(self) -> dict[str, int]:
        """How often each path was taken since the load, by name (`Knob.engaged`)."""

    def reset(self, *, speculate: bool) -> None:
        """Start an empty sequence; `speculate` also keeps the MTP head's cache in step."""

    def mark_bytes(self) -> int:
        """Bytes that a mark copies."""

    def free_bytes(self) -> int:
        """Memory that marks may take now."""
        return available_memory_bytes() - FLOOR_BYTES

    def mark(self) -> Mark:
        """The place behind the committed positions, for as long as this sequence lasts."""

    def resume(self, mark: Mark | None, *, speculate: bool) -> None:
        """Go on behind a mark, or (None) behind what is committed; `speculate` as in `reset`.

        What was committed behind the mark is gone, and so are marks there. The MTP head and the block drafter
        may begin anew: they propose only. Raises ValueError for a mark of another sequence, or behind the end.
        """

    def prefill(self, ids: Sequence[int]) -> Verified:
        """Commit a chunk of tokens (1 or more) and return the last row's result."""

    def all_logits(self, ids: Sequence[int]) -> Tensor:
        """Commit a chunk of tokens and return every row's logits, float32 [T, vocabulary]."""

    def draft(self, anchor: int, depth: int) -> list[int]:
        """Propose `depth` tokens to follow `anchor`, the token after the committed ones.

        At most MAX_DRAFT, and none without an MTP head or before the first committed token.
        """
        return [step.tokens[0] for step in self.draft_steps(anchor, depth, 1)]

    def draft_steps(self, anchor: int, depth: int, width: int) -> list[DraftStep]:
        """The same greedy chain with the `width` (1 to MAX_WIDTH) likeliest tokens of each of its steps."""

    def attach_block(self, block: BlockCheckpoint) -> None:
        """Take a block drafter along: from the next reset on its cache follows what is committed.

        Its linears may be freed. Raises UnsupportedModelError for a shape that these kernels do not take.
        """

    def block_room(self) -> int:
        """Rows that a block may have now, the anchor's included; 0 without a block drafter."""

    def draft_block(self, anchor: int, width: int) -> BlockRows:
        """One pass of the block drafter over the anchor and `width` - 1 mask tokens behind it.

        Raises ValueError when `width` is below 2 or above `block_room`.
        """

    def block_bytes(self) -> int:
        """Bytes that one pass of the block drafter has to read; 0 without one."""

    def verify(self, ids: Sequence[int], parents: Sequence[int] | None = None) -> Verified:
        """Compute rows for ids (the anchor, then drafted tokens) without committing them.

        `parents` makes a tree of them, in depth-first pre-order from -1: a row then follows the committed
        positions and its ancestors alone. None is a chain. Raises ValueError when the rows do not fit the
        context or a pass, or when the parents break that order.
        """

    def commit(self, rows: Sequence[int] | int) -> None:
        """Keep the rows of a path of the last verify pass: ascending from 0, each the child of the one before.

        A number keeps that many rows (1 or more) from the first. Raises ValueError for anything else.
        """

    def round_bytes(self, rows: int, drafted: int) -> int:
        """Bytes one round has to read: weights, recurrent state and KV, the drafter's included.

        Of routed experts those that the latest pass counted, if it had so many rows, else the mean.
        """

    def draft_bytes(self, steps: int) -> int:
        """Bytes that `steps` steps of the MTP head have to read, as they count in `round_bytes`."""

    def written_bytes(self) -> int:
        """Bytes of recurrent state that one round writes back to memory."""

    def suspect_layer(self) -> str:
        """The first place where the last pass held a NaN or an infinity, in words."""

    def operation_times(self) -> list[OperationTime] | str:
        """Times by operation of the passes of rounds since the last reset, or why there are none."""

    def reset_operation_times(self) -> None:
        """Start the times anew."""

    def close(self) -> None:
        """Free threads and memory."""


def check_mark(mark: Mark, sequence: int, length: int) -> None:
    """Raise ValueError unless `mark` lies in this sequence, within its `length` committed positions."""
    if mark.sequence != sequence or mark.length > length:
        raise ValueError(
            f"a mark at {mark.length} of sequence {mark.sequence} is none of {length} positions of {sequence}"
        )


def check_room(rows: int, length: int, capacity: int) -> None:
    """Raise ValueError unless `rows` rows, one at least, fit behind `length` of `capacity` positions."""
    if rows < 1 or length + rows > capacity:
        raise ValueError(f"{rows} rows after {length} do not fit a context of {capacity}")


def tree_parents(ids: Sequence[int], parents: Sequence[int] | None) -> Sequence[int] | None:
    """`parents` after a check, or None where they make a chain.

    Raises ValueError for more rows than a pass takes and for parents that are no tree of these rows.
    """
    if len(ids) > VERIFY_ROWS:
        raise ValueError(f"a verify pass takes at most {VERIFY_ROWS} rows, got {len(ids)}")
    if parents is None:
        return None
    if len(parents) != len(ids):
        raise ValueError(f"a tree has one parent a row, got {len(parents)} for {len(ids)} rows")
    if is_chain(parents):
        return None
    check_order(parents)
    return parents


def accepted_path(
    rows: Sequence[int] | int, verified: int, parents: Sequence[int] | None
) -> Sequence[int]:
    """The rows a commit keeps, from 0: `verified` rows were computed, with these parents (None: a chain).

    Raises ValueError when they are no path from row 0.
    """
    path = range(rows) if isinstance(rows, int) else rows
    if not 1 <= len(path) <= verified:
        raise ValueError(
            f"commit keeps 1 to {verified} rows of the last verify pass, got {len(path) or rows}"
        )
    before = -1
    for row in path:
        if not 0 <= row < verified or (row - 1 if parents is None else parents[row]) != before:
            raise ValueError(f"commit keeps a path from row 0, got {list(path)}")
        before = row
    return path
