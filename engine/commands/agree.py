# SPDX-License-Identifier: MIT OR Apache-2.0
"""`rondo agree`: the gate that speculation changes no token."""

from __future__ import annotations

import argparse
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from engine.cli import GATE, OK, add_model_options, open_model, print_json
from engine.errors import UsageError, reason_of
from engine.numbers import grouped
from engine.paths import prompts_file

if TYPE_CHECKING:
    from engine.measure.agreement import ConfigurationRow


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    add_model_options(parser)
    parser.add_argument(
        "--prompts", metavar="FILE", help="prompts, one a line (default: the shipped ones)"
    )
    parser.add_argument(
        "--limit", type=int, metavar="N", help="only the first N prompts (default: all)"
    )
    parser.add_argument(
        "--tokens", type=int, default=128, metavar="N", help="tokens of each answer (default: 128)"
    )
    parser.add_argument(
        "--configs",
        default="",
        metavar="A,B",
        help="only these ways to draft; a name that is none lists them (default: all)",
    )


def run(arguments: argparse.Namespace, cancel: threading.Event) -> int:
    """Compare and print; exit 3 when the texts differ."""
    from engine.measure.agree_configurations import configurations_named
    from engine.measure.agreement import agree

    if arguments.limit is not None and arguments.limit < 1:
        raise UsageError(
            f"A limit of {arguments.limit} prompts is not accepted.", next_step="Use 1 or more."
        )
    names = [name.strip() for name in arguments.configs.split(",") if name.strip()]
    configurations = configurations_named(names)
    prompts = _read(Path(arguments.prompts) if arguments.prompts else prompts_file())
    with open_model(arguments, cancel) as engine:
        report = agree(
            engine,
            prompts[: arguments.limit],
            tokens=arguments.tokens,
            configurations=configurations,
            cancel=cancel,
            on_answer=_show if sys.stderr.isatty() else None,
        )
    if arguments.json:
        figures = {name: getattr(report, name) for name in ("divergences", "near_ties", "ok")}
        print_json({**asdict(report), **figures})
    else:
        print(
            f"{report.identical} of {report.prompts} answers identical over {grouped(report.tokens)} tokens, "
            f"{report.near_ties} near ties, {report.tokens_per_round:.2f} tokens a round"
        )
        if report.ended_by_context:
            print(
                f"{report.ended_by_context} of {report.prompts} answers ended before "
                f"{grouped(arguments.tokens)} tokens, because the context was full"
            )
        for row in report.configurations:
            print(f"  {row.name:12} {row.skipped or _figures(row)}")
        for item in report.differences:
            print(
                f"  {item.configuration}, at token {item.position} ({item.gap_ulp:.2f} bf16 steps): "
                f"{item.prompt[:70]}"
            )
    return OK if report.ok else GATE


def _read(path: Path) -> list[str]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot read the prompts: {reason_of(error)}.") from error
    return [line for line in lines if line.strip() and not line.startswith("#")]


def _figures(row: ConfigurationRow) -> str:
    return (
        f"{row.identical} of {row.prompts} identical, {grouped(row.accepted_tokens)} of "
        f"{grouped(row.drafted_tokens)} drafted tokens accepted, {row.tokens_per_round:.2f} a round"
    )


def _show(done: int, total: int) -> None:
    print(f"{done} of {total} answers", end="\n" if done == total else "\r", file=sys.stderr)
