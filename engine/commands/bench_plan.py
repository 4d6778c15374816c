# SPDX-License-Identifier: MIT OR Apache-2.0
"""`rondo bench --suite plan`: bytes, instructions and predicted times on two GPUs; nothing is timed."""

from __future__ import annotations

import argparse

from engine.cli import OK, print_json
from engine.commands.bench import numbers
from engine.errors import UsageError
from engine.measure.plan import LABEL, MACHINES, Plan, make_plan
from engine.measure.shapes import named_shape

_ROWS = (1, 2, 4, 8, 16, 17, 24, 32)
_MOST_ROWS = 32


def run_plan_suite(arguments: argparse.Namespace) -> int:
    """Print the plan of --shape for --rows at --context."""
    rows = _ROWS
    if arguments.rows:
        rows = numbers(arguments.rows, "--rows")
    if not all(1 <= count <= _MOST_ROWS for count in rows):
        raise UsageError(f"A plan is for 1 to {_MOST_ROWS} rows.", next_step="Write --rows 1,8,16.")
    if arguments.context < 0:
        raise UsageError("--context must not be negative.")
    plan = make_plan(named_shape(arguments.shape, vocab=arguments.vocab), rows, arguments.context)
    if arguments.json:
        print_json(plan.to_json())
    else:
        _print(plan)
    return OK


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
