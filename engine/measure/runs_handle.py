# SPDX-License-Identifier: MIT OR Apache-2.0
"""The calls about stored runs that every engine handle has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from engine.api_compare import CompareReport, RunDifference, RunRecord, RunSummary
from engine.errors import UsageError
from engine.measure.runs import RunStore, RunStoreError
from engine.measure.runs_diff import differences
from engine.measure.runs_text import compare_tables, export_records, write_tables


class StoredRuns:
    """See `engine.api_compare.CompareHandle`; the handles derive from it."""

    def __init__(self, run_store: RunStore) -> None:
        self.run_store = run_store

    def runs(self, *, offset: int = 0, limit: int = 200) -> tuple[RunSummary, ...]:
        return self.run_store.list(offset=offset, limit=limit)

    def run(self, run_id: str) -> RunRecord:
        return self.run_store.read(run_id)

    def label_run(self, run_id: str, label: str) -> None:
        self.run_store.label(run_id, label)

    def delete_run(self, run_id: str) -> None:
        self.run_store.delete(run_id)

    def export_runs(self, run_ids: Sequence[str], folder: str) -> tuple[str, ...]:
        if not run_ids:
            raise UsageError("No run is chosen.", next_step="Choose one or more runs.")
        records = [self.run_store.read(run_id) for run_id in run_ids]
        return tuple(str(path) for path in export_records(records, Path(folder)))

    def export_report(self, report: CompareReport, folder: str) -> tuple[str, ...]:
        tables = compare_tables(report)
        return tuple(str(path) for path in write_tables(tables, Path(folder), report.label))

    def diff_runs(self, first: str, second: str) -> tuple[RunDifference, ...]:
        return differences(self.run_store.read(first), self.run_store.read(second))

    def keep_run(self, report: CompareReport) -> CompareReport:
        """Store a report; one that cannot be stored says so itself and stays as it is."""
        return keep_report(self.run_store, report)


def keep_report(store: RunStore, report: CompareReport) -> CompareReport:
    """The stored report with its run id, or the report with the reason why it was not stored.

    One that ended before a pair was complete has no answer, and is not stored.
    """
    if report.verdict == "cancelled":
        return replace(report, not_stored="No pair was complete, so there is no run to store.")
    try:
        return store.save_compare(report)
    except RunStoreError as error:
        return replace(report, not_stored=str(error))
    except Exception as error:  # what was measured must not be lost to a fault in storing it
        return replace(report, not_stored=f"{type(error).__name__}: {error}")
