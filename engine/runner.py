# SPDX-License-Identifier: MIT OR Apache-2.0
"""The engine in its own thread, behind the handle the console drives (`engine.api.EngineHandle`)."""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.api import (
    ErrorReport,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    KernelTable,
    KnobRow,
    KnobsChanged,
    KnobsRefused,
    Loaded,
    LoadFailed,
    LoadProgress,
    LoadProgressed,
    ModelCard,
    RoundRing,
    Snapshot,
    Started,
    StateChanged,
)
from engine.command_queue import Command, CommandQueue
from engine.errors import BusyError, UsageError
from engine.hardware import OwnProcess
from engine.knob_rows import knob_rows, profile_of, served_values
from engine.knobs import KnobSet, write_profile
from engine.measure.telemetry import round_fields
from engine.paths import demo_model, profile_path
from engine.runner_compare import RunnerCompares

if TYPE_CHECKING:
    from engine.engine import Engine
    from engine.spec.decode import Round

_NO_MODEL = "no model is loaded; open one first"
_PROGRESS_EVERY_S = 0.05
_TEXTS_KEPT = 64  # raw streams of the latest requests


class ThreadedEngine(RunnerCompares):
    """See `engine.api.EngineHandle`. The thread starts here and ends in `close`."""

    def __init__(
        self,
        *,
        knobs: Mapping[str, str] | None = None,
        threads: int | None = None,
        profile: str = "serve",
    ) -> None:
        super().__init__()
        self._profile = profile
        self.ring = RoundRing()
        self._knobs = dict(knobs or {})
        self._threads = threads
        self._commands = CommandQueue()
        self._knob_changes: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._engine: Engine | None = None
        self._card: ModelCard | None = None
        self._texts: dict[int, list[str]] = {}
        self._requests = 0
        self._state = "empty"
        self._beat_s = time.monotonic()
        self._request_id = 0
        self._prompt_tokens = self._prompt_done = self._tokens_out = 0
        self._thinking = False
        self._context_tokens = 0
        self._process = OwnProcess()
        self._thread = threading.Thread(target=self._run, name="rondo-engine", daemon=True)
        self._thread.start()

    def load(
        self,
        path: str,
        *,
        threads: int | None = None,
        knobs: Mapping[str, str] | None = None,
    ) -> None:
        self._stop_compare()
        self._commands.put(
            lambda cancel: self._load(path, threads, knobs, cancel),
            lambda report: LoadFailed(path, report),
        )

    def generate(self, request: GenerateRequest) -> int:
        self._requests += 1
        request_id = self._requests
        self._texts[request_id] = []
        self._texts.pop(request_id - _TEXTS_KEPT, None)
        if self._comparing:
            self._refuse_answer(request_id)
            return request_id
        self._commands.put(
            lambda cancel: self._generate(request_id, request, cancel),
            lambda report: Failed(request_id, report, "".join(self._texts.get(request_id, ()))),
        )
        return request_id

    def knobs(self) -> tuple[KnobRow, ...]:
        engine = self._engine
        if engine:
            return engine.knob_rows()
        return knob_rows(
            self._knob_set(), backend="native", offers=None, engaged={}, served=served_values()
        )

    def set_knobs(self, changes: Mapping[str, str]) -> None:
        if self._comparing:
            self._refuse_knobs(changes)
            return
        # A round that runs takes them behind itself; the command finds them otherwise.
        self._knob_changes.put(dict(changes))
        self._commands.put(
            lambda cancel: self._apply_knobs(),
            lambda report: KnobsRefused(tuple(changes.items()), report),
        )

    def save_profile(self, path: str) -> None:
        engine = self._engine
        values = profile_of(engine.knobs if engine else self._knob_set())
        write_profile(Path(path), values, note="Switches that differ from their defaults.")

    def cancel(self) -> None:
        self._commands.cancel()

    def close(self, timeout_s: float = 5.0) -> bool:
        self._stop_compare(closing=True)
        self._commands.close()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def snapshot(self) -> Snapshot:
        return Snapshot(
            state=self._state,
            beat_s=self._beat_s,
            request_id=self._request_id,
            prompt_tokens=self._prompt_tokens,
            prompt_done=self._prompt_done,
            tokens_out=self._tokens_out,
            thinking=self._thinking,
            context_tokens=self._context_tokens,
            context_limit=self._card.context_tokens if self._card else 0,
            memory_bytes=self._process.resident_bytes(),
            model=self._card,
        )

    def events(self) -> list[Event]:
        drained = []
        while True:
            try:
                drained.append(self._events.get_nowait())
            except queue.Empty:
                return drained

    def text_since(self, request_id: int, cursor: int) -> tuple[str, int]:
        # The list only grows, so a cursor in characters would rescan it: the cursor counts its parts.
        parts = self._texts.get(request_id, [])
        end = len(parts)
        return "".join(parts[cursor:end]), end

    def kernel_table(self) -> KernelTable:
        engine = self._engine
        return engine.kernel_table() if engine else KernelTable((), 0, 0.0, 0.0, _NO_MODEL)

    def reset_kernel_table(self) -> None:
        engine = self._engine
        if engine:
            engine.reset_kernel_table()

    def demo_model_path(self) -> str:
        return str(demo_model())

    def _run(self) -> None:
        """The thread: one command after the other until close."""
        while (command := self._next()) is not None:
            try:
                command.run(command.cancel)
            except BaseException as error:  # the last guard: a thread that died could tell nothing
                self._tell_fault(command, error)
            self._commands.done(command)
        self._set_state("closing")
        engine, self._engine = self._engine, None
        if engine:
            self._free(engine)
        self._set_state("closed")

    def _next(self) -> Command | None:
        """The next command; while there is none the heart still beats twice a second."""
        while True:
            try:
                return self._commands.take(wait_s=0.5)
            except queue.Empty:
                self._beat_s = time.monotonic()

    def _tell_fault(self, command: Command, error: BaseException) -> None:
        """End a command that failed as none should, with the model that is left."""
        report = ErrorReport.of(error, traceback.format_exc())
        self._card = self._engine.card if self._engine else None
        if self._card is None:
            report = replace(report, kept="No model is loaded.", next_step="Open the model again.")
        self._thinking = False
        self._events.put(command.failed(report))
        self._settle()

    def _free(self, engine: Engine) -> None:
        try:
            engine.close()
        except Exception as error:  # it is out of use either way
            _say(f"A model was not freed: {type(error).__name__}: {error}")

    def _set_state(self, state: str) -> None:
        self._beat_s = time.monotonic()
        if state != self._state:
            self._state = state
            self._events.put(StateChanged(state))

    def _settle(self) -> None:
        self._set_state("ready" if self._engine else "empty")

    def _knob_set(self) -> KnobSet:
        """The switches as a load would find them; a profile or environment with errors counts as empty here."""
        try:
            return KnobSet.resolve(profile=profile_path(self._profile), changes=self._knobs)
        except UsageError:  # the load tells it
            return KnobSet({})

    def _apply_knobs(self) -> None:
        """Make the queued changes, between two rounds."""
        while True:
            try:
                changes = self._knob_changes.get_nowait()
            except queue.Empty:
                return
            pairs = tuple(changes.items())
            try:
                if self._engine:
                    self._engine.set_knobs(changes)
                    self._card = self._engine.card
                else:
                    self._knob_set().changed(changes)
            except Exception as error:
                report = ErrorReport.of(error, traceback.format_exc())
                self._events.put(KnobsRefused(pairs, report))
            else:
                self._knobs.update(changes)
                self._events.put(KnobsChanged(pairs))

    def _load(
        self,
        path: str,
        threads: int | None,
        knobs: Mapping[str, str] | None,
        cancel: threading.Event,
    ) -> None:
        self._set_state("loading")
        if self._engine:
            self._engine.forget()  # its memory may be what the next model lacks
        told = _Every(_PROGRESS_EVERY_S)

        def on_progress(progress: LoadProgress) -> None:
            self._beat_s = time.monotonic()
            if told.due() or progress.done_bytes == progress.total_bytes:
                self._events.put(LoadProgressed(progress))

        on_progress(LoadProgress("starting the engine", 0, 0))
        try:
            opened = self._open(
                path,
                profile=self._profile,
                knobs={**self._knobs, **(knobs or {})},
                threads=threads or self._threads,
                on_progress=on_progress,
                cancel=cancel,
            )
        except Exception as error:
            report = ErrorReport.of(error, traceback.format_exc())
            if self._card:
                kept = f"{self._card.name} is still loaded. {report.kept}".strip()
                report = replace(report, kept=kept)
            if report.cancelled:
                kept = report.kept or "No model is loaded."
                report = replace(report, kept=kept, next_step="Open it again to go on.")
            self._events.put(LoadFailed(path, report))
        else:
            previous, self._engine = self._engine, opened
            self._knobs.update(knobs or {})
            self._card = opened.card
            self._context_tokens = 0
            if previous:
                self._free(previous)
            self._events.put(Loaded(opened.card))
        self._settle()

    def _open(self, path: str, **options: Any) -> Engine:
        """A model with the user's suffix store; `options` are those of `Engine.open`."""
        from engine.engine import Engine

        return Engine.open(
            path,
            remember=True,
            on_trouble=_say,
            **options,
        )

    def _generate(self, request_id: int, request: GenerateRequest, cancel: threading.Event) -> None:
        self._request_id = request_id
        self._prompt_tokens = self._prompt_done = self._tokens_out = 0
        parts = self._texts.setdefault(request_id, [])
        try:
            if self._engine is None:
                raise BusyError("No model is loaded.", next_step="Open a model folder first.")
            self._set_state("prefilling")
            generation = self._engine.generate(
                request,
                on_prompt=lambda done, total: self._on_prompt(request_id, done, total),
                on_text=lambda text: self._on_text(parts, text),
                on_round=self._on_round,
                cancel=cancel,
                remember=True,
                resume=True,
            )
        except Exception as error:
            report = ErrorReport.of(error, traceback.format_exc())
            self._events.put(Failed(request_id, report, "".join(parts)))
        else:
            self._events.put(Finished(request_id, generation))
        self._thinking = False
        self._settle()

    def _on_prompt(self, request_id: int, done: int, total: int) -> None:
        # Before the total: a snapshot with one must not count what was kept as read since.
        self._prompt_done = self._context_tokens = done
        if not self._prompt_tokens:
            self._prompt_tokens = total
            self._events.put(Started(request_id, total))
        self._apply_knobs()
        self._beat_s = time.monotonic()
        if done == total:
            self._set_state("writing")

    def _on_text(self, parts: list[str], text: str) -> None:
        parts.append(text)
        if text.startswith("<think>") and len(parts) == 1:
            self._thinking = True
        elif self._thinking and "</think>" in text:
            self._thinking = False

    def _on_round(self, done: Round, round_ms: float, context_tokens: int) -> None:
        self._beat_s = time.monotonic()
        # The last token is not in the context yet.
        self._tokens_out = context_tokens + 1 - self._prompt_tokens
        self._context_tokens = context_tokens
        self.ring.append(
            request_id=self._request_id,
            end_s=self._beat_s,
            context_tokens=context_tokens,
            round_ms=round_ms,
            **round_fields(done),
        )
        if self._state != "comparing":
            self._apply_knobs()


class _Every:
    """True at most once an interval."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._last_s = 0.0

    def due(self) -> bool:
        now_s = time.monotonic()
        if now_s - self._last_s < self._interval_s:
            return False
        self._last_s = now_s
        return True


def _say(trouble: str) -> None:
    """Tell what concerns no request and keeps none from going on."""
    print(f"rondo: {trouble}", file=sys.stderr)
