# SPDX-License-Identifier: MIT OR Apache-2.0
"""Mean loss of a model on given text: the quality figure beside every quantised copy."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.engine import Engine
from engine.errors import Cancelled, UsageError


@dataclass(frozen=True, slots=True)
class Loss:
    """Mean negative log likelihood over `tokens` predicted tokens, in nats."""

    nats: float
    tokens: int


def mean_loss(
    engine: Engine, texts: Sequence[Sequence[int]], *, cancel: threading.Event | None = None
) -> Loss:
    """Loss over token sequences, each scored from an empty context; the first token is not scored."""
    total, tokens = 0.0, 0
    for ids in texts:
        if cancel and cancel.is_set():
            raise Cancelled
        if len(ids) < 2:
            continue
        logits = engine.logits(ids)[:-1]
        targets = torch.tensor(ids[1:])
        total += float(torch.nn.functional.cross_entropy(logits, targets, reduction="sum"))
        tokens += len(ids) - 1
    if not tokens:
        raise UsageError("The text is too short to score.", next_step="Give at least two tokens.")
    return Loss(total / tokens, tokens)
