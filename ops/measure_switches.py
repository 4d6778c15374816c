# SPDX-License-Identifier: MIT OR Apache-2.0
"""One A/B for every switch that acts on rounds, and their answers as the table of `ops/guides/measured.md`.

`python -m ops.measure_switches [--model DIR] [--pairs N] [--tokens N] [--threads N] [--write]`. The served
value is the base; what is better than it is named under the table. With --write the part of the guide between
its two marks is replaced.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.api import CompareReport, CompareRequest
from engine.engine import Engine
from engine.errors import RondoError
from engine.measure.ab_session import compare_on
from engine.measure.machine import machine_record
from engine.paths import demo_model

GUIDE = Path(__file__).parent / "guides" / "measured.md"
BEGIN, END = "<!-- switches: begin -->", "<!-- switches: end -->"
# Alternatives that are not simply the other value of a bool, and those that need others to act.
ALTERNATIVES: tuple[str, ...] = (
    "MTP_DEPTH=1", "MTP_DEPTH=2", "MTP_DEPTH=4", "MTP_TREE=2", "VERIFY_ROWS=2", "TREE_NODES=1", "LOOKUP=1",
    "LEN_SWITCH=1,LOOKUP=1,MTP_DEPTH=4", "CPU_THREADS=2", "COMMIT_IN_VERIFY=0,FUSED_COMMIT=0",
    "COMMIT_IN_VERIFY=0,RANKK=0", "GQA_FROM=1",
)  # fmt: skip
# Switches of the prompt alone, which a round does not show, and those among the alternatives.
ELSEWHERE = frozenset(
    {"FUSED_GDNPREFILL", "NVFP4_PREFILL_V2", "UT_INVERSE", "LEN_SWITCH", "LOOKUP", "STAIR_SKIP"}
)


@dataclass(frozen=True, slots=True)
class Line:
    """One A/B of the table; `report` None where it could not be made, with the reason in `why`."""

    candidate: str
    bits: str
    report: CompareReport | None
    why: str = ""


def candidates(engine: Engine) -> Iterator[tuple[str, str]]:
    """(changes on top of the served values, what they do to the text) of every switch that acts here."""
    rows = {row.name.removeprefix("QWEN38_"): row for row in engine.knob_rows()}
    for name, row in rows.items():
        if row.available and row.kind == "bool" and name not in ELSEWHERE:
            yield f"{name}={'0' if row.value == '1' else '1'}", row.bits
    for changes in ALTERNATIVES:
        name, _, value = changes.partition(",")[0].partition("=")
        if name in rows and rows[name].available and rows[name].value != value:
            yield changes, rows[name].bits


def measure(model: str, *, pairs: int, tokens: int, threads: int | None) -> Iterator[Line]:
    """An A/B of every candidate on one engine, reloaded where a switch needs it."""
    held = [Engine.open(model, threads=threads)]

    def replace(engine: Engine | None) -> None:
        held[:] = [] if engine is None else [engine]

    try:
        for changes, bits in tuple(candidates(held[0])):
            request = CompareRequest(
                candidate={f"QWEN38_{k}": v for k, v in _pairs(changes)},
                pairs=pairs,
                tokens=tokens,
                forced=bits == "near-tie",
                label=changes,
            )
            try:
                yield Line(changes, bits, compare_on(held[0], request, on_engine=replace))
            except RondoError as error:
                yield Line(changes, bits, None, error.cause)
    finally:
        for engine in held:
            engine.close()


def table(lines: list[Line], head: str) -> str:
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
        if report is None or report.ratio_median is None:
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


def main(argv: list[str] | None = None) -> int:
    """Measure, print the table, and put it into the guide when asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=str(demo_model()))
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="replace the table in the guide")
    chosen = parser.parse_args(argv)
    lines = []
    for line in measure(
        chosen.model, pairs=chosen.pairs, tokens=chosen.tokens, threads=chosen.threads
    ):
        lines.append(line)
        print(line.candidate, line.report.verdict if line.report else line.why, file=sys.stderr)
    machine = machine_record()
    head = (
        f"Machine: {machine['cpu_model']}, {chosen.threads} thread(s); commit "
        f"{(machine['git_commit'] or 'unknown')[:7]}; model {Path(chosen.model).name}; {chosen.pairs} pairs of "
        f"{chosen.tokens} tokens on the four classes of prompts. Negative is faster."
    )
    text = table(lines, head)
    print(text)
    if chosen.write:
        before, _, rest = GUIDE.read_text("utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        GUIDE.write_text(f"{before}{BEGIN}\n{text}{END}{after}", "utf-8")
    return 0


def _pairs(changes: str) -> Iterator[tuple[str, str]]:
    for change in changes.split(","):
        name, _, value = change.partition("=")
        yield name, value


def _interval(report: CompareReport) -> str:
    if report.ci95_low_pct is None or report.ci95_high_pct is None:
        return ""
    return f"{report.ci95_low_pct:+.2f} to {report.ci95_high_pct:+.2f} %"


if __name__ == "__main__":
    sys.exit(main())
