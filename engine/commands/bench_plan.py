# SPDX-License-Identifier: MIT OR Apache-2.0
"""`rondo bench --suite plan`: a round's bytes, instructions and predicted times on two GPUs.

Beside them stand the native CPU backend's times of the same shape, or of a slice of it, measured in this run.
"""

from __future__ import annotations

import argparse
import contextlib
import threading

from engine.cli import OK, print_json
from engine.commands.bench_backends import backend_factory, require_device
from engine.commands.shared import numbers, switches_of, tell, threads_of
from engine.errors import Cancelled, RondoError, UsageError
from engine.measure.plan import LABEL, MACHINES, Plan, make_plan
from engine.measure.plan_native import NativeFigures, measure_native, measured_shape
from engine.measure.roof import native_probes
from engine.measure.shapes import Shape, named_shape
from engine.numbers import grouped
from engine.spec.tree import MAX_NODES

_ROWS = (1, 2, 4, 8, 16, 17, 24, 32)


def run_plan_suite(arguments: argparse.Namespace, cancel: threading.Event) -> int:
    """Print the plan of --shape for --rows at --context, and what the processor takes for such passes."""
    rows = _ROWS
    if arguments.rows:
        rows = numbers(arguments.rows, "--rows")
    if not all(1 <= count <= MAX_NODES for count in rows):
        raise UsageError(f"A plan is for 1 to {MAX_NODES} rows.", next_step="Write --rows 1,8,16.")
    shape = named_shape(arguments.shape, vocab=arguments.vocab)
    if shape.config.experts:
        raise UsageError(
            "A plan is about GPUs, and mixture-of-experts layers run on the processor only so far.",
            next_step="Name a dense shape, or measure this one: --suite decode,verify.",
        )
    if not 1 <= arguments.context <= shape.config.context_tokens:
        raise UsageError(
            f"A context of {grouped(arguments.context)} tokens cannot be planned.",
            next_step=f"Use --context 1 to {shape.config.context_tokens}.",
        )
    plan = make_plan(shape, rows, arguments.context)
    native: NativeFigures | None = None
    reason = "left out by --no-native"
    if not arguments.no_native:
        try:
            native = _native(arguments, shape, rows, cancel)
        except (Cancelled, UsageError):
            raise
        except RondoError as error:
            reason = error.cause
    if arguments.json:
        beside = {"not_available": reason} if native is None else native.to_json()
        print_json({**plan.to_json(), "native": beside})
    else:
        _print(plan)
        _print_native(native, reason)
    return OK


def _native(
    arguments: argparse.Namespace, shape: Shape, rows: tuple[int, ...], cancel: threading.Event
) -> NativeFigures:
    knobs = switches_of(arguments)
    require_device("cpu", knobs)
    threads = threads_of(arguments)
    roof = contextlib.nullcontext() if arguments.no_roof else native_probes(threads)
    with roof as probes:
        return measure_native(
            measured_shape(shape, arguments.vocab),
            tuple(dict.fromkeys(rows)),
            arguments.context,
            backend_factory(knobs),
            threads=threads,
            turns=arguments.turns,
            probes=probes,
            on_progress=tell,
            cancel=cancel,
        )


def _print(plan: Plan) -> None:
    note = f" ({plan.shape_note})" if plan.shape_note else ""
    print(f"{plan.shape}{note}, verify pass over {plan.context_tokens} tokens: {LABEL}")
    for machine in MACHINES:
        print(
            f"{machine.name}: {machine.read_gbps:g} GB/s, {machine.matrix_tflops:g} TFLOP/s BF16, "
            f"{machine.multiprocessors} multiprocessors at {machine.clock_ghz:g} GHz"
        )
    print(
        f"{'GPU':6} {'rows':>4} {'GB a round':>11} {'CPU, GB':>8} {'10^6 matrix':>12} {'10^9 decode':>12} "
        f"{'memory ms':>10} {'matrix ms':>10} {'decode ms':>10} {'predicted ms':>13}  bound by"
    )
    for row in plan.rows:
        print(
            f"{row.machine:6} {row.rows:4} {row.bytes_per_round / 1e9:11.3f} "
            f"{row.cpu_bytes_per_round / 1e9:8.3f} "
            f"{row.matrix_instructions / 1e6:12.1f} {row.decode_instructions / 1e9:12.2f} {row.bytes_ms:10.3f} "
            f"{row.matrix_ms:10.3f} {row.decode_ms:10.3f} {row.predicted_ms:13.3f}  {row.bound}"
        )


def _print_native(native: NativeFigures | None, reason: str) -> None:
    if native is None:
        print(f"\nnative CPU: {reason}")
        return
    note = f" ({native.shape_note})" if native.shape_note else ""
    print(
        f"\nnative CPU, measured in this run: {native.shape}{note}, {native.threads} threads; "
        "the same passes as predicted for each GPU beside it"
    )
    names = "".join(f"{machine.name + ' ms':>10}" for machine in MACHINES)
    print(
        f"{'rows':>4} {'GB a round':>11} {'CPU ms':>10} {'n':>4} {'GB/s':>8} {'of roof':>8}{names}"
    )
    for row in native.rows:
        share = f"{100 * row.read_gbps / row.roof_gbps:6.0f} %" if row.roof_gbps else " " * 8
        predicted = "".join(f"{row.predicted_ms[machine.name]:10.3f}" for machine in MACHINES)
        print(
            f"{row.rows:4} {row.bytes_per_round / 1e9:11.3f} {row.ms_median:10.3f} {row.n:4} "
            f"{row.read_gbps:8.2f} {share}{predicted}"
        )
