# SPDX-License-Identifier: MIT OR Apache-2.0
"""Making a prompt fit the context."""

from __future__ import annotations

from engine.errors import LongPromptError
from engine.numbers import grouped


def fitted(
    ids: list[int], capacity: int, *, truncate: bool, max_tokens: int
) -> tuple[list[int], int]:
    """The prompt as it fits a context of `capacity` positions, and how many tokens were dropped.

    A prompt is refused where it leaves no room for one new token. A cut one leaves room for the answer that was
    asked for, as far as that takes no more than half of the context. Raises LongPromptError.
    """
    room = capacity - 1
    if len(ids) <= room:
        return ids, 0
    if not truncate:
        over = len(ids) - room
        raise LongPromptError(
            f"The prompt has {grouped(len(ids))} tokens; the context holds {grouped(capacity)} "
            "with at least one for the answer.",
            kept="Nothing was changed.",
            next_step=f"Shorten it by {grouped(over)} token{'' if over == 1 else 's'}.",
        )
    room = capacity - min(max_tokens, capacity // 2)
    return ids[-room:], len(ids) - room
