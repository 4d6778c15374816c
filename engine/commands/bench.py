# SPDX-License-Identifier: MIT OR Apache-2.0
"""`rondo bench`: whole-round timings on a named shape, peers and the machine's roof in the same run."""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.cli import OK, add_label_option, add_switch_options, print_json
from engine.commands.bench_backends import factory_on, require_device
from engine.commands.shared import numbers, parts_of, switches_of, tell, threads_of
from engine.errors import UsageError
from engine.measure.bench_report import MOST_TURNS, BenchReport, BenchRequest
from engine.measure.rounds import SUITES
from engine.measure.shapes import shape_names

if TYPE_CHECKING:
    from engine.measure.roof import Probes

_DEFAULTS = BenchRequest.__dataclass_fields__
# What a run again needs to be the same.
_STORED_OPTIONS = (
    "shape", "vocab", "suite", "rows", "prefill", "threads", "peers", "weights", "context", "turns", "budget",
    "case_limit", "seed", "device", "no_roof", "profile", "knob", "label",
)  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    _add_subject(parser)
    _add_measure(parser)
    add_switch_options(parser)
    add_label_option(parser)
    parser.add_argument(
        "--csv",
        metavar="FILE",
        help="also write FILE and, with every sample, FILE.json (default: no file)",
    )
    _add_prices_and_policies(parser)


def _add_subject(parser: argparse.ArgumentParser) -> None:
    """What is measured: shape, suites, sizes, peers."""
    parser.add_argument(
        "--shape",
        default="demo",
        metavar="NAME[:LAYERS]",
        help=f"what to measure: {', '.join(shape_names())}; :LAYERS keeps the first so many (default: demo)",
    )
    parser.add_argument(
        "--vocab",
        type=int,
        metavar="N",
        help="rows of the vocabulary (default: the shape's own, fewer for some of its layers)",
    )
    parser.add_argument(
        "--suite",
        default=",".join(SUITES),
        metavar="LIST",
        help=f"{', '.join(SUITES)}; or alone: policies (drafting policies against the router), "
        f"plan (a GPU round predicted from its bytes, a CPU round measured) (default: {','.join(SUITES)})",
    )
    parser.add_argument(
        "--rows",
        metavar="LIST",
        help="rows of a verify pass, each 1 to 32 (default: 1,2,4,8,16,32; more for prices and plan)",
    )
    parser.add_argument(
        "--prefill",
        default="256,1024",
        metavar="LIST",
        help="lengths of a prompt in tokens, for the suite prefill (default: 256,1024)",
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="worker threads (default: one for every core)"
    )
    parser.add_argument(
        "--peers",
        default="",
        metavar="LIST",
        help="other engines to measure beside: llama.cpp[:TYPE], transformers[:TYPE] (default: none)",
    )
    parser.add_argument(
        "--weights",
        default="nvfp4",
        metavar="FORMAT",
        help="format of the synthetic weights: nvfp4, fp8, bf16 (default: nvfp4)",
    )
    context = _DEFAULTS["context_tokens"].default
    parser.add_argument(
        "--context",
        type=int,
        default=context,
        metavar="N",
        help=f"tokens in the sequence when a round is timed (default: {context})",
    )


def _add_measure(parser: argparse.ArgumentParser) -> None:
    """How it is measured: turns, time, device, probes."""
    turns = _DEFAULTS["turns"].default
    budget_s, limit_s = _DEFAULTS["budget_s"].default, _DEFAULTS["case_limit_s"].default
    parser.add_argument(
        "--turns",
        type=int,
        default=turns,
        metavar="N",
        help=f"times each case has its turn, 1 to {MOST_TURNS} (default: {turns})",
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=budget_s,
        metavar="S",
        help=f"keep repeating until so many seconds are used (default: {budget_s:g})",
    )
    parser.add_argument(
        "--case-limit",
        type=float,
        default=limit_s,
        metavar="S",
        help=f"fewer turns for a case that would take more seconds (default: {limit_s:g})",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="draws the weights and the tokens, 0 or more (default: 0)",
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="what computes (default: cpu)"
    )
    parser.add_argument(
        "--no-roof", action="store_true", help="leave the probes of the machine's roof out"
    )
    parser.add_argument(
        "--no-native",
        action="store_true",
        help="plan: predict only, measure nothing on the processor",
    )


def _add_prices_and_policies(parser: argparse.ArgumentParser) -> None:
    """Options of the benches that stand apart: --write-tables and --suite policies."""
    parser.add_argument(
        "--write-tables",
        action="store_true",
        help="measure verify prices, chain and tree, and keep them for the router (--suite verify)",
    )
    parser.add_argument(
        "--model",
        metavar="DIR",
        help="prices, or policies, of this model (default: --shape; policies: the demo model)",
    )
    parser.add_argument(
        "--contexts",
        default="1024,4096",
        metavar="LIST",
        help="prices: lengths of the sequence, powers of two from 1024 (default: 1024,4096)",
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="prices: where they are written (default: where the router looks for them)",
    )
    parser.add_argument(
        "--write-rates",
        metavar="FILE",
        help="policies: write how often looked-up lines went on, as QWEN38_STAIR_RHO takes it (default: not)",
    )
    parser.add_argument(
        "--accept",
        metavar="LIST",
        help="policies on --shape: each drafted token is right with this probability, as in 0.5,0.8 "
        "(default: the policies answer prompts on a model)",
    )
    parser.add_argument(
        "--tokens",
        type=int,
        default=96,
        metavar="N",
        help="policies: most tokens of an answer (default: 96)",
    )


def run(arguments: argparse.Namespace, cancel: threading.Event) -> int:
    """Measure, print, then write the files that were asked for."""
    if arguments.seed < 0:
        raise UsageError(f"--seed {arguments.seed} is negative.", next_step="Use 0 or more.")
    if arguments.write_rates and (arguments.suite != "policies" or arguments.accept):
        raise UsageError(
            "--write-rates is for policies on a model alone.",
            next_step="Add --suite policies, and leave --accept out.",
        )
    if arguments.suite == "plan":
        from engine.commands.bench_plan import run_plan_suite

        return run_plan_suite(arguments, cancel)
    knobs = switches_of(arguments)
    require_device(arguments.device, knobs)
    if arguments.suite == "policies":
        from engine.commands.bench_policies import run_policy_suite

        return run_policy_suite(arguments, cancel)
    if arguments.write_tables:
        from engine.commands.bench_prices import run_prices

        return run_prices(arguments, cancel)
    if arguments.model or arguments.out or arguments.accept:
        raise UsageError(
            "--model, --out and --accept are for prices and policies alone.",
            next_step="Add --suite verify --write-tables, or --suite policies.",
        )
    from engine.measure import export_csv
    from engine.measure.bench import run_bench
    from engine.measure.bench_export import run_rows
    from engine.measure.machine import machine_record

    request = _request(arguments)
    files = [Path(arguments.csv), Path(arguments.csv + ".json")] if arguments.csv else []
    for file in files:
        export_csv.require_new(file)
    machine = machine_record()
    on_gpu = arguments.device == "cuda"
    with _probes(
        request.threads,
        wanted=not arguments.no_roof,
        on_gpu=on_gpu,
        int8=knobs.flag("NVFP4_INT8") and request.weight_format == "nvfp4",
    ) as probes:
        report = run_bench(
            request,
            factory_on(arguments.device, knobs),
            probes=probes,
            machine=machine,
            on_progress=tell,
            cancel=cancel,
        )
    if arguments.json:
        print_json(report.to_json())
    else:
        _print_table(report)
    rows = run_rows(report, label=arguments.label, seed=request.seed)
    _store(report, rows, arguments)
    if files:
        export_csv.write_csv(files[0], export_csv.RUN_COLUMNS, rows)
        export_csv.write_json(files[1], report.to_json(samples=True))
    return OK


def _store(report: BenchReport, rows: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    """Keep the run; where that fails the figures are on the screen still."""
    from engine.measure.runs import RunStore, RunStoreError

    asked = {name: getattr(arguments, name) for name in _STORED_OPTIONS}
    try:
        run_id = RunStore().save_bench(
            report.to_json(samples=True), rows, asked, label=arguments.label
        )
    except RunStoreError as error:
        print(error, file=sys.stderr)
    else:
        print(f"stored as {run_id} (`rondo runs show {run_id}`)", file=sys.stderr)


def _request(arguments: argparse.Namespace) -> BenchRequest:
    from engine.measure.shapes import named_shape

    request = BenchRequest(
        shape=named_shape(arguments.shape, vocab=arguments.vocab),
        suites=tuple(parts_of(arguments.suite)),
        rows=numbers(arguments.rows, "--rows") if arguments.rows else _DEFAULTS["rows"].default,
        prefill_tokens=numbers(arguments.prefill, "--prefill"),
        threads=threads_of(arguments),
        peers=tuple(parts_of(arguments.peers)),
        weight_format=arguments.weights,
        context_tokens=arguments.context,
        turns=arguments.turns,
        budget_s=arguments.budget,
        case_limit_s=arguments.case_limit,
        seed=arguments.seed,
    )
    request.check()
    return request


@contextlib.contextmanager
def _probes(threads: int, *, wanted: bool, on_gpu: bool, int8: bool) -> Iterator[Probes | None]:
    from engine.measure.roof import native_probes

    if not wanted:
        yield None
        return
    if on_gpu:
        import torch

        from engine.measure.roof_cuda import CudaProbes

        yield CudaProbes(torch.device("cuda", 0)) if torch.cuda.is_available() else None
        return
    with native_probes(threads, int8=int8) as probes:
        yield probes


def _print_table(report: BenchReport) -> None:
    if report.shape_note:
        print(f"slice: {report.shape_note}")
    print(
        f"{'suite':8} {'rows':>5}  {'engine':22} {'ms':>10} {'min':>10} {'max':>10} {'GB/s':>7} "
        f"{'roof':>7} {'GFLOP/s':>8} {'peak':>8} {'rows/s':>9} {'n':>4}"
    )
    for row in report.rows:
        print(
            f"{row.suite:8} {row.rows:5}  {row.peer or f'rondo {row.weight_format}':22} "
            f"{row.ms_median:10.3f} {row.ms_min:10.3f} {row.ms_max:10.3f} {_figure(row.read_gbps):>7} "
            f"{_figure(row.roof_gbps):>7} {row.gflops:8.1f} {_figure(row.peak_gflops):>8} "
            f"{row.tokens_per_s:9.1f} {row.n:4}"
        )
    for notice in report.notices:
        print(f"note: {notice}", file=sys.stderr)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
