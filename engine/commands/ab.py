# SPDX-License-Identifier: MIT OR Apache-2.0
"""`rondo ab`: an in-process A/B of two switch settings, with a verdict that may be "not resolved"."""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.api_compare import (
    DEFAULT_PAIRS,
    DEFAULT_TOKENS,
    FEWEST_PAIRS,
    FEWEST_TOKENS,
    MOST_PAIRS,
    MOST_REPEATS,
    MOST_TOKENS,
    WORKLOADS,
    CompareProgress,
    CompareReport,
    CompareRequest,
)
from engine.cli import (
    FAILED,
    GATE,
    OK,
    add_label_option,
    add_model_options,
    open_model,
    print_json,
    setting,
)
from engine.errors import UsageError, reason_of
from engine.measure.workloads import check_request
from engine.numbers import grouped

if TYPE_CHECKING:
    from engine.engine import Engine

_NEXT_SWITCH = re.compile(r",(?=QWEN38_[A-Z0-9_]+=)")  # a value may hold commas itself


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    add_model_options(parser)
    parser.add_argument(
        "--candidate",
        action="append",
        default=[],
        metavar="QWEN38_X=V[,QWEN38_Y=V]",
        help="switches of the side on trial (default: those of the base, which measures the noise)",
    )
    parser.add_argument(
        "--base",
        action="append",
        default=[],
        metavar="QWEN38_X=V[,...]",
        help="switches of the side it is compared with (default: as the profile has them)",
    )
    parser.add_argument(
        "--pairs",
        type=int,
        default=DEFAULT_PAIRS,
        metavar="N",
        help=f"pairs to measure, {FEWEST_PAIRS} to {MOST_PAIRS} (default: {DEFAULT_PAIRS})",
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=0,
        metavar="N",
        help=f"answers of a side to a prompt within a pair, 1 to {MOST_REPEATS} (default: 0, by their length)",
    )
    parser.add_argument(
        "--workload",
        choices=WORKLOADS,
        help="class of the shipped prompts to answer (default: mix, the four of them)",
    )
    parser.add_argument(
        "--prompt", metavar="T", help="a prompt of your own (default: those of the workload)"
    )
    parser.add_argument(
        "--tokens",
        type=int,
        default=DEFAULT_TOKENS,
        metavar="N",
        help=f"tokens of each answer, {FEWEST_TOKENS} to {MOST_TOKENS} (default: {DEFAULT_TOKENS})",
    )
    parser.add_argument(
        "--forced", action="store_true", help="both sides follow the text that the base writes"
    )
    parser.add_argument(
        "--reference",
        metavar="FILE",
        help="both sides follow this text; needs --prompt (default: each writes its own)",
    )
    parser.add_argument(
        "--min-effect",
        type=float,
        default=0.0,
        metavar="PCT",
        help="call no difference below so many percent better or worse (default: 0)",
    )
    add_label_option(parser)
    parser.add_argument(
        "--csv",
        metavar="FILE",
        help="also write the raw rows to FILE, and FILE-compare.csv and FILE-kernels.csv beside it "
        "(default: no file)",
    )


def run(arguments: argparse.Namespace, cancel: threading.Event) -> int:
    """Compare and print; exit 3 when the comparison is invalid, 1 when it was cancelled before a pair."""
    request = _request(arguments)
    files = _files(arguments.csv)
    # Nothing else may hold the engine: a reload frees it.
    return measure([open_model(arguments, cancel)], request, files, cancel, as_json=arguments.json)


def measure(
    holder: list[Engine],
    request: CompareRequest,
    files: dict[str, Path],
    cancel: threading.Event,
    *,
    as_json: bool,
) -> int:
    """Compare on the engine in `holder`, which is emptied and closed; store, write, print."""
    from engine.compare_handle import measured_on
    from engine.measure.ab import CompareStopped
    from engine.measure.ab_session import compare_on
    from engine.measure.runs import RunStore
    from engine.measure.runs_handle import keep_report

    store, card = RunStore(), holder[0].card

    def replace_engine(engine: Engine | None) -> None:
        holder[:] = [] if engine is None else [engine]

    try:
        report = compare_on(
            holder[0], request, on_engine=replace_engine, on_progress=_Stages().show, cancel=cancel
        )
    except CompareStopped as error:
        if error.partial.blocks:
            _say_where(keep_report(store, measured_on(card, error.partial)))
        raise
    finally:
        for engine in holder:
            engine.close()
    report = keep_report(store, measured_on(card, report))
    _say_where(report)
    if as_json:
        print_json(report_values(report))
    else:
        _print(report)
    _write(report, files)
    return {"invalid": GATE, "cancelled": FAILED}.get(report.verdict, OK)


def parse_changes(texts: Sequence[str], option: str) -> dict[str, str]:
    """QWEN38_X=V[,QWEN38_Y=V] as a mapping; UsageError where a part has no =."""
    changes = {}
    for part in (part for text in texts for part in _NEXT_SWITCH.split(text)):
        name, value = setting(part, option)
        if name in changes:
            raise UsageError(
                f"{option} names {name} twice.", next_step="Give each switch one value."
            )
        changes[name] = value
    return changes


def report_values(report: CompareReport) -> dict[str, Any]:
    """The report as plain values, without the times of single rounds."""
    from engine.measure.records import plain

    values = plain(report)
    for block in values["blocks"]:
        del block["round_ms"]
    return values


def _request(arguments: argparse.Namespace) -> CompareRequest:
    if arguments.prompt is not None and arguments.workload not in (None, "prompt"):
        raise UsageError("A prompt and a workload are given.", next_step="Leave one of them out.")
    request = CompareRequest(
        candidate=parse_changes(arguments.candidate, "--candidate"),
        base=parse_changes(arguments.base, "--base"),
        workload=arguments.workload or ("mix" if arguments.prompt is None else "prompt"),
        pairs=arguments.pairs,
        tokens=arguments.tokens,
        repeats=arguments.repeats,
        prompt=arguments.prompt or "",
        forced=arguments.forced or arguments.reference is not None,
        reference=_text(arguments.reference) if arguments.reference is not None else "",
        min_effect_pct=arguments.min_effect,
        label=arguments.label,
    )
    check_request(request)
    return request


def _text(name: str) -> str:
    try:
        return Path(name).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{name}: cannot read the reference text: {reason_of(error)}.") from error


def _files(csv: str | None) -> dict[str, Path]:
    """Where the tables go; ExportError before anything is measured where a file is there already."""
    from engine.measure.export_csv import require_new
    from engine.measure.runs_text import COMPARE, KERNELS, RUNS

    if not csv:
        return {}
    path = Path(csv)
    files = {
        RUNS: path,
        COMPARE: path.with_name(f"{path.stem}-compare.csv"),
        KERNELS: path.with_name(f"{path.stem}-kernels.csv"),
    }
    for file in files.values():
        require_new(file)
    return files


def _write(report: CompareReport, files: dict[str, Path]) -> None:
    from engine.measure.export_csv import write_new_file
    from engine.measure.runs_text import compare_texts

    if files:
        for table, text in compare_texts(report).items():
            write_new_file(files[table], text)


class _Stages:
    """Progress on stderr: one line rewritten on a terminal, else one line a stage."""

    def __init__(self) -> None:
        self._told = ""

    def show(self, progress: CompareProgress) -> None:
        stage = progress.stage if sys.stderr.isatty() else progress.stage.partition(":")[0]
        if stage == self._told:
            return
        self._told = stage
        left = "" if progress.left_s is None else f", about {progress.left_s:.0f} s left"
        end = "\r" if sys.stderr.isatty() else "\n"
        print(f"{stage}{left}".ljust(72), end=end, file=sys.stderr, flush=True)


def _say_where(report: CompareReport) -> None:
    where = report.not_stored or f"stored as {report.run_id} (`rondo runs show {report.run_id}`)"
    print(f"{where}".ljust(72), file=sys.stderr)


def _print(report: CompareReport) -> None:
    from engine.measure.stats import shown_p

    print(f"{report.verdict}: {report.reason}")
    unit = report.metric.replace("_", " ")
    if report.base and report.candidate:
        print(f"{'':16} {'base':>12} {'candidate':>12}")
        for name in ("ms_per_round", "tokens_per_round", "ms_per_token", "decode_tps"):
            base, candidate = getattr(report.base, name), getattr(report.candidate, name)
            print(f"{name.replace('_', ' '):16} {_figure(base):>12} {_figure(candidate):>12}")
    if report.pairs and report.estimator:
        base, candidate = (
            _figure(statistics.median(getattr(pair, side) for pair in report.pairs))
            for side in ("base_ms", "candidate_ms")
        )
        print(f"{'compared':16} {base:>12} {candidate:>12}  {unit}: {report.estimator}")
    if report.pairs:
        print(f"primary figure: {unit}; signs {report.signs or '-'}; {report.noise_source}")
    for row in report.workloads:
        print(
            f"  {row.workload:14} {100 * (row.ratio_median - 1):+8.2f} %  {shown_p(row.p_signflip)}  "
            f"{row.signs}"
        )
    for kernel in report.kernels[:8]:
        print(
            f"  {kernel.name:24} {kernel.base_ms_per_round:10.4f} {kernel.candidate_ms_per_round:10.4f} "
            f"{kernel.delta_ms:+10.4f} ms a round"
        )
    for note in report.notes:
        print(f"note: {note}")


def _figure(value: float | None) -> str:
    return "-" if value is None else grouped(value, 3)
