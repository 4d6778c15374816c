# SPDX-License-Identifier: MIT OR Apache-2.0
"""`rondo quantize`: an NVFP4 copy of a BF16 checkpoint with an FP8 head, and what it costs in loss."""

from __future__ import annotations

import argparse
import re
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.api import LoadProgress
from engine.cli import OK, print_json
from engine.errors import UsageError, reason_of
from engine.numbers import byte_size, grouped
from engine.paths import corpus_files

if TYPE_CHECKING:
    from engine.load.quantise import ModuleReport

_SCORED_TEXTS = 120
_SCORED_TOKENS = 512  # of each text
_STAGE_WIDTH = 40  # covers the longest line of progress


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "--model", required=True, metavar="DIR", help="folder of the BF16 checkpoint"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to write, new or empty")
    parser.add_argument(
        "--method",
        choices=("rtn", "clip", "gptq"),
        default="clip",
        help="rtn rounds to nearest, clip also searches the scale of each block, gptq also lets errors "
        "cancel on calibration text (default: clip)",
    )
    parser.add_argument(
        "--calibration",
        metavar="FILE",
        help="text to run the model on while its layers are quantised, in paragraphs; for gptq, and for "
        "the others if given (default: answers of the demo's corpus that are not scored)",
    )
    parser.add_argument(
        "--calibration-tokens",
        type=int,
        metavar="N",
        help="tokens of it to use; time is proportional (default: 8192)",
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
    from engine.load.quantise import CALIBRATION_TOKENS, quantise_checkpoint

    texts = [] if arguments.no_loss else _scored_texts(arguments.text)
    modules = quantise_checkpoint(
        arguments.model,
        arguments.out,
        method=arguments.method,
        calibration=_calibration_texts(arguments, texts),
        calibration_tokens=CALIBRATION_TOKENS
        if arguments.calibration_tokens is None
        else arguments.calibration_tokens,
        on_progress=_show if sys.stderr.isatty() else None,
        cancel=cancel,
    )
    report = _report(arguments, modules)
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
    else:
        _print_report(report)
    return OK


def _report(arguments: argparse.Namespace, modules: Sequence[ModuleReport]) -> dict[str, Any]:
    by_format: dict[str, int] = {}
    for module in modules:
        by_format[module.format_name] = by_format.get(module.format_name, 0) + module.nbytes
    outputs = [m.output_error for m in modules if m.output_error is not None]
    replaced = [m for m in modules if m.method and m.method != arguments.method]
    return {
        "method": arguments.method,
        "out": arguments.out,
        "bytes_by_format": by_format,
        "calibration_tokens": max(module.calibration_rows for module in modules),
        "clip_for_few_rows": len(replaced),
        "worst_relative_error": max(module.relative_error for module in modules),
        "worst_output_error": max(outputs, default=None),
        "modules": [
            {
                "module": module.module,
                "format": module.format_name,
                "method": module.method or None,
                "bytes": module.nbytes,
                "relative_error": module.relative_error,
                "calibration_rows": module.calibration_rows,
                "output_error": module.output_error,
            }
            for module in modules
        ],
    }


def _print_report(report: dict[str, Any]) -> None:
    for name, size in report["bytes_by_format"].items():
        print(f"{name}: {byte_size(size)}")
    print(f"worst relative error of a matrix: {report['worst_relative_error']:.3f}")
    if report["worst_output_error"] is not None:
        print(
            f"worst relative error of a matrix's outputs: {report['worst_output_error']:.3f} on "
            f"{grouped(report['calibration_tokens'])} tokens of calibration text"
        )
    if report["clip_for_few_rows"]:
        print(
            f"by clip, for too few tokens reached the expert: {report['clip_for_few_rows']} matrices"
        )
    if "loss_change_nats" in report:
        print(
            f"loss {report['loss_before_nats']:.4f} -> {report['loss_after_nats']:.4f} nats "
            f"({report['loss_change_nats']:+.4f}) over {grouped(report['scored_tokens'])} tokens"
        )


def _scored_texts(path: str | None) -> list[str]:
    """The paragraphs of a text file, or answers of the demo corpus spread over all its files."""
    if path is not None:
        return _paragraphs(path)
    answers = _answers()
    return answers[:: max(1, len(answers) // _SCORED_TEXTS)]


def _calibration_texts(arguments: argparse.Namespace, scored: Sequence[str]) -> list[str] | None:
    """Texts to calibrate on, none of those that are scored; None where nothing is to be calibrated."""
    path = arguments.calibration
    if arguments.method != "gptq" and path is None and arguments.calibration_tokens is None:
        return None
    texts = _answers() if path is None else _paragraphs(path)
    left_out = {text.strip() for text in scored}
    fresh = [text for text in dict.fromkeys(texts) if text.strip() not in left_out]
    if not fresh:
        raise UsageError(
            f"{path or 'The demo corpus'}: every paragraph is scored, too, which would flatter the result.",
            next_step="Give other text to --calibration or to --text.",
        )
    return fresh


def _answers() -> list[str]:
    """Every answer of the demo corpus."""
    answers = []
    for file in corpus_files():
        answers += re.findall(r"^A: (.*)$", file.read_text("utf-8"), re.MULTILINE)
    return answers


def _paragraphs(path: str) -> list[str]:
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
    print(f"{progress.stage}: {share:3d} %".ljust(_STAGE_WIDTH), end="\r", file=sys.stderr)
