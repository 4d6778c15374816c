# SPDX-License-Identifier: MIT OR Apache-2.0
"""Rounds that are not looked up for: what they leave in the index, and when a look is worth its time again."""

from __future__ import annotations

from collections.abc import Sequence

from engine.spec.drafter import RoundOutcome
from engine.spec.lookup import LookupDrafter
from engine.spec.lookup_index import LocalIndex
from engine.spec.tree import DraftTree


class Store:
    """Knows what follows one n-gram."""

    def __init__(self, gram: Sequence[int], line: tuple[int, ...]) -> None:
        self._gram, self._line = list(gram), line

    def continuations(self, gram: Sequence[int], length: int) -> list[tuple[int, ...]]:
        return [self._line[:length]] if list(gram) == self._gram else []


def test_whether_a_look_could_find_something_is_what_a_match_finds() -> None:
    index = LocalIndex(3)
    text = (1, 2, 3, 4, 1, 2, 3, 4, 5, 2, 3, 4)
    other = LocalIndex(3)
    other.extend(text)
    found = []
    for token in text:
        index.extend((token,))
        found.append(index.repeats())
        assert found[-1] == (index.match()[0] > 0)
    assert found == [False] * 6 + [True, True, False, False, False, True]
    assert (index.tokens, index.match(), index.entries()) == (
        other.tokens,
        other.match(),
        other.entries(),
    )


def test_following_is_settling_without_a_look() -> None:
    one, other = LookupDrafter(), LookupDrafter()
    prompt, tokens = (5, 6, 7, 8, 5, 6), (7, 8, 5)
    for drafter in (one, other):
        drafter.begin(prompt)
    one.settle(RoundOutcome(DraftTree.plain(7), (0,), tokens, 0.0, 0.0))
    other.follow(7, tokens)
    assert one.stirs  # 7 8 5 stood there before
    assert other.stirs
    assert one._index.tokens == other._index.tokens == [*prompt, 7, *tokens]
    assert one.look(5, 8) == other.look(5, 8)
    assert other.copy_run == 0
    other.follow(5, (9,))
    assert not other.stirs


def test_what_a_store_knows_stirs_too() -> None:
    gram = tuple(range(1, 9))
    drafter = LookupDrafter(stores={"the corpus": Store(gram, (50, 51))})
    drafter.begin(gram[:-2])
    drafter.follow(7, (20,))
    assert not drafter.stirs
    drafter.begin(gram[:-2])
    drafter.follow(7, (8,))
    assert drafter.stirs
    drafter.follow(8, (50,))
    assert not drafter.stirs
    bare = LookupDrafter()
    bare.begin(gram[:-2])
    bare.follow(7, (8,))
    assert not bare.stirs


def test_a_match_is_sure_when_all_that_is_compared_stood_before() -> None:
    drafter = LookupDrafter()
    drafter.begin((*range(10, 20), 5, *range(10, 16)))
    drafter.follow(16, ())
    assert drafter.stirs
    assert not drafter.sure  # 10 to 16 are seven tokens
    drafter.follow(16, (17,))
    assert drafter.sure
    drafter.follow(17, (3,))
    assert not drafter.sure
    gram = tuple(range(30, 38))
    stored = LookupDrafter(stores={"the corpus": Store(gram, (50, 51))})
    stored.begin(gram)
    assert stored.sure
