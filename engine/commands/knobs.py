# SPDX-License-Identifier: MIT OR Apache-2.0
"""`rondo knobs`: the switch table with the values in effect and where each comes from."""

from __future__ import annotations

import argparse
import threading

from engine.cli import OK, add_model_options, knob_changes, print_json
from engine.knobs import KNOBS, PREFIX, KnobSet
from engine.paths import profile_path


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    add_model_options(parser)


def run(arguments: argparse.Namespace, cancel: threading.Event) -> int:
    """Print every switch."""
    values = KnobSet.resolve(
        profile=profile_path(arguments.profile), changes=knob_changes(arguments)
    )
    rows = []
    for knob in KNOBS:
        value, source = values.raw(knob.name)
        rows.append(
            {
                "name": PREFIX + knob.name,
                "value": value,
                "source": source,
                "default": knob.default,
                "accepts": knob.accepted(),
                "bits": knob.bits,
                "flip": knob.flip,
                "effect": knob.effect,
            }
        )
    if arguments.json:
        print_json({"knobs": rows})
        return OK
    for row in rows:
        print(
            f"{row['name']}={row['value']}  ({row['source']}; default {row['default'] or '(empty)'})"
        )
        print(f"    {row['effect']}")
        print(f"    accepts {row['accepts']}; bits: {row['bits']}; takes effect: {row['flip']}")
    return OK
