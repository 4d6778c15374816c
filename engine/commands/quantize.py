# SPDX-License-Identifier: MIT OR Apache-2.0
"""`rondo quantize`: an NVFP4 copy of a BF16 checkpoint with an FP8 head, and what it costs in loss."""

from __future__ import annotations

import argparse
import re
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from engine.api import LoadProgress
from engine.cli import OK, print_json
from engine.errors import UsageError, reason_of
from engine.numbers import byte_size, grouped
from engine.paths import corpus_files

_SCORED_TEXTS = 120
_SCORED_TOKENS = 512  # of each text


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "--model", required=True, metavar="DIR", help="folder of the BF16 checkpoint"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to write, new or empty")
    parser.add_argument(
        "--method",
        choices=("rtn", "clip"),
        default="clip",
        help="rtn rounds to nearest, clip also searches the scale of each block (default: clip)",
    )
    parser.add_argument(
        "--text",
        metavar="FILE",
        help="text on which both models are scored, in paragraphs (default: answers of the demo's corpus)",
    )
    parser.add_argument("--no-loss", action="store_true", help="score neither model")
    parser.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="worker threads of the scoring (default: the number that is fastest at load)",
    )


def run(arguments: argparse.Namespace, cancel: threading.Event) -> int:
    """Quantise, score both models, print the report."""
    from engine.load.quantise import quantise_checkpoint

    texts = [] if arguments.no_loss else _texts(arguments.text)
    modules = quantise_checkpoint(
        arguments.model,
        arguments.out,
        method=arguments.method,
        on_progress=_show if sys.stderr.isatty() else None,
        cancel=cancel,
    )
    by_format: dict[str, int] = {}
    for module in modules:
        by_format[module.format_name] = by_format.get(module.format_name, 0) + module.nbytes
    report: dict[str, object] = {
        "method": arguments.method,
        "out": arguments.out,
        "bytes_by_format": by_format,
        "worst_relative_error": max(module.relative_error for module in modules),
        "modules": [
            {
                "module": module.module,
                "format": module.format_name,
                "bytes": module.nbytes,
                "relative_error": module.relative_error,
            }
            for module in modules
        ],
    }
    if texts:
        before = _loss(arguments.model, texts, arguments.threads, cancel)
        after = _loss(arguments.out, texts, arguments.threads, cancel)
        report |= {
            "scored_tokens": after[1],
            "loss_before_nats": before[0],
            "loss_after_nats": after[0],
            "loss_change_nats": after[0] - before[0],
        }
    if arguments.json:
        print_json({"report": report})
        return OK
    for name, size in by_format.items():
        print(f"{name}: {byte_size(size)}")
    print(f"worst relative error of a matrix: {report['worst_relative_error']:.3f}")
    if texts:
        print(
            f"loss {report['loss_before_nats']:.4f} -> {report['loss_after_nats']:.4f} nats "
            f"({report['loss_change_nats']:+.4f}) over {grouped(report['scored_tokens'])} tokens"
        )
    return OK


def _texts(path: str | None) -> list[str]:
    """The paragraphs of a text file, or answers of the demo corpus spread over all its files."""
    if path is None:
        answers = []
        for file in corpus_files():
            answers += re.findall(r"^A: (.*)$", file.read_text("utf-8"), re.MULTILINE)
        return answers[:: max(1, len(answers) // _SCORED_TEXTS)]
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot read the text: {reason_of(error)}.") from error
    paragraphs = [part for part in re.split(r"\n\s*\n", text) if part.strip()]
    if not paragraphs:
        raise UsageError(f"{path} holds no text.", next_step="Give a file with some paragraphs.")
    return paragraphs


def _loss(
    model: str, texts: Sequence[str], threads: int | None, cancel: threading.Event
) -> tuple[float, int]:
    from engine.engine import Engine
    from engine.measure.loss import mean_loss

    with Engine.open(model, threads=threads, cancel=cancel) as engine:
        ids = [engine.encode(text)[:_SCORED_TOKENS] for text in texts]
        loss = mean_loss(engine, ids, cancel=cancel)
    return loss.nats, loss.tokens


def _show(progress: LoadProgress) -> None:
    share = 100 * progress.done_bytes // max(1, progress.total_bytes)
    print(f"quantising: {share:3d} %", end="\r", file=sys.stderr)
