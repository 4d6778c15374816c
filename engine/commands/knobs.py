# SPDX-License-Identifier: MIT OR Apache-2.0
"""`rondo knobs`: the switch table with the values in effect and where each comes from."""

from __future__ import annotations

import argparse
import threading
from dataclasses import asdict

from engine.api_knobs import KnobRow
from engine.cli import OK, add_model_options, print_json
from engine.commands.shared import switches_of
from engine.knob_guide import guide
from engine.knob_rows import knob_rows, served_values


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    add_model_options(parser)
    parser.add_argument(
        "--markdown", action="store_true", help="print the guide of all switches, as Markdown"
    )


def run(arguments: argparse.Namespace, cancel: threading.Event) -> int:
    """Print every switch as the CPU backend takes it, or with --device cuda the GPU's, before a load."""
    if arguments.markdown:
        print(guide(), end="")
        return OK
    values = switches_of(arguments)
    backend = "reference" if values.choice("CPU_ISA") == "reference" else "native"
    if arguments.device == "cuda":
        backend = "cuda"
    rows = knob_rows(values, backend=backend, offers=None, engaged={}, served=served_values())
    if arguments.json:
        print_json({"backend": backend, "knobs": [_record(row) for row in rows]})
        return OK
    group = ""
    for row in rows:
        if row.group != group:
            group = row.group
            print(f"\n{group.upper()}")
        print(
            f"{row.name}={row.value}  ({row.source}; default {row.default or '(empty)'}, "
            f"served {row.served or '(empty)'})"
        )
        print(f"    {row.effect}")
        print(f"    accepts {row.accepts}; bits: {row.bits}; takes effect: {row.flip}")
        if row.rules:
            print(f"    {', '.join(row.rules)}")
        if not row.available:
            print(f"    no effect here: {row.reason}")
    return OK


def _record(row: KnobRow) -> dict[str, object]:
    record = asdict(row)
    del record["engaged_count"]  # nothing runs yet
    return record
