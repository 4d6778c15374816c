# SPDX-License-Identifier: MIT OR Apache-2.0
"""Where the last few tokens of a text stood before: an exact index that grows token by token."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

MAX_ORDER = 8
MOST_POSITIONS = 24
_BITS = (
    25  # of one token in a packed n-gram: 0 is "before the text", so that ids are stored plus one
)


class LocalIndex:
    """The tokens of one text and, for every n-gram in it, the positions that followed it.

    n-grams of `min_order` to 8 tokens are packed into one integer each, exactly, so that a hit needs no second
    look. An n-gram is entered when the token behind it is known: the end of the text never finds itself. For
    each order one table holds the newest position, and a column of the text links each position to the one
    before it with the same n-gram; both only ever gain or lose their last entry, so that a token costs the same
    at any length and a text can be cut back to a prefix of itself.
    """

    def __init__(self, min_order: int = 2) -> None:
        if not 2 <= min_order <= MAX_ORDER:
            raise ValueError(f"n-grams have 2 to {MAX_ORDER} tokens, not {min_order}")
        self.tokens: list[int] = []
        self._tail = 0  # the last 8 tokens, the newest in the low bits
        self._orders: list[tuple[int, int, dict[int, int], array[int]]] = [
            (order, (1 << _BITS * order) - 1, {}, array("i"))
            for order in range(min_order, MAX_ORDER + 1)
        ]

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens, ids from 0 to 2**24 - 1."""
        known = self.tokens
        tail = self._tail
        orders = self._orders
        whole = orders[-1][1]
        position = len(known)
        for token in tokens:
            for _, mask, newest, before in orders:
                gram = tail & mask
                before.append(newest.get(gram, 0))
                newest[gram] = position
            known.append(token)
            position += 1
            tail = (tail << _BITS | token + 1) & whole
        self._tail = tail

    def cut(self, length: int) -> None:
        """Forget everything behind the first `length` tokens, at the cost of what is forgotten."""
        known = self.tokens
        tail = self._tail
        while len(known) > length:
            known.pop()
            at = len(known) - MAX_ORDER
            oldest = known[at] + 1 if at >= 0 else 0
            tail = tail >> _BITS | oldest << _BITS * (MAX_ORDER - 1)
            for _, mask, newest, before in self._orders:
                gram = tail & mask
                last = before.pop()
                if last:
                    newest[gram] = last
                else:
                    del newest[gram]
        self._tail = tail

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
        """(order of the longest n-gram at the end that stood before, positions behind it, newest first).

        At most 24 positions, the newest ones; (0, []) where there is none.
        """
        tail = self._tail
        for order, mask, newest, before in reversed(self._orders):
            position = newest.get(tail & mask, 0)
            if position:
                found = [position]
                while len(found) < MOST_POSITIONS and (position := before[position]):
                    found.append(position)
                return order, found
        return 0, []
