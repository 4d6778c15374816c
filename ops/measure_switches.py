# SPDX-License-Identifier: MIT OR Apache-2.0
"""One A/B for every switch that acts on rounds, and their answers as a table of `ops/guides/measured.md`.

`python -m ops.measure_switches [--section demo|slice] [--model DIR] [--only NAME=VALUE,...]... [--pairs N]
[--tokens N] [--threads N] [--write]`. The served value is the base; what is better than it is named under the
table. The slice is a folder that `python -m ops.slice_model` wrote. With --write the part of the guide between
the section's marks is replaced, by the switches of --only alone where that is given.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from engine.api import KnobRow
from engine.engine import Engine
from engine.errors import RondoError
from engine.knobs import PREFIX
from engine.measure.ab_session import compare_on
from engine.measure.machine import machine_record
from engine.paths import demo_model
from ops.switch_sections import SECTIONS, Section, candidates
from ops.switch_table import Line, put, table

GUIDE = Path(__file__).parent / "guides" / "measured.md"


def measure(
    model: str,
    section: Section,
    *,
    only: Sequence[str] = (),
    pairs: int,
    tokens: int,
    threads: int | None,
) -> Iterator[Line]:
    """An A/B of every candidate on one engine, reloaded where a switch needs it."""
    held = [Engine.open(model, threads=threads)]

    def replace(engine: Engine | None) -> None:
        held[:] = [] if engine is None else [engine]

    try:
        rows: dict[str, KnobRow] = {
            row.name.removeprefix(PREFIX): row for row in held[0].knob_rows()
        }
        for changes, bits in tuple(candidates(section, rows, only)):
            request = section.request(changes, bits, rows, pairs=pairs, tokens=tokens)
            try:
                yield Line(changes, bits, compare_on(held[0], request, on_engine=replace))
            except RondoError as error:
                yield Line(changes, bits, None, error.cause)
    finally:
        for engine in held:
            engine.close()


def main(argv: list[str] | None = None) -> int:
    """Measure, print the table, and put it into the guide when asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--section", choices=tuple(SECTIONS), default="demo")
    parser.add_argument("--model", help="folder (default: the demo model; a slice has to be named)")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME=VALUE,...", help="may be repeated"
    )
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="replace the table in the guide")
    chosen = parser.parse_args(argv)
    if chosen.model is None and chosen.section != "demo":
        parser.error("--model: name the folder that `python -m ops.slice_model` wrote")
    section, model = SECTIONS[chosen.section], Path(chosen.model or demo_model())
    lines = []
    try:
        for line in measure(
            str(model),
            section,
            only=chosen.only,
            pairs=chosen.pairs,
            tokens=chosen.tokens,
            threads=chosen.threads,
        ):
            lines.append(line)
            print(line.candidate, line.report.verdict if line.report else line.why, file=sys.stderr)
        machine = machine_record()
        head = (
            f"Machine: {machine['cpu_model']}, {chosen.threads} thread(s); commit "
            f"{(machine['git_commit'] or 'unknown')[:7]}; model {model.name}; {chosen.pairs} pairs of "
            f"{chosen.tokens} tokens {section.workload}. Negative is faster."
        )
        text = table(lines, head)
        print(text)
        if chosen.write:
            put(text, section, GUIDE)
    except RondoError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
