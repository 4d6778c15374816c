# SPDX-License-Identifier: MIT OR Apache-2.0
"""The report of an A/B as rows of `bench_runs.csv`, `bench_compare.csv` and `kernels.csv`."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from engine.api_compare import Changes, CompareBlock, ComparePair, CompareReport, SideFigures
from engine.measure.ab_evidence import BASE, CANDIDATE, POOL, SIDES, UNACCOUNTED
from engine.measure.ab_evidence import round_tokens as _round_tokens
from engine.measure.ab_pairs import pairs_of
from engine.measure.export_csv import KNOB_COLUMN, machine_columns
from engine.measure.stats import median_interval, percent, signflip_p

_METRICS = (
    ("ms_per_round", "ms", "lower"),
    ("ms_per_token", "ms", "lower"),
    ("tokens_per_round", "tokens", "higher"),
)


def block_rows(report: CompareReport) -> list[dict[str, Any]]:
    """One row for every measured answer; the columns are `export_csv.RUN_COLUMNS` and the knob columns."""
    sides = {BASE: report.base, CANDIDATE: report.candidate}
    differing = dict.fromkeys(
        name for name, _ in set(_knobs(report.base)) ^ set(_knobs(report.candidate))
    )
    common = {
        "session_id": report.run_id,
        "label": report.label,
        "model_name": report.model_name,
        "weight_format": report.weight_format,
        "temperature": 0.0,
        "n_gen_requested": report.request.tokens,
        "threads": report.threads,
        **machine_columns(report.machine),
    }
    return [
        {
            **common,
            "run_id": f"{report.run_id}-{number}",
            **_side_columns(sides[block.side], sorted(differing)),
            **_block_columns(block),
        }
        for number, block in enumerate(report.blocks)
    ]


def compare_rows(report: CompareReport, test_time: str | None) -> list[dict[str, Any]]:
    """Rows of `export_csv.COMPARE_COLUMNS`: the pool and every workload in each metric.

    Only the pooled primary metric carries the verdict; the others are exploratory.
    """
    whole = {pair.index for pair in report.pairs}
    blocks = [block for block in report.blocks if block.pair_index in whole]
    rows = []
    for workload in (POOL, *(row.workload for row in report.workloads)):
        for metric, unit, better in _METRICS:
            pairs = _pairs(report, blocks, metric, workload)
            headline = (workload, metric) == (POOL, report.metric)
            if not pairs and not headline:
                continue
            rows.append(
                {
                    "comparison_id": report.run_id,
                    "test_time": test_time,
                    "label": report.label,
                    "workload": workload,
                    "metric": metric,
                    "unit": unit,
                    "better": better,
                    "base_label": settings_text(report.request.base) or "in effect",
                    "cand_label": settings_text(report.request.candidate) or "in effect",
                    "n_pairs": len(pairs),
                    "tokens_identical": report.tokens_identical,
                    "engaged_differs": report.engaged_differs,
                    "reloaded": report.reloaded,
                    "estimator": report.estimator,
                    "repeats": report.request.repeats or None,
                    "interrupted_pct": report.interrupted_pct,
                    **_pair_columns([pair.log_ratio for pair in pairs]),
                    "base_median": _median(pair.base_ms for pair in pairs),
                    "cand_median": _median(pair.candidate_ms for pair in pairs),
                    **(_verdict_columns(report) if headline else {"reason": "exploratory"}),
                }
            )
    return rows


def delta_rows(report: CompareReport) -> list[dict[str, Any]]:
    """Rows of `export_csv.KERNEL_COLUMNS`: every operation on each side, by its mean over whole rounds."""
    rows = []
    for side in SIDES:
        times = {row.name: getattr(row, f"{side}_ms_per_round") for row in report.kernels}
        whole = math.fsum(times.values())
        rows += [
            {
                "run_id": f"{report.run_id}-{side}",
                "phase": "round",  # an operation's calls in draft and verify are counted together
                "kernel_name": name,
                "kernel_family": name.partition(".")[0],
                "total_ms_per_round": spent,
                "share_pct": 100 * spent / whole if whole else None,
                "profiled": name != UNACCOUNTED,
            }
            for name, spent in times.items()
        ]
    return rows


def settings_text(changes: Iterable[Sequence[str]]) -> str:
    """Changes as NAME=VALUE, comma separated."""
    return ",".join(f"{name}={value}" for name, value in changes)


def _pairs(
    report: CompareReport, blocks: Sequence[CompareBlock], metric: str, workload: str
) -> tuple[ComparePair, ...]:
    """Those of the report where it has them, so that a stored run keeps the figures it was judged by."""
    if metric != report.metric:
        return pairs_of(blocks, metric, workload)
    return tuple(
        pair for pair in (*report.pairs, *report.workload_pairs) if pair.workload == workload
    )


def _block_columns(block: CompareBlock) -> dict[str, Any]:
    times = sorted(block.round_ms)
    mean = math.fsum(times) / len(times) if times else None
    return {
        "side": block.side,
        "pair_index": block.pair_index,
        "order_in_pair": block.order_in_pair,
        "workload": block.workload,
        "test_time": block.test_time,
        "n_prompt": block.prompt_tokens,
        "n_gen": block.tokens,
        "n_context_start": block.prompt_tokens,
        "drafter": None if block.drafted_tokens else "none",
        "discarded": False,
        "rounds": block.rounds,
        "tokens_per_round": _round_tokens(block) / block.rounds if block.rounds else None,
        "draft_tokens": block.drafted_tokens,
        "accepted_tokens": block.accepted_tokens,
        "acceptance_pct": _share_pct(block.accepted_tokens, block.drafted_tokens),
        "ms_per_round_median": statistics.median(times) if times else None,
        "ms_per_round_mean": mean,
        "ms_per_round_p90": times[round(0.9 * (len(times) - 1))] if times else None,
        "ms_per_round_min": times[0] if times else None,
        "ms_per_round_max": times[-1] if times else None,
        "draft_ms_per_round": block.draft_ms,
        "verify_ms_per_round": block.verify_ms,
        "other_ms_per_round": block.other_ms,
        "ttft_ms": block.ttft_ms,
        "prefill_tps": block.prefill_tps,
        "decode_tps": block.decode_tps,
        "bytes_per_round": block.bytes_per_round,
        "achieved_gbps": block.bytes_per_round / mean / 1e6 if mean else None,
        "tokens_sha256_12": block.tokens_sha256_12,
        "finish_reason": block.finish_reason,
        "repeat": block.repeat,
        "interrupted_rounds": len(block.interrupted),
    }


def _side_columns(figures: SideFigures | None, differing: Sequence[str]) -> dict[str, Any]:
    knobs = dict(_knobs(figures))
    text = json.dumps(knobs, sort_keys=True)
    engaged = dict(figures.engaged) if figures else {}
    return {
        "knobs_json": text,
        "knobs_sha8": hashlib.sha256(text.encode()).hexdigest()[:8],
        "engaged_json": json.dumps(engaged, sort_keys=True),
        **{KNOB_COLUMN + name: knobs.get(name) for name in differing},
    }


def _pair_columns(ratios: Sequence[float]) -> Mapping[str, Any]:
    if not ratios:
        return {}
    interval = median_interval(ratios)
    middle = statistics.median(ratios)
    return {
        "ratio_median": math.exp(middle),
        "delta_pct": percent(middle),
        "ci95_low_pct": percent(interval[0]) if interval else None,
        "ci95_high_pct": percent(interval[1]) if interval else None,
        "p_signflip": signflip_p(ratios),
    }


def _verdict_columns(report: CompareReport) -> dict[str, Any]:
    return {
        "noise_floor_pct": report.noise_floor_pct,
        "min_effect_pct": report.request.min_effect_pct,
        "smallest_resolvable_pct": report.smallest_resolvable_pct,
        "verdict": report.verdict,
        "reason": report.reason,
    }


def _knobs(figures: SideFigures | None) -> Changes:
    return figures.knobs if figures else ()


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.median(found) if found else None


def _share_pct(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None
