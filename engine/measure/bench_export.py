# SPDX-License-Identifier: MIT OR Apache-2.0
"""A bench report as rows of `bench_runs.csv`."""

from __future__ import annotations

import statistics
import uuid
from typing import Any

from engine.measure.bench_report import BenchReport, BenchRow
from engine.measure.export_csv import machine_columns
from engine.moment import iso_utc


def run_rows(report: BenchReport, *, label: str = "", seed: int = 0) -> list[dict[str, Any]]:
    """One row for every case of every contender; the columns are `export_csv.RUN_COLUMNS`."""
    session = uuid.uuid4().hex[:12]
    common = {
        "session_id": session,
        "label": label,
        "test_time": iso_utc(),
        "seed": seed,
        **machine_columns(report.machine),
    }
    return [
        {**common, "run_id": f"{session}-{number}", **_row(row)}
        for number, row in enumerate(report.rows)
    ]


def _row(row: BenchRow) -> dict[str, Any]:
    samples = sorted(row.samples_ms)
    prefill = row.suite == "prefill"
    return {
        "side": row.peer or "rondo",
        "workload": f"{row.suite}-{row.rows}",
        "model_name": row.shape,
        "weight_format": row.weight_format,
        "n_prompt": row.rows if prefill else None,
        "n_context_start": row.context_tokens,
        "rounds": row.n,
        "ms_per_round_median": row.ms_median,
        "ms_per_round_mean": statistics.fmean(samples),
        "ms_per_round_p90": samples[round(0.9 * (len(samples) - 1))],
        "ms_per_round_min": row.ms_min,
        "ms_per_round_max": row.ms_max,
        "prefill_tps": row.tokens_per_s if prefill else None,
        "decode_tps": row.tokens_per_s if row.suite == "decode" else None,
        "bytes_per_round": row.bytes_per_round,
        "achieved_gbps": row.read_gbps,
        "suite": row.suite,
        "rows": row.rows,
        "threads": row.threads,
        "peer": row.peer,
        "roof_gbps": row.roof_gbps,
        "gflops": row.gflops,
        "peak_gflops": row.peak_gflops,
        "tokens_per_s": row.tokens_per_s,
    }
