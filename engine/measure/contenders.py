# SPDX-License-Identifier: MIT OR Apache-2.0
"""Who takes turns in a bench: this engine in this process, peers in theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from engine.measure.peers.catalogue import PeerChoice
from engine.measure.peers.process import (
    PeerCrashedError,
    PeerError,
    PeerProcess,
    python_command,
)
from engine.measure.peers.worker import Specification
from engine.measure.rounds import RoundTimer
from engine.model.backend import Backend
from engine.model.config import ModelConfig


class Contender(Protocol):
    """One engine in one weight format; `label` is None for this engine."""

    label: str | None
    weight_format: str
    version: str

    def turn(self, suite: str, rows: int) -> list[float]:
        """Milliseconds of a few rounds; see `RoundTimer.turn`."""

    def round_bytes(self, rows: int) -> int:
        """Bytes a round of `rows` rows, one that was timed, has to read."""

    def close(self) -> None:
        """Free what it holds."""


class OwnContender:
    """This engine's backend as a contender."""

    label = None
    version = ""

    def __init__(
        self, backend: Backend, *, weight_format: str, context_tokens: int, seed: int
    ) -> None:
        self._backend = backend
        self._timer = RoundTimer(_BackendModel(backend), context_tokens=context_tokens, seed=seed)
        self.weight_format = weight_format
        self._bytes: dict[int, int] = {}

    def turn(self, suite: str, rows: int) -> list[float]:
        taken = self._timer.turn(suite, rows)
        # Asked for now, while the sequence has the length the rounds were timed at.
        self._bytes[rows] = self._backend.round_bytes(rows, 0)
        return taken

    def round_bytes(self, rows: int) -> int:
        return self._bytes[rows]

    def close(self) -> None:
        self._backend.close()


class PeerContender:
    """A peer's process as a contender; `notice` says what is unusual about it, empty for nothing."""

    def __init__(
        self, process: PeerProcess, config: ModelConfig, context_tokens: int, notice: str = ""
    ) -> None:
        self._process = process
        self.notice = notice
        self.label: str | None = process.label
        self.weight_format = process.info.weight_format
        self.version = process.info.version
        kv = config.kv_layer_bytes() * len(config.attention_layers) * context_tokens
        self._bytes = process.info.read_bytes + config.recurrent_bytes + kv

    def turn(self, suite: str, rows: int) -> list[float]:
        return self._process.turn(suite, rows)

    def round_bytes(self, rows: int) -> int:
        return self._bytes

    def close(self) -> None:
        self._process.close()


def open_peer(choice: PeerChoice, specification: Specification) -> PeerContender:
    """Start a peer and wait until it has loaded; PeerError says why it is left out.

    One that repacks its weights for this processor and crashes is started again with weights as they are.
    """
    if choice.missing:
        raise PeerError(
            f"{choice.label} is left out: {' and '.join(choice.missing)} not installed.",
            next_step=f"Install it: {choice.install}",
        )
    command = python_command(choice.module)
    notice = ""
    try:
        process = PeerProcess(choice.label, command, specification.to_json())
    except PeerCrashedError as error:
        if not choice.repacks:
            raise
        plain = replace(specification, plain_weights=True)
        process = PeerProcess(choice.label, command, plain.to_json())
        notice = f"{error.cause} It is measured with its weights as they lie in the file."
    return PeerContender(process, specification.config, specification.context_tokens, notice)


class _BackendModel:
    """A backend seen as a model to time: a round is a verify pass and the commit of all its rows."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.vocab_size = backend.config.vocab_size

    def restart(self, ids: Sequence[int]) -> None:
        self._backend.reset(speculate=False)
        if ids:
            self._backend.prefill(ids)

    def advance(self, ids: Sequence[int]) -> None:
        self._backend.verify(ids)
        self._backend.commit(len(ids))

    def prefill(self, ids: Sequence[int]) -> None:
        self._backend.prefill(ids)
