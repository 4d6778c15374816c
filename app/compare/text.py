# SPDX-License-Identifier: MIT OR Apache-2.0
"""An A/B in words: the verdict, the figures of both sides, the report as text to paste. No Qt."""

from __future__ import annotations

from app.format import NONE, number, percent, significant
from engine.api import CompareReport, KernelDelta

GLYPHS = {
    "better": "▲",
    "worse": "▼",
    "not resolved": "≈",
    "invalid": "✕",
    "cancelled": "◌",
}
METRIC_WORDS = {"ms_per_round": "ms a round", "ms_per_token": "ms a token"}
_HEADLINES = {
    "better": "B is faster",
    "worse": "B is slower",
    "not resolved": "Not resolved",
    "invalid": "Not a valid comparison",
    "cancelled": "Cancelled",
}


def headline(report: CompareReport) -> str:
    """The verdict in a few words, with the size of the effect where there is one."""
    words = _HEADLINES.get(report.verdict, report.verdict)
    if report.verdict in ("better", "worse") and report.ratio_median is not None:
        words += f" by {significant(abs(100 * (report.ratio_median - 1)))} %"
    return f"{GLYPHS.get(report.verdict, '○')}  {words}"


def evidence(report: CompareReport) -> str:
    """The pairs behind the verdict, in one line."""
    parts = [f"{report.n_pairs} of {report.planned_pairs} pairs"]
    if report.p_signflip is not None:
        parts.append(f"sign-flip p {probability(report.p_signflip)}")
    if report.signs:
        parts.append(f"signs {report.signs} (+: B took longer)")
    return " · ".join(parts)


def probability(p: float) -> str:
    """Three decimals; never "0.000"."""
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def tokens_line(report: CompareReport) -> str:
    """Whether both sides wrote the same text."""
    return "✓  the same tokens on both sides" if report.tokens_identical else "✕  the tokens differ"


def signed(value_pct: float) -> str:
    """A percentage with its sign and two decimals."""
    return f"{value_pct:+.2f} %"


def figure_rows(report: CompareReport) -> list[tuple[str, str, str, str]]:
    """(figure, side A, side B, difference) of both sides; the primary metric first."""
    base, candidate = report.base, report.candidate
    if base is None or candidate is None:
        return []
    fields = [
        ("ms a round", "ms_per_round", 3),
        ("ms a token", "ms_per_token", 3),
        ("tokens a round", "tokens_per_round", 2),
        ("tok/s", "decode_tps", 0),
        ("GB/s read", "read_gbps", 2),
    ]
    fields.sort(key=lambda field: field[1] != report.metric)
    rows = []
    for label, name, decimals in fields:
        first, second = getattr(base, name), getattr(candidate, name)
        change = NONE
        if first and second is not None:
            change = signed(100 * (second / first - 1))
        rows.append((label, number(first, decimals), number(second, decimals), change))
    rows.append(
        ("acceptance", percent(base.acceptance_pct), percent(candidate.acceptance_pct), NONE)
    )
    rows.append(("rounds", number(base.rounds), number(candidate.rounds), NONE))
    return rows


def kernel_rows(kernels: tuple[KernelDelta, ...]) -> list[tuple[str, str, str, str]]:
    """(operation, side A, side B, difference) in ms a round, the largest difference first."""
    ordered = sorted(kernels, key=lambda row: (row.name == "unaccounted", -abs(row.delta_ms)))
    return [
        (
            row.name,
            number(row.base_ms_per_round, 4),
            number(row.candidate_ms_per_round, 4),
            f"{row.delta_ms:+.4f}",
        )
        for row in ordered
    ]


def workload_rows(report: CompareReport) -> list[tuple[str, ...]]:
    """A line a class of prompts: pairs, both sides, difference, its interval, p, signs, tokens."""
    return [
        (
            row.workload,
            str(row.n_pairs),
            number(row.base_ms_per_round, 3),
            number(row.candidate_ms_per_round, 3),
            signed(100 * (row.ratio_median - 1)),
            NONE
            if row.ci95_low_pct is None or row.ci95_high_pct is None
            else f"{row.ci95_low_pct:+.2f} to {row.ci95_high_pct:+.2f}",
            probability(row.p_signflip),
            row.signs,
            "same" if row.tokens_identical else "differ",
        )
        for row in report.workloads
    ]


WORKLOAD_HEAD = (
    "Class", "Pairs", "A, ms a round", "B, ms a round", "B against A", "95 % interval, %", "p", "Signs",
    "Tokens",
)  # fmt: skip


def switches(knobs: tuple[tuple[str, str], ...]) -> str:
    """The switches of one side that differ from their defaults."""
    return ", ".join(f"{name}={value}" for name, value in knobs) or "all defaults"


def request_line(report: CompareReport) -> str:
    """What was compared."""
    request = report.request

    if not request.base and not request.candidate:
        return "A against A: both sides were the values in effect"

    def side(changes) -> str:
        return ", ".join(f"{k}={v}" for k, v in changes) or "values in effect"

    return f"A: {side(request.base)}   B: {side(request.candidate)}"


def as_text(report: CompareReport) -> str:
    """The whole report as plain text."""
    lines = [headline(report), report.reason, "", request_line(report), evidence(report)]
    figures = figure_rows(report)
    if figures or not report.tokens_identical:
        lines.append(tokens_line(report).replace("  ", " "))
    lines += [
        f"metric: {METRIC_WORDS.get(report.metric, report.metric)}",
        f"model: {report.model_name}, {report.weight_format}, {report.threads} threads; "
        f"workload {report.request.workload}, {report.request.tokens} tokens; "
        f"{report.seconds:.0f} s",
    ]
    if report.noise_source:
        lines.append(f"noise floor: {report.noise_source}")
    if report.estimator and report.pairs:
        lines.append(f"figures of a pair: {report.estimator}")
    lines += [
        f"switches of A: {switches(report.base_knobs)}",
        f"switches of B: {switches(report.candidate_knobs)}",
    ]
    if figures:
        lines += ["", *_table(("figure", "A", "B", "B against A"), figures)]
    if report.workloads:
        lines += ["", *_table(WORKLOAD_HEAD, workload_rows(report))]
    if report.kernels:
        lines += [
            "",
            *_table(("operation", "A, ms", "B, ms", "B - A, ms"), kernel_rows(report.kernels)),
        ]
    lines += ["", *(f"note: {note}" for note in report.notes)]
    if report.run_id:
        lines.append(f"stored as run {report.run_id}")
    if report.not_stored:
        lines.append(f"not stored: {report.not_stored}")
    return "\n".join(lines).rstrip() + "\n"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    table = [head, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    return [
        "  ".join(
            cell.ljust(width) if not column else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def resolvable(report: CompareReport) -> str:
    """What the run could have seen, and what more pairs would; the reason of "not resolved" says so itself."""
    if report.verdict == "not resolved" and report.reason:
        return ""
    parts = []
    if report.smallest_resolvable_pct is not None:
        parts.append(
            f"smallest effect this run resolves: {significant(report.smallest_resolvable_pct)} %"
        )
    if report.more_pairs:
        parts.append(f"{report.more_pairs} more pairs would resolve the median seen here")
    return " · ".join(parts)
