# SPDX-License-Identifier: MIT OR Apache-2.0
"""The counting of committed rows that every compiled block drafter shares."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from engine.model.block_waiting import WaitingRows


class Counted(WaitingRows):
    """Writes down what it is told to copy and to compute."""

    def __init__(self, *, context_tokens: int = 100, capacity: int = 64, most: int = 8) -> None:
        self.told: list[Any] = []
        config = SimpleNamespace(context_tokens=context_tokens, block_size=4, window=5)
        super().__init__(config, capacity=capacity, most=most)

    def run(self, kind: str, rows: int, **_: object) -> None:
        self.told.append((kind, rows))

    def _copy(self, path: Sequence[int], at: int, *, in_order: bool) -> None:
        self.told.append((list(path), at, in_order))

    def _keep_from(self, at: int, count: int) -> None:
        self.told.append(("kept", at, count))

    def _start_context(self, position: int) -> None:
        self.told.append(position)


def test_rows_wait_until_there_is_no_more_place_for_them() -> None:
    rows = Counted()
    rows.reset(active=True, length=10)
    rows.add(rows.run, [0, 1, 2, 3, 4])
    rows.add(rows.run, [0, 2])
    assert rows.told == [([0, 1, 2, 3, 4], 0, True), ([0, 2], 5, False)]
    rows.told.clear()
    rows.add(rows.run, [0, 1])
    assert rows.told == [10, ("block context", 8), ([0, 1], 0, True)]
    assert (rows.first, rows.length, rows._seen) == (10, 19, 5)
    rows.told.clear()
    for _ in range(2):  # the second time none wait
        rows._extend(rows.run, in_round=False)
    assert rows.told == [17, ("block context", 2)]


def test_nothing_is_kept_behind_the_last_position_of_a_block() -> None:
    rows = Counted(context_tokens=20)
    rows.reset(active=True, length=18)
    assert rows.room() == 2
    rows.add(rows.run, [0, 1, 2, 3, 4, 5, 6, 7])
    assert (rows.told, rows.length, rows.room()) == ([([0, 1, 2, 3, 4, 5], 0, True)], 24, -4)
    rows.add(rows.run, [0])
    assert rows.length == 24


def test_passes_over_rows_that_wait_are_of_few_sizes_and_stay_inside() -> None:
    rows = Counted(context_tokens=9, most=6)  # 13 positions
    rows.reset(active=True)
    for waiting, computed in ((3, 4), (5, 5), (1, 1), (3, 4)):  # 8 rows would not fit the buffer
        rows.add(rows.run, range(waiting))
        rows.told.clear()
        rows._extend(rows.run, in_round=True)
        assert rows.told[1] == ("block context", computed)
    rows.reset(active=True, length=10)
    rows.add(rows.run, range(3))
    rows._extend(rows.run, in_round=True)
    assert rows.told[-1] == ("block context", 3)  # a fourth would lie behind the last position


def test_rounds_that_nothing_drafts_for_are_let_go() -> None:
    rows = Counted()
    rows.reset(active=True, length=10)
    rows.add(rows.run, range(3))  # a prompt
    for _ in range(5):
        rows.add(rows.run, [0], in_round=True)
    rows.told.clear()
    rows.add(rows.run, [0], in_round=True)
    assert rows.told == [("kept", 6, 2), ([0], 2, True)]
    assert (rows.first, rows.length, rows._waits) == (16, 19, 3)
    # A prompt behind such rounds is kept whole, however long it is.
    for _ in range(4):
        rows.add(rows.run, [0], in_round=True)
    rows.told.clear()
    rows.add(rows.run, range(8))
    assert rows.told == [16, ("block context", 8), (list(range(8)), 0, True)]
    assert (rows.first, rows.length, rows._waits) == (16, 31, 8)
    # After a prompt that nearly fills the buffer nothing is let go for a few rounds.
    rows.reset(active=True)
    rows.add(rows.run, range(6))
    for _ in range(2):
        rows.add(rows.run, [0], in_round=True)
    rows.told.clear()
    rows.add(rows.run, [0], in_round=True)
    assert rows.told == [0, ("block context", 8), ([0], 0, True)]
    assert rows.first == 0


def test_rounds_that_were_drafted_for_are_not_let_go() -> None:
    rows = Counted()
    rows.reset(active=True)
    for _ in range(2):
        for _ in range(4):
            rows.add(rows.run, [0], in_round=True)
        rows._extend(rows.run, in_round=True)  # a draft
    rows.add(rows.run, range(7))
    rows.told.clear()
    rows.add(rows.run, [0, 1], in_round=True)
    assert rows.told == [8, ("block context", 8), ([0, 1], 0, True)]
    assert rows.first == 0


def test_without_speculation_nothing_is_counted() -> None:
    rows = Counted()
    rows.reset(active=False, length=3)
    rows.add(rows.run, [0, 1])
    assert (rows.told, rows.length, rows.room()) == ([], 3, 0)
