# SPDX-License-Identifier: MIT OR Apache-2.0
"""What differs between two stored runs, value by value."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from engine.api_compare import CompareReport, RunDifference, RunRecord
from engine.measure.ab_export import settings_text
from engine.measure.records import plain

KIND = "kind of run"
_KINDS = {"compare": "A/B", "bench": "bench"}
_FIGURES = (
    "verdict",
    "metric",
    "n_pairs",
    "ratio_median",
    "ci95_low_pct",
    "ci95_high_pct",
    "p_signflip",
    "noise_floor_pct",
    "smallest_resolvable_pct",
    "tokens_identical",
    "engaged_differs",
)
_SIDE_FIGURES = ("ms_per_round", "tokens_per_round", "ms_per_token", "decode_tps", "read_gbps")
_PASSING = {"load_1min", "load_5min", "memory_available_bytes", "clock_mhz"}  # differ in every run


def differences(first: RunRecord, second: RunRecord) -> tuple[RunDifference, ...]:
    """The values that are not equal, in sections: request, switches, machine, figures, kernels.

    Of an A/B and a bench, which have no figure in common: KIND and what differs of their machines.
    """
    if first.summary.kind != second.summary.kind:
        kinds = (_KINDS.get(run.summary.kind, run.summary.kind) for run in (first, second))
        machines = (_machine(run) for run in (first, second))
        return (RunDifference("request", KIND, *kinds), *_differing("machine", *machines))
    found: list[RunDifference] = []
    for section, values in _sections(first).items():
        found += _differing(section, values, _sections(second)[section])
    return tuple(found)


def _differing(
    section: str, first: Mapping[str, Any], second: Mapping[str, Any]
) -> list[RunDifference]:
    return [
        _difference(section, name, first.get(name), second.get(name))
        for name in dict.fromkeys((*first, *second))
        if first.get(name) != second.get(name)
    ]


def _machine(run: RunRecord) -> dict[str, Any]:
    return {name: _flat(value) for name, value in run.machine.items() if name not in _PASSING}


def _sections(run: RunRecord) -> dict[str, dict[str, Any]]:
    report = run.compare
    sections = {
        "request": {name: _flat(value) for name, value in run.request.items()},
        "switches": {},
        "machine": _machine(run),
        "figures": {},
        "kernels": {},
    }
    sections["request"].pop("label", None)
    if report is not None:
        sections["request"]["model"] = report.model_name
        sections["request"]["threads"] = report.threads
        sections["switches"] = _switches(report)
        sections["figures"] = _figures(report)
        for row in report.kernels:
            sections["kernels"][f"{row.name}, base ms a round"] = row.base_ms_per_round
            sections["kernels"][f"{row.name}, candidate ms a round"] = row.candidate_ms_per_round
    for row in (run.bench or {}).get("rows", ()):
        who = row.get("peer") or "rondo"
        name = f"{who} {row.get('suite')} {row.get('rows')} ms"
        sections["figures"][name] = row.get("ms_median")
    return sections


def _switches(report: CompareReport) -> dict[str, Any]:
    sides = (("base", report.base), ("candidate", report.candidate))
    return {
        f"{name} of the {side}": value
        for side, figures in sides
        for name, value in (figures.knobs if figures else ())
    }


def _figures(report: CompareReport) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(report, name) for name in _FIGURES}
    for side, figures in (("base", report.base), ("candidate", report.candidate)):
        for name in _SIDE_FIGURES:
            values[f"{side} {name}"] = getattr(figures, name) if figures else None
    return values


def _difference(section: str, name: str, first: Any, second: Any) -> RunDifference:
    delta = None
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (first, second))
    if numbers and first:
        delta = 100 * (second / first - 1)
    return RunDifference(section, name, _text(first), _text(second), delta)


def _flat(value: Any) -> Any:
    """Lists of pairs as NAME=VALUE; other containers as JSON."""
    if isinstance(value, list | tuple) and all(
        isinstance(item, list | tuple) and len(item) == 2 for item in value
    ):
        return settings_text(value)
    return json.dumps(plain(value)) if isinstance(value, Mapping | list | tuple) else value


def _text(value: Any) -> str:
    if value is None:
        return ""
    return _decimal(value) if isinstance(value, float) else str(value)


def _decimal(value: float) -> str:
    """Six significant digits, or all of a larger whole part, without an exponent."""
    if not value or not math.isfinite(value):
        return f"{value:g}"
    digits = 5 - math.floor(math.log10(abs(value)))
    text = f"{value:.{max(0, digits)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
