# SPDX-License-Identifier: MIT OR Apache-2.0
"""Stored runs in words. No Qt."""

from __future__ import annotations

from datetime import datetime

from app.compare.text import GLYPHS, signed
from app.format import NONE, number
from engine.api import RunDifference, RunRecord, RunSummary

COLUMNS = ("When", "Kind", "Label", "Outcome", "Model")
_KINDS = {"compare": "A/B", "bench": "bench"}


def local_time(iso: str) -> str:
    """A stored UTC time as the operator's clock would have shown it."""
    try:
        return datetime.fromisoformat(iso).astimezone().strftime("%Y-%m-%d %H:%M")
    except ValueError:
        return iso


def summary_row(summary: RunSummary) -> tuple[str, ...]:
    """A line of the list."""
    if summary.damaged:
        return (
            local_time(summary.test_time),
            "damaged",
            summary.label,
            f"✕ cannot be read: {summary.damaged}",
            summary.model_name,
        )
    glyph = GLYPHS.get(summary.verdict, "")
    return (
        local_time(summary.test_time),
        _KINDS.get(summary.kind, summary.kind),
        summary.label,
        f"{glyph} {summary.headline}".strip(),
        summary.model_name,
    )


def bench_rows(record: RunRecord) -> list[tuple[str, ...]]:
    """The rows of a stored bench: suite and rows, who, ms, tokens a second, GB/s."""
    rows = record.bench.get("rows", ()) if record.bench else ()
    return [
        (
            f"{row.get('suite', '')} {row.get('rows', '')}",
            str(row.get("peer") or "Rondo"),
            number(row.get("ms_median"), 3),
            number(row.get("tokens_per_s"), 1),
            number(row.get("read_gbps"), 2),
        )
        for row in rows
    ]


def difference_rows(differences: tuple[RunDifference, ...]) -> list[tuple[str, ...]]:
    """What differs between two runs."""
    return [
        (
            f"{difference.section}: {difference.name}",
            difference.first or NONE,
            difference.second or NONE,
            NONE if difference.delta_pct is None else signed(difference.delta_pct),
        )
        for difference in differences
    ]
