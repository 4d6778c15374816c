# SPDX-License-Identifier: MIT OR Apache-2.0
"""The tokens of calibration text: a sample of the texts, each cut to one length."""

from __future__ import annotations

import random
from collections.abc import Sequence

from engine.errors import UsageError
from engine.load.tokenizer import Tokenizer
from engine.numbers import grouped

TEXT_TOKENS = 512  # of each text
_LEAST_TOKENS = 128  # in all


def calibration_ids(tokenizer: Tokenizer, texts: Sequence[str], tokens: int) -> list[list[int]]:
    """At most `tokens` tokens of whole texts in a fixed random order; the last one is cut to fit.

    Returns:
        ids of every chosen text, from 2 to 512.

    Raises:
        UsageError: fewer than 128 tokens are asked for, or are in texts of two tokens or more.
    """
    if tokens < _LEAST_TOKENS:
        raise UsageError(
            f"Calibration on {tokens} tokens was asked for; it takes {_LEAST_TOKENS} at least.",
            next_step="Ask for some thousands.",
        )
    shuffled = list(texts)
    random.Random(0).shuffle(shuffled)
    chosen: list[list[int]] = []
    left = tokens
    for text in shuffled:
        ids = tokenizer.encode_text(text)[: min(TEXT_TOKENS, left)]
        if len(ids) < 2:  # the MTP head reads pairs
            continue
        chosen.append(ids)
        left -= len(ids)
        if left < 2:
            break
    found = tokens - left
    if found < _LEAST_TOKENS:
        raise UsageError(
            f"The calibration text has {grouped(found)} tokens; it takes {_LEAST_TOKENS} at least.",
            next_step="Give more text.",
        )
    return chosen
