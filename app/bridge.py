# SPDX-License-Identifier: MIT OR Apache-2.0
"""The one place where Qt meets the engine: it pulls on a timer and tells the views by signals.

Text and round records are pulled at 30 Hz while something runs, at 2 Hz while an A/B is timed and at 4 Hz
otherwise; nothing the engine thread does ever posts into the UI's event queue.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

import numpy as np
from PySide6.QtCore import QObject, Qt, QTimer, Signal, Slot

from engine.api import (
    CompareFailed,
    CompareFinished,
    CompareProgressed,
    CompareReport,
    CompareRequest,
    EngineHandle,
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
    RunDifference,
    RunRecord,
    RunSummary,
    Snapshot,
    Started,
    StateChanged,
)

BUSY_TICK_MS = 33
IDLE_TICK_MS = 250
QUIET_TICK_MS = 500  # while an A/B is timed
SILENCE_S = (3.0, 10.0)
LOAD_SILENCE_S = (20.0, 120.0)
BUSY_STATES = frozenset({"loading", "prefilling", "writing", "comparing"})
NO_ENGINE = Snapshot("empty", 0.0, 0, 0, 0, 0, False, 0, 0, 0, None)


class Bridge(QObject):
    """Commands in, signals out.

    Attributes:
        snapshot: the engine's state at the last tick.
        progress: the last progress of a load that runs, None otherwise.
        load_rate_bps: bytes a second of that load, None until two reports are in.
        tick_ms: how long the latest ticks took on the UI thread.

    Signals:
        text(request_id, delta), rounds(rows, lost), ticked(snapshot): once a tick where there is news.
        The others: rare events, as in engine.api.
    """

    text = Signal(int, str)
    rounds = Signal(object, int)
    ticked = Signal(object)
    state_changed = Signal(str)
    busy_changed = Signal(bool)
    load_progressed = Signal(object)
    load_started = Signal(str)
    loaded = Signal(object)
    load_failed = Signal(str, object)
    started = Signal(int, int)
    finished = Signal(int, object)
    failed = Signal(int, object, str)
    knobs_changed = Signal(object)
    knobs_refused = Signal(object, object)
    compare_progressed = Signal(int, object)
    compare_finished = Signal(int, object)
    compare_failed = Signal(int, object, object)

    def __init__(self, make_handle: Callable[[], EngineHandle], parent: QObject | None = None):
        super().__init__(parent)
        self._make_handle = make_handle
        self._handle: EngineHandle | None = None
        self._request_id = 0
        self._running = False
        self._text_cursor = 0
        self._ring_cursor = 0
        self._busy = False
        self._comparing = False  # an A/B runs or is queued
        self._load_mark: tuple[float, int] | None = None
        self._loads = 0  # that wait or run; a newer one takes the place of those before it
        self._untold: ModelCard | None = None  # loaded, but a newer load was already wanted
        self.loading_path = ""
        self.snapshot = NO_ENGINE
        self.progress: LoadProgress | None = None
        self.load_rate_bps: float | None = None
        self.tick_ms: deque[float] = deque(maxlen=600)
        self._tick_times: deque[float] = deque(maxlen=64)
        self._timer = QTimer(self)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self.tick)

    # Life.

    def start(self) -> None:
        """Make the engine handle and begin to pull; call it once the window is up."""
        self._handle = self._make_handle()
        self._ring_cursor = self._handle.ring.count
        self._timer.start(IDLE_TICK_MS)

    @property
    def is_started(self) -> bool:
        """Whether there is an engine to take commands."""
        return self._handle is not None

    def close(self, timeout_s: float = 5.0) -> bool:
        """Stop pulling and end the engine thread; False when it did not end in time."""
        self._timer.stop()
        handle, self._handle = self._handle, None
        return handle.close(timeout_s) if handle else True

    # Commands.

    @property
    def is_busy(self) -> bool:
        """Whether a load or an answer runs or is queued."""
        return self._busy

    @property
    def is_generating(self) -> bool:
        return self._running

    @property
    def is_comparing(self) -> bool:
        """Whether an A/B runs or is queued."""
        return self._comparing

    @property
    def model(self) -> ModelCard | None:
        return self.snapshot.model

    def load(self, path: str, *, knobs: Mapping[str, str] | None = None) -> None:
        """Queue a load of a model folder, with changed switches; an answer that runs is stopped first."""
        if self._handle is None:
            return
        if self.is_busy:
            self._handle.cancel()
        self.loading_path, self._load_mark = path, None
        self.progress, self.load_rate_bps = None, None
        self._handle.load(path, knobs=knobs)
        self._loads += 1
        self._set_busy(True)
        self.load_started.emit(path)

    def load_demo(self) -> None:
        if self._handle is not None:
            self.load(self._handle.demo_model_path())

    def generate(self, request: GenerateRequest) -> int:
        """Queue an answer and return its id; the text arrives by `text`."""
        self._request_id = self._open_handle().generate(request)
        self._text_cursor, self._running = 0, True
        self._set_busy(True)
        return self._request_id

    @Slot()
    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def kernel_table(self) -> KernelTable:
        if self._handle is None:
            return KernelTable((), 0, 0.0, 0.0, "the engine has not started")
        return self._handle.kernel_table()

    def reset_kernel_table(self) -> None:
        if self._handle is not None:
            self._handle.reset_kernel_table()

    # Switches, A/B and stored runs. What reads or writes files raises RondoError.

    def knobs(self) -> tuple[KnobRow, ...]:
        return () if self._handle is None else self._handle.knobs()

    def set_knobs(self, changes: Mapping[str, str]) -> None:
        """Queue changes of switches; knobs_changed or knobs_refused tells what came of them."""
        if self._handle is not None:
            self._handle.set_knobs(changes)

    def save_profile(self, path: str) -> None:
        if self._handle is not None:
            self._handle.save_profile(path)

    def compare(self, request: CompareRequest) -> int:
        """Queue an A/B and return its id."""
        return self._begin_compare(lambda handle: handle.compare(request))

    def rerun(self, run_id: str) -> int:
        """Queue a stored A/B once more and return its id."""
        return self._begin_compare(lambda handle: handle.rerun(run_id))

    def runs(self, *, offset: int = 0, limit: int = 200) -> tuple[RunSummary, ...]:
        return () if self._handle is None else self._handle.runs(offset=offset, limit=limit)

    def run(self, run_id: str) -> RunRecord:
        return self._open_handle().run(run_id)

    def label_run(self, run_id: str, label: str) -> None:
        self._open_handle().label_run(run_id, label)

    def delete_run(self, run_id: str) -> None:
        self._open_handle().delete_run(run_id)

    def diff_runs(self, first: str, second: str) -> tuple[RunDifference, ...]:
        return self._open_handle().diff_runs(first, second)

    def export_runs(self, run_ids: tuple[str, ...], folder: str) -> tuple[str, ...]:
        return self._open_handle().export_runs(run_ids, folder)

    def export_report(self, report: CompareReport, folder: str) -> tuple[str, ...]:
        return self._open_handle().export_report(report, folder)

    def _open_handle(self) -> EngineHandle:
        if self._handle is None:
            raise RuntimeError("the bridge is closed")
        return self._handle

    def _begin_compare(self, start: Callable[[EngineHandle], int]) -> int:
        compare_id = start(self._open_handle())
        self._comparing = True
        self._set_busy(True)
        return compare_id

    # Freshness.

    def ticks_per_second(self) -> int:
        """How often the display was refreshed in the last second."""
        now = time.monotonic()
        return sum(1 for at in self._tick_times if now - at <= 1.0)

    def silence_s(self) -> float:
        """Seconds since the engine's last sign of life, 0 before its first one; it has one when idle too."""
        if not self.snapshot.beat_s or self.snapshot.state == "closed":
            return 0.0
        return max(0.0, time.monotonic() - self.snapshot.beat_s)

    def silence_level(self) -> int:
        """0 fresh, 1 silent, 2 lost. A load may be silent for long: it compiles kernels on first use."""
        limits = LOAD_SILENCE_S if self.snapshot.state == "loading" else SILENCE_S
        return sum(self.silence_s() >= limit for limit in limits)

    # The pull.

    @Slot()
    def tick(self) -> None:
        """One pull: events, state, text, rounds; then the signals, text before the end of its answer."""
        if self._handle is None:
            return
        begin = time.monotonic()
        events = self._handle.events()
        self.snapshot = self._handle.snapshot()
        self._pull_text()
        self._pull_rounds()
        for event in events:
            self._tell(event)
        if not (self._running or self._comparing or self.loading_path):
            self._set_busy(self.snapshot.state in BUSY_STATES)
        self.ticked.emit(self.snapshot)
        self._tick_times.append(begin)
        self.tick_ms.append((time.monotonic() - begin) * 1e3)

    def _pull_text(self) -> None:
        if not self._running:
            return
        delta, self._text_cursor = self._handle.text_since(self._request_id, self._text_cursor)
        if delta:
            self.text.emit(self._request_id, delta)

    def _pull_rounds(self) -> None:
        rows, self._ring_cursor, lost = self._handle.ring.since(self._ring_cursor)
        if len(rows):
            self.rounds.emit(rows, lost)

    def _tell(self, event: object) -> None:
        match event:
            case StateChanged(state):
                self.state_changed.emit(state)
            case LoadProgressed(progress):
                self._note_progress(progress)
                self.load_progressed.emit(progress)
            case Loaded(card):
                if self._end_load():
                    self._untold = None
                    self.loaded.emit(card)
                else:
                    self._untold = card
            case LoadFailed(path, report):
                if self._end_load():
                    card, self._untold = self._untold, None
                    if card is not None:
                        self.loaded.emit(card)
                    self.load_failed.emit(path, report)
            case Started(request_id, prompt_tokens):
                self.started.emit(request_id, prompt_tokens)
            case Finished(request_id, generation):
                self._end(request_id)
                self.finished.emit(request_id, generation)
            case Failed(request_id, report, text):
                self._end(request_id)
                self.failed.emit(request_id, report, text)
            case KnobsChanged(changes):
                self.knobs_changed.emit(changes)
            case KnobsRefused(changes, report):
                self.knobs_refused.emit(changes, report)
            case CompareProgressed(compare_id, progress):
                self.compare_progressed.emit(compare_id, progress)
            case CompareFinished(compare_id, report):
                self._end_compare()
                self.compare_finished.emit(compare_id, report)
            case CompareFailed(compare_id, error, partial):
                self._end_compare()
                self.compare_failed.emit(compare_id, error, partial)

    def _end_compare(self) -> None:
        self._comparing = False
        if self._timer.isActive():
            self._timer.start(self._tick_ms())

    def _end_load(self) -> bool:
        """Whether the load that ended is the one the operator asked for last."""
        self._loads -= 1
        if self._loads:
            return False
        self.loading_path, self.progress = "", None
        return True

    def _end(self, request_id: int) -> None:
        if request_id == self._request_id:
            self._running = False

    def _note_progress(self, progress: LoadProgress) -> None:
        now = time.monotonic()
        if self._load_mark is None or progress.done_bytes < self._load_mark[1]:
            self._load_mark = (now, progress.done_bytes)
        elif now - self._load_mark[0] > 0.2:
            since_s, since_bytes = (
                now - self._load_mark[0],
                progress.done_bytes - self._load_mark[1],
            )
            self.load_rate_bps = since_bytes / since_s
        self.progress = progress

    def _set_busy(self, busy: bool) -> None:
        if busy == self._busy:
            return
        self._busy = busy
        if self._timer.isActive():
            self._timer.start(self._tick_ms())
        self.busy_changed.emit(busy)

    def _tick_ms(self) -> int:
        if self._comparing:
            return QUIET_TICK_MS
        return BUSY_TICK_MS if self._busy else IDLE_TICK_MS


def rounds_of(rows: np.ndarray, request_id: int) -> np.ndarray:
    """The rows that belong to one answer."""
    return rows[rows["request_id"] == request_id]
