# SPDX-License-Identifier: MIT OR Apache-2.0
"""Recorded forward passes by the shape of the round: the CPU's CUDA graphs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

_FIRST_CLASS_TOKENS = 1024
_KEPT = 256  # recordings; prompts end in chunks of many sizes


class GraphKey(NamedTuple):
    """What a recording is valid for; positions, lengths, tokens and the pending commit are not part of it.

    `kind`: chain, tree, prefill, replay, flush, head, draft or extend, and those of a block drafter
    (`engine.model.block_waiting`). `steps` and `width`: tokens drafted in a line and candidates of each.
    `parity`: which of the two record sets the pass writes. `signature`: the values of the switches that shape a
    pass.
    """

    kind: str
    rows: int
    context_class: int
    signature: str
    parity: int
    steps: int = 0
    width: int = 0


class Recording(Protocol):
    """What a key leads to."""

    def run(self) -> None: ...


def context_class(tokens: int) -> int:
    """The next power of two from 1,024: recordings of one class share their byte model."""
    size = _FIRST_CLASS_TOKENS
    while size < tokens:
        size *= 2
    return size


def round_shapes(depth: int, width: int) -> list[tuple[str, int]]:
    """(kind, rows) of verify passes with up to `depth` drafted tokens of `width` candidates each."""
    chains = [("chain", rows) for rows in range(1, depth + 2)]
    return [*chains, ("tree", 1 + depth * width)] if depth > 0 and width > 1 else chains


R = TypeVar("R", bound=Recording)


class VerifyGraphs(Generic[R]):
    """Recordings made on first use and kept by key, the least recently used dropped first.

    How to record is passed with the key, not kept: an owner that is dropped frees its buffers at once.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[GraphKey, R] = OrderedDict()

    def get(self, key: GraphKey, record: Callable[[GraphKey], R]) -> R:
        """The recording of a key; `record` makes it when there is none."""
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = record(key)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(key)
        return found

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        """Drop every recording, after buffers or weights moved."""
        self._kept.clear()
