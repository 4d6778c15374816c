# SPDX-License-Identifier: MIT OR Apache-2.0
"""The demonstration without a display: one chat turn, its figures, the window's picture, the rounds as CSV.

Where Qt loads, the turn is made in the real window, drawn off screen; elsewhere the engine answers alone and
there is no picture.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from pathlib import Path

import numpy as np

from engine.cli import FAILED, OK, USAGE, add_switch_options, check_profile, knob_changes
from engine.commands.generate import figures
from engine.errors import RondoError, UsageError
from engine.measure.telemetry import DRAFTERS, ROUND_DTYPE, ROUTES
from engine.paths import data_dir, demo_model
from ops.demo_turn import Turn, TurnFailed, Wish, plain_turn

PROMPT = "Why is decoding memory bound?"
SCHEMA_VERSION = 1


def main(argv: list[str] | None = None) -> int:
    """Run the demonstration; exit codes as in engine.cli."""
    try:
        wish, out = _parse(argv)
        folder = _new_folder(out)
        turn = _turn(wish, folder)
        rounds_path = folder / "rounds.csv"
        write_rounds(rounds_path, turn.rounds)
    except TurnFailed as error:
        report, details = error.report, folder / "report.txt"
        _say(f"{report.title}: {report.cause}", report.kept, report.next_step)
        if report.details:
            details.write_text(report.details, encoding="utf-8", errors="replace")
            _say(f"The report is in {details}")
        return FAILED
    except RondoError as error:
        _say(error.cause, error.kept, error.next_step)
        return USAGE if isinstance(error, UsageError) else FAILED
    print("\n\n" + figures(turn.generation))
    print("\nWritten:")
    for path in (*turn.pictures, rounds_path):
        print(f"  {path}")
    print("\nMore without a window: bash ops/run.sh generate | probe | doctor | knobs")
    return OK


def write_rounds(path: Path, rounds: np.ndarray) -> None:
    """One CSV row a round (dtype ROUND_DTYPE), schema_version first, the drafter and the route by name."""
    names = ROUND_DTYPE.names
    assert names is not None
    with path.open("x", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["schema_version", *names])
        for row in rounds:
            values = {name: str(row[name]) for name in names}  # the shortest digits that round-trip
            values["drafter"] = DRAFTERS[int(row["drafter"])]
            values["route"] = ROUTES[int(row["route"])]
            writer.writerow([SCHEMA_VERSION, *values.values()])


def _turn(wish: Wish, folder: Path) -> Turn:
    os.environ["QT_QPA_PLATFORM"] = "offscreen"
    try:
        from ops.demo_window import window_turn
    except ImportError as error:
        _say(f"Qt cannot be used, so there is no picture: {error}")
        return plain_turn(wish)
    return window_turn(wish, folder)


def _parse(argv: list[str] | None) -> tuple[Wish, str | None]:
    parser = argparse.ArgumentParser(prog="rondo --headless", description=__doc__)
    parser.add_argument("--model", metavar="DIR", help="model folder (default: the demo model)")
    parser.add_argument("--prompt", default=PROMPT, metavar="T", help="the question")
    parser.add_argument("--max-tokens", type=int, default=256, metavar="N")
    parser.add_argument("--threads", type=int, metavar="N", help="worker threads")
    add_switch_options(parser)
    parser.add_argument("--out", metavar="DIR", help="a new folder for what is written")
    options = parser.parse_args(argv)
    knobs = knob_changes(options)
    check_profile(options)
    model = options.model or str(demo_model())
    wish = Wish(model, options.prompt, options.max_tokens, options.threads, knobs, options.profile)
    return wish, options.out


def _new_folder(out: str | None) -> Path:
    """A folder of its own for every run; nothing is overwritten."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder = Path(out).expanduser() if out else data_dir() / "demonstrations" / stamp
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = next(folder.iterdir(), None)
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be written: {error.strerror}.", next_step="Choose another: --out DIR."
        ) from error
    if taken:
        raise UsageError(
            f"{folder} is not empty.",
            kept="It was left alone.",
            next_step="Choose another: --out DIR.",
        )
    return folder.resolve()


def _say(*lines: str) -> None:
    print(
        "\n       ".join(["rondo: " + lines[0], *(line for line in lines[1:] if line)]),
        file=sys.stderr,
    )


if __name__ == "__main__":
    sys.exit(main())
