# SPDX-License-Identifier: MIT OR Apache-2.0
"""The peer's side of `process`: read a specification, load, then time rounds on request."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from engine.errors import MemoryShortError, RondoError, UsageError
from engine.load.memory import available_memory_bytes
from engine.measure.rounds import RoundTimer, TimedModel
from engine.model.config import ModelConfig

_MEMORY_MARGIN = 1 << 30


@dataclass(frozen=True, slots=True)
class Specification:
    """What a peer is asked to load.

    prefill_tokens: the longest prompt it will get; plain_weights: in the layout of its file, not repacked for
    this processor.
    """

    config: ModelConfig
    shape_name: str
    variant: str
    threads: int
    context_tokens: int
    capacity: int
    prefill_tokens: int
    max_rows: int
    seed: int
    plain_weights: bool = False

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads back."""
        return asdict(self)

    @staticmethod
    def from_json(values: dict[str, Any]) -> Specification:
        """The specification `to_json` wrote."""
        config = dict(values["config"])
        config["layer_types"] = tuple(config["layer_types"])
        return Specification(**{**values, "config": ModelConfig(**config)})


@dataclass(frozen=True, slots=True)
class LoadedPeer:
    """A peer ready to be timed, and what it says about itself."""

    model: TimedModel
    weight_format: str
    read_bytes: int
    version: str


def serve(load: Callable[[Specification], LoadedPeer]) -> None:
    """Speak the protocol on the standard streams until the input ends."""
    # Libraries print to standard output; only this function may write to the pipe behind it.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    requests = iter(sys.stdin.readline, "")

    def reply(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    specification = Specification.from_json(json.loads(next(requests)))
    try:
        peer = load(specification)
    except RondoError as error:
        reply({"error": error.cause, "next_step": error.next_step})
        return
    timer = RoundTimer(
        peer.model, context_tokens=specification.context_tokens, seed=specification.seed
    )
    ready = {
        "weight_format": peer.weight_format,
        "read_bytes": peer.read_bytes,
        "version": peer.version,
    }
    reply({"ready": ready})
    for line in requests:
        request = json.loads(line)
        reply({"ms": timer.turn(request["suite"], request["rows"])})


def require_dense(config: ModelConfig) -> None:
    """UsageError for a mixture-of-experts shape: no peer is given its routed experts."""
    if config.experts:
        raise UsageError(
            "Peers are timed on dense shapes only; this one has mixture-of-experts layers.",
            next_step="Leave --peers out for this shape.",
        )


def require_memory(needed_bytes: int, what: str) -> None:
    """MemoryShortError when `needed_bytes` and a margin do not fit what is free now."""
    free = available_memory_bytes()
    if needed_bytes + _MEMORY_MARGIN > free:
        raise MemoryShortError(
            f"{what} needs {needed_bytes / 1e9:.1f} GB and {free / 1e9:.1f} GB are free.",
            next_step="Measure fewer layers (NAME:LAYERS) or close other programs.",
        )
