# SPDX-License-Identifier: MIT OR Apache-2.0
"""What every engine handle does about an A/B: number it, run it in the engine thread, tell how it goes."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from engine.api import (
    CompareFailed,
    CompareFinished,
    CompareProgress,
    CompareProgressed,
    CompareReport,
    CompareRequest,
    ErrorReport,
    Event,
    Failed,
    KnobRow,
    KnobsRefused,
    ModelCard,
    RunRecord,
    Snapshot,
)
from engine.errors import BusyError, UsageError
from engine.knobs import KNOBS, PREFIX
from engine.measure.ab import CompareStopped
from engine.measure.runs import RunStore
from engine.measure.runs_handle import StoredRuns

GPU = "cuda"
CANCELLED = "Cancelled"
OPENED = "Opening a model ended it"
CLOSED = "Closing the engine ended it"


class Compares(StoredRuns):
    """The part of a handle behind `engine.api_compare.CompareHandle`; `_queue_compare` is the handle's own."""

    _events: queue.SimpleQueue[Event]
    _queue_compare: Callable[[int, CompareRequest], None]
    knobs: Callable[[], tuple[KnobRow, ...]]
    snapshot: Callable[[], Snapshot]

    def __init__(self, run_store: RunStore, noise_folder: Path) -> None:
        super().__init__(run_store)
        self._noise_folder = noise_folder
        self._compares = 0
        self._open_compares = 0  # that wait or run
        self._compares_lock = threading.Lock()
        self._stop_words = CANCELLED

    def compare(self, request: CompareRequest) -> int:
        with self._compares_lock:
            self._compares += 1
            self._open_compares += 1
            compare_id = self._compares
        self._queue_compare(compare_id, request)
        return compare_id

    def rerun(self, run_id: str) -> int:
        model = self.snapshot().model
        run = self.run_store.read(run_id)
        in_effect = {row.name: row.value for row in self.knobs()}
        return self.compare(rerun_request(run, model, in_effect))

    @property
    def _comparing(self) -> bool:
        return self._open_compares > 0

    def _refuse_answer(self, request_id: int) -> None:
        """An answer would change what the A/B times."""
        self._events.put(Failed(request_id, ErrorReport.of(_busy("Nothing was asked.")), ""))

    def _refuse_knobs(self, changes: Mapping[str, str]) -> None:
        report = ErrorReport.of(_busy("Nothing was changed."))
        self._events.put(KnobsRefused(tuple(changes.items()), report))

    def _run_compare(
        self,
        compare_id: int,
        measure: Callable[[Callable[[CompareProgress], None]], CompareReport],
    ) -> None:
        """Run one A/B and tell its end; `measure(on_progress)` does the work."""

        def on_progress(progress: CompareProgress) -> None:
            self._events.put(CompareProgressed(compare_id, progress))

        card = self.snapshot().model
        try:
            report = measure(on_progress)
        except CompareStopped as error:
            partial = None
            if error.partial.blocks:
                partial = self.keep_run(measured_on(card, error.partial))
            told = ErrorReport.of(error, traceback.format_exc())
            self._events.put(CompareFailed(compare_id, told, partial))
        except Exception as error:
            told = ErrorReport.of(error, traceback.format_exc())
            self._events.put(CompareFailed(compare_id, told, None))
        else:
            self._events.put(CompareFinished(compare_id, self.keep_run(measured_on(card, report))))
        finally:
            with self._compares_lock:
                self._open_compares -= 1
                if not self._open_compares:
                    self._stop_words = CANCELLED


def measured_on(card: ModelCard | None, report: CompareReport) -> CompareReport:
    """The report with what a later run needs to open the model of this card as it was open."""
    if card is None:
        return report
    return replace(report, backend=card.backend, context_tokens=card.context_tokens)


def rerun_request(
    run: RunRecord, model: ModelCard | None, in_effect: Mapping[str, str]
) -> CompareRequest:
    """The request that sets both sides as they were in a stored A/B, on top of the values in effect.

    in_effect: values by full name. Raises UsageError for a bench, or where another model is loaded, or on the
    GPU what ran on the processor or the reverse.
    """
    report = run.compare
    if report is None:
        raise UsageError(
            f"{run.summary.run_id} is a bench.",
            next_step=f"`rondo runs rerun {run.summary.run_id}`",
        )
    if model is None or model.path != report.model_path:
        raise UsageError(
            f"The run was of {report.model_name}, which is not loaded.",
            kept="Nothing was measured.",
            next_step=f"Open {report.model_path} first.",
        )
    if report.backend and (report.backend == GPU) != (model.backend == GPU):
        raise UsageError(
            f"The run was on the {report.backend} backend, and the model is loaded on {model.backend}.",
            kept="Nothing was measured.",
            next_step=f"`rondo runs rerun {run.summary.run_id}` opens it as it was.",
        )
    defaults = {PREFIX + knob.name: knob.default for knob in KNOBS}
    base, candidate = (
        _changes({**defaults, **dict(values)}, {**defaults, **in_effect})
        for values in (report.base_knobs, report.candidate_knobs)
    )
    return replace(report.request, base=base, candidate=candidate, label=report.label)


def _changes(wanted: Mapping[str, str], in_effect: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in wanted.items() if in_effect.get(name) != value}


def _busy(kept: str) -> BusyError:
    return BusyError(
        "A comparison is running; what it times must not change meanwhile.",
        kept=kept,
        next_step="Wait for its end, or cancel it.",
    )
