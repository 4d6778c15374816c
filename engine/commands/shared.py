# SPDX-License-Identifier: MIT OR Apache-2.0
"""What several commands do alike: read switches, threads and lists out of their options, tell progress."""

from __future__ import annotations

import argparse
import sys

from engine.cli import knob_changes
from engine.errors import UsageError
from engine.hardware import available_cores
from engine.knobs import KnobSet
from engine.paths import profile_path


def switches_of(arguments: argparse.Namespace) -> KnobSet:
    """The switches by --profile, the environment and --knob; UsageError where one of them is wrong."""
    return KnobSet.resolve(profile=profile_path(arguments.profile), changes=knob_changes(arguments))


def threads_of(arguments: argparse.Namespace) -> int:
    """--threads, or every core this process may use."""
    return available_cores() if arguments.threads is None else arguments.threads


def parts_of(text: str) -> list[str]:
    """What stands between the commas of a list option, empty parts left out."""
    return [part.strip() for part in text.split(",") if part.strip()]


def numbers(text: str, option: str) -> tuple[int, ...]:
    """The whole numbers of a list option; UsageError names the option."""
    parts = parts_of(text)
    if not parts or not all(part.isascii() and part.isdigit() and len(part) < 8 for part in parts):
        raise UsageError(f"{option} {text!r} is not a list of numbers.", next_step="Write 1,2,4.")
    return tuple(int(part) for part in parts)


def tell(line: str) -> None:
    """One line of progress, on stderr."""
    print(line, file=sys.stderr)
