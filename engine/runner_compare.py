# SPDX-License-Identifier: MIT OR Apache-2.0
"""The A/B of the engine thread: the part of `engine.runner.ThreadedEngine` that runs it on the loaded model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.api import CompareFailed, CompareProgress, CompareReport, CompareRequest, ModelCard
from engine.command_queue import CommandQueue
from engine.compare_handle import CLOSED, OPENED, Compares
from engine.errors import BusyError
from engine.measure.runs import RunStore
from engine.paths import data_dir

if TYPE_CHECKING:
    from engine.engine import Engine
    from engine.measure.ab_engine import OnRound


class RunnerCompares(Compares):
    """Runs in the engine thread, which owns `_engine`; a reload replaces it."""

    _engine: Engine | None
    _card: ModelCard | None
    _beat_s: float
    _request_id: int
    _on_round: OnRound
    _open: Callable[..., Engine]
    _commands: CommandQueue
    _set_state: Callable[[str], None]
    _settle: Callable[[], None]

    def __init__(self) -> None:
        super().__init__(RunStore(), data_dir() / "noise")
        self._compare_cancel = threading.Event()

    def _queue_compare(self, compare_id: int, request: CompareRequest) -> None:
        self._compare_cancel = self._commands.put(
            lambda cancel: self._compare(compare_id, request, cancel),
            lambda report: CompareFailed(compare_id, report, None),
        )

    def _stop_compare(self, *, closing: bool = False) -> None:
        """End an A/B that runs, with the reason; its complete pairs are judged."""
        if self._comparing:
            self._stop_words = CLOSED if closing else OPENED
            self._compare_cancel.set()

    def _compare(self, compare_id: int, request: CompareRequest, cancel: threading.Event) -> None:
        self._set_state("comparing")
        self._request_id = 0  # rounds in the ring belong to no answer

        def measure(on_progress: Callable[[CompareProgress], None]) -> CompareReport:
            if self._engine is None:
                raise BusyError("No model is loaded.", next_step="Open a model folder first.")
            from engine.measure.ab_session import compare_on

            def tell(progress: CompareProgress) -> None:
                self._beat_s = time.monotonic()
                on_progress(progress)

            return compare_on(
                self._engine,
                request,
                on_engine=self._replace_engine,
                on_round=self._on_round,
                on_progress=tell,
                cancel=cancel,
                why_stopped=lambda: self._stop_words,
                noise_folder=self._noise_folder,
                reopen=self._open,
            )

        self._run_compare(compare_id, measure)
        if self._engine is None:
            self._card = None
        self._settle()

    def _replace_engine(self, engine: Engine | None) -> None:
        self._engine = engine
        self._beat_s = time.monotonic()
        if engine is not None:
            self._card = engine.card
