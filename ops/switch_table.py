# SPDX-License-Identifier: MIT OR Apache-2.0
"""The answers of many A/B as a markdown table, and the place of that table in a guide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.api import CompareReport
from engine.errors import UsageError
from ops.switch_sections import Section


@dataclass(frozen=True, slots=True)
class Line:
    """One A/B of the table; `report` None where it could not be made, with the reason in `why`."""

    candidate: str
    bits: str
    report: CompareReport | None
    why: str = ""


def table(lines: Sequence[Line], head: str) -> str:
    """The lines as markdown, and below them what is served though its alternative was better."""
    rows = [
        head,
        "",
        "| candidate against served | bits | verdict | metric | change | 95 % interval | p | noise floor |",
        "|-|-|-|-|-|-|-|-|",
    ]
    better = []
    for line in lines:
        report = line.report
        if report is None or report.ratio_median is None or report.verdict == "invalid":
            reason = line.why or (report.reason if report else "")
            rows.append(f"| `{line.candidate}` | {line.bits} | not measured: {reason} | | | | | |")
            continue
        if report.verdict == "better":
            better.append(line.candidate)
        rows.append(
            f"| `{line.candidate}` | {line.bits} | {report.verdict} | {report.metric.replace('_', ' ')} "
            f"| {100 * (report.ratio_median - 1):+.2f} % | {_interval(report)} "
            f"| {report.p_signflip or 0:.3f} | {report.noise_floor_pct or 0:.2f} % |"
        )
    named = ", ".join(f"`{name}`" for name in better)
    rows += ["", f"Better than the served value here: {named or 'none'}."]
    return "\n".join(rows) + "\n"


def put(text: str, section: Section, guide: Path) -> None:
    """Replace what stands between the section's marks; a section that the guide lacks is added at its end.

    Raises:
        UsageError: one mark without the other, or in the wrong order; nothing is written.
    """
    whole = guide.read_text("utf-8")
    counts = whole.count(section.begin), whole.count(section.end)
    if counts == (0, 0):
        whole = f"{whole.rstrip()}\n\n## {section.heading}\n\n{section.begin}\n{section.end}\n"
    before, _, rest = whole.partition(section.begin)
    _, end, after = rest.partition(section.end)
    if counts not in ((0, 0), (1, 1)) or not end:
        raise UsageError(
            f"{guide.name} does not hold {section.begin} and {section.end} once each, in this order.",
            kept="The guide is as it was.",
            next_step="Restore the two marks.",
        )
    guide.write_text(f"{before}{section.begin}\n{text}{section.end}{after}", "utf-8")


def _interval(report: CompareReport) -> str:
    if report.ci95_low_pct is None or report.ci95_high_pct is None:
        return ""
    return f"{report.ci95_low_pct:+.2f} to {report.ci95_high_pct:+.2f} %"
