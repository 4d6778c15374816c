# SPDX-License-Identifier: MIT OR Apache-2.0
"""A stored run as text: its CSV files, its line in the list, and its export among others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine.api_compare import CompareReport, RunRecord
from engine.measure.ab_export import block_rows, compare_rows, delta_rows, settings_text
from engine.measure.export_csv import (
    COMPARE_COLUMNS,
    KERNEL_COLUMNS,
    KNOB_COLUMN,
    RUN_COLUMNS,
    csv_text,
    require_new,
    write_new_file,
)

Files = dict[str, str]  # name to text
Rows = list[dict[str, Any]]
RUNS, COMPARE, KERNELS = "bench_runs", "bench_compare", "kernels"
CSV_ROWS = "csv_rows"  # of a stored bench


def compare_files(report: CompareReport) -> Files:
    """The CSV files of an A/B by name."""
    return {f"{table}.csv": text for table, text in compare_texts(report).items()}


def compare_texts(report: CompareReport) -> Files:
    """The tables of an A/B that have rows, as text by table."""
    return _texts(compare_tables(report))


def bench_files(rows: Iterable[Mapping[str, Any]]) -> Files:
    """The CSV file of a bench by name."""
    texts = _texts({RUNS: [dict(row) for row in rows]})
    return {f"{table}.csv": text for table, text in texts.items()}


def compare_tables(report: CompareReport) -> dict[str, Rows]:
    """Rows of an A/B by table."""
    test_time = report.blocks[0].test_time if report.blocks else None
    return {
        RUNS: block_rows(report),
        COMPARE: compare_rows(report, test_time),
        KERNELS: delta_rows(report),
    }


def headline_of(report: CompareReport) -> str:
    """What came out of an A/B, in one line."""
    what = settings_text(report.request.candidate) or "A against A"
    if report.request.base:
        what += f" against {settings_text(report.request.base)}"
    if report.ratio_median is None:
        return f"{what}: {report.verdict}"
    delta = 100 * (report.ratio_median - 1)
    return f"{what}: {report.verdict}, {delta:+.2f} % {report.metric.replace('_', ' ')}"


def export_records(records: Sequence[RunRecord], folder: Path) -> list[Path]:
    """Write the runs into `folder`, one file a table, and return the paths.

    Raises ExportError; nothing is overwritten.
    """
    tables: dict[str, Rows] = {RUNS: [], COMPARE: [], KERNELS: []}
    for run in records:
        if run.compare is not None:
            for name, found in compare_tables(run.compare).items():
                tables[name] += found
        for row in (run.bench or {}).get(CSV_ROWS, ()):
            tables[RUNS].append({name: row.get(name) for name in RUN_COLUMNS})
    label = records[0].summary.label if len(records) == 1 else f"{len(records)}-runs"
    return write_tables(tables, folder, label)


def write_tables(tables: Mapping[str, Rows], folder: Path, label: str) -> list[Path]:
    """Write every table that has rows as `<table>-<time>-<label>.csv`."""
    stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    tail = re.sub(r"[^0-9A-Za-z._-]+", "-", label).strip("-.")[:60]
    name = f"{stamp}-{tail}" if tail else stamp
    files = {folder / f"{table}-{name}.csv": text for table, text in _texts(tables).items()}
    for path in files:
        require_new(path)
    for path, text in files.items():
        write_new_file(path, text)
    return list(files)


def _texts(tables: Mapping[str, Rows]) -> Files:
    return {table: _text(table, rows) for table, rows in tables.items() if rows}


def _text(table: str, rows: Rows) -> str:
    columns = {RUNS: RUN_COLUMNS, COMPARE: COMPARE_COLUMNS, KERNELS: KERNEL_COLUMNS}[table]
    extra = dict.fromkeys(name for row in rows for name in row if name.startswith(KNOB_COLUMN))
    return csv_text((*columns, *sorted(extra)), rows)
