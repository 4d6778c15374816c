# SPDX-License-Identifier: MIT OR Apache-2.0
"""Where the last few tokens of a text stood before: an exact index that grows token by token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

MAX_ORDER = 8
MOST_POSITIONS = 24
# Bits of one token in a packed n-gram: 0 is "before the text", so that ids are stored plus one.
_BITS = 25


class _Order(NamedTuple):
    """n-grams of one length: `newest` position behind each, and the position `before` one that is not alone."""

    order: int
    mask: int
    newest: dict[int, int]
    before: dict[int, int]


class LocalIndex:
    """The tokens of one text and, for every n-gram in it, the positions that followed it.

    n-grams of `min_order` to 8 tokens are packed into one integer each, exactly, so that a hit needs no second
    look. An n-gram is entered when the token behind it is known: the end of the text never finds itself.

    New text costs one entry a token: an n-gram of n + 1 tokens is entered only when its last n stand in the
    text twice. Where they stand once, the text itself tells how long the match is.
    """

    def __init__(self, min_order: int = 2) -> None:
        if not 2 <= min_order <= MAX_ORDER:
            raise ValueError(f"n-grams have 2 to {MAX_ORDER} tokens, not {min_order}")
        self.tokens: list[int] = []
        self._tail = 0  # the last 8 tokens, the newest in the low bits
        self._twin = 0, 0  # an earlier position and the 8 tokens in front of it
        self._orders = [
            _Order(order, (1 << _BITS * order) - 1, {}, {})
            for order in range(min_order, MAX_ORDER + 1)
        ]
        self._longer = self._orders[1:]
        self._shortest, self._whole = self._orders[0], self._orders[-1].mask

    def __len__(self) -> int:
        return len(self.tokens)

    def entries(self) -> int:
        """Entries of all tables: what the index holds besides the text."""
        return sum(len(each.newest) + len(each.before) for each in self._orders)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens, ids from 0 to 2**24 - 1."""
        known = self.tokens
        _, mask, newest, before = self._shortest
        for token in tokens:
            tail = self._tail
            gram, position = tail & mask, len(known)
            last = newest.get(gram)
            newest[gram] = position
            if last is not None:
                before[position] = last
                self._enter_longer(position, last, tail)
            known.append(token)
            self._tail = (tail << _BITS | token + 1) & self._whole

    def _enter_longer(self, position: int, last: int, tail: int) -> None:
        """Enter the longer n-grams in front of `position`; `last` is where the shortest one stood before."""
        shorter = self._orders[0].before
        twin, twin_gram = -1, 0
        for _, mask, newest, before in self._longer:
            gram = tail & mask
            if last not in shorter:  # it stood alone so far, and its longer n-gram was not entered
                if twin != last:
                    twin, twin_gram = last, self._twin_gram(last)
                newest[gram] = position
                if twin_gram & mask != gram:
                    newest[twin_gram & mask] = last
                    return
                before[position] = last
            else:
                found = newest.get(gram)
                newest[gram] = position
                if found is None:
                    return
                before[position] = last = found
            shorter = before

    def _twin_gram(self, position: int) -> int:
        """The 8 tokens in front of a position; in a copy each position asked for is the one after the last."""
        at, gram = self._twin
        if position != at:
            if position == at + 1:
                gram = (gram << _BITS | self.tokens[at] + 1) & self._orders[-1].mask
            else:
                gram = self._packed(position)
            self._twin = position, gram
        return gram

    def _packed(self, position: int) -> int:
        gram = 0
        for token in self.tokens[max(0, position - MAX_ORDER) : position]:
            gram = gram << _BITS | token + 1
        return gram

    def cut(self, length: int) -> None:
        """Forget everything behind the first `length` tokens, at the cost of what is forgotten."""
        known = self.tokens
        while len(known) > length:
            known.pop()
            position = len(known)
            tail = self._packed(position)
            for each in self._orders:
                gram = tail & each.mask
                if each.newest.get(gram) != position:
                    break
                last = each.before.pop(position, None)
                if last is None:
                    del each.newest[gram]
                else:
                    each.newest[gram] = last
        self._tail = self._packed(len(known))
        self._twin = 0, 0

    def restart(self, tokens: Sequence[int]) -> None:
        """Hold these tokens alone; what the text and they have in common at the front is kept as it is."""
        known, tokens = self.tokens, list(tokens)
        if known[: len(tokens)] == tokens[: len(known)]:  # one continues the other
            shared = min(len(known), len(tokens))
        else:
            pairs = enumerate(zip(known, tokens, strict=False))
            shared = next(at for at, (old, new) in pairs if old != new)
        self.cut(shared)
        self.extend(tokens[shared:])

    def match(self) -> tuple[int, list[int]]:
        """(length of the longest match of the end of the text with an earlier place, positions behind such).

        The length is at most 8; the positions are at most 24, the newest ones, newest first. (0, []) where
        fewer than `min_order` tokens match.
        """
        tail = self._tail
        shortest = self._orders[0]
        position = shortest.newest.get(tail & shortest.mask)
        if not position:
            return 0, []
        order, before = shortest.order, shortest.before
        for each in self._longer:
            if position not in before:
                return self._length(position, order), [position]
            longer = each.newest.get(tail & each.mask)
            if longer is None:
                break
            position, order, before = longer, each.order, each.before
        found = [position]
        while len(found) < MOST_POSITIONS and (earlier := before.get(position)):
            found.append(earlier)
            position = earlier
        return order, found

    def repeats(self) -> bool:
        """Whether the end of the text stood before at all: what `match` finds something for."""
        shortest = self._orders[0]
        return bool(shortest.newest.get(self._tail & shortest.mask))

    def _length(self, position: int, order: int) -> int:
        """How many tokens in front of `position` match the end of the text, `order` of them for sure."""
        known = self.tokens
        while order < min(MAX_ORDER, position) and known[position - order - 1] == known[-order - 1]:
            order += 1
        return order
