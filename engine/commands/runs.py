# SPDX-License-Identifier: MIT OR Apache-2.0
"""`rondo runs`: the stored A/B and bench runs: list, show, compare, export, label, delete, run again."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from engine.api_compare import RunRecord
from engine.cli import OK, print_json
from engine.errors import UsageError

if TYPE_CHECKING:
    from engine.measure.runs_handle import StoredRuns

ACTIONS = {
    "list": "the newest first",
    "show": "ID: one run",
    "diff": "ID ID: what differs",
    "export": "ID...: as CSV files into --out",
    "label": "ID TEXT: another label",
    "delete": "ID...: remove",
    "rerun": "ID: the same again, with the model, its device and context, and the switches as they were",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    words = "; ".join(f"{name} {help_text}" for name, help_text in ACTIONS.items())
    parser.add_argument("action", nargs="?", default="list", choices=ACTIONS, help=words)
    parser.add_argument(
        "words", nargs="*", metavar="ID", help="runs as the list names them, or the text of a label"
    )
    parser.add_argument(
        "--limit", type=int, default=20, metavar="N", help="list: most runs to show (default: 20)"
    )
    parser.add_argument(
        "--offset", type=int, default=0, metavar="N", help="list: newest runs to skip (default: 0)"
    )
    parser.add_argument(
        "--out", default=".", metavar="DIR", help="export: folder of the files (default: this one)"
    )


def run(arguments: argparse.Namespace, cancel: threading.Event) -> int:
    """Do what the action says."""
    actions: dict[str, Callable[[argparse.Namespace, threading.Event], int]] = {
        "list": _list,
        "show": _show,
        "diff": _diff,
        "export": _export,
        "label": _label,
        "delete": _delete,
        "rerun": _rerun,
    }
    return actions[arguments.action](arguments, cancel)


def _list(arguments: argparse.Namespace, cancel: threading.Event) -> int:
    _need(arguments, 0, 0)
    if arguments.limit < 1 or arguments.offset < 0:
        raise UsageError("--limit starts at 1 and --offset at 0.", next_step="Use such numbers.")
    found = _handle().runs(offset=arguments.offset, limit=arguments.limit)
    if arguments.json:
        print_json({"runs": [asdict(summary) for summary in found]})
        return OK
    if not found:
        print("no runs are stored", file=sys.stderr)
    for summary in found:
        what = f"damaged: {summary.damaged}" if summary.damaged else summary.headline
        label = f"  [{summary.label}]" if summary.label else ""
        print(f"{summary.run_id}  {summary.kind or '?':8} {what}{label}")
    return OK


def _show(arguments: argparse.Namespace, cancel: threading.Event) -> int:
    from engine.commands.ab import report_values
    from engine.measure.records import plain

    [run_id] = _need(arguments, 1, 1)
    found = _handle().run(run_id)
    if arguments.json:
        values = plain(replace(found, compare=None))
        values["compare"] = report_values(found.compare) if found.compare else None
        print_json(values)
        return OK
    summary = found.summary
    print(f"{summary.run_id}  {summary.kind}  {summary.model_name}  {summary.machine}")
    print(summary.headline)
    if found.compare:
        print(found.compare.reason)
        for pair in found.compare.pairs:
            print(
                f"  pair {pair.index:3} {pair.order}  {pair.base_ms:10.4f} {pair.candidate_ms:10.4f} ms "
                f"{100 * (pair.candidate_ms / pair.base_ms - 1):+7.2f} % {pair.outlier}"
            )
    return OK


def _diff(arguments: argparse.Namespace, cancel: threading.Event) -> int:
    from engine.measure.runs_diff import KIND

    first, second = _need(arguments, 2, 2)
    found = _handle().diff_runs(first, second)
    if arguments.json:
        print_json({"differences": [asdict(row) for row in found]})
        return OK
    if found and found[0].name == KIND:
        kinds, *found = found
        print(
            f"{first} is of the kind {kinds.first}, {second} of the kind {kinds.second}: they have no figures "
            f"in common; their machines {'differ' if found else 'do not differ'}"
        )
    elif not found:
        print("nothing differs")
    for row in found:
        delta = "" if row.delta_pct is None else f"  {row.delta_pct:+.2f} %"
        print(f"{row.section:9} {row.name}: {row.first or '-'} | {row.second or '-'}{delta}")
    return OK


def _export(arguments: argparse.Namespace, cancel: threading.Event) -> int:
    ids = _need(arguments, 1, None)
    paths = _handle().export_runs(tuple(ids), arguments.out)
    if arguments.json:
        print_json({"files": list(paths)})
    else:
        print("\n".join(paths))
    return OK


def _label(arguments: argparse.Namespace, cancel: threading.Event) -> int:
    run_id, *words = _need(arguments, 1, None)
    label = " ".join(words)
    _handle().label_run(run_id, label)
    if arguments.json:
        print_json({"run_id": run_id, "label": label})
    return OK


def _delete(arguments: argparse.Namespace, cancel: threading.Event) -> int:
    ids = _need(arguments, 1, None)
    for run_id in ids:
        _handle().delete_run(run_id)
    if arguments.json:
        print_json({"deleted": ids})
    return OK


def _rerun(arguments: argparse.Namespace, cancel: threading.Event) -> int:
    [run_id] = _need(arguments, 1, 1)
    found = _handle().run(run_id)
    if found.compare is None:
        return _rerun_bench(found, arguments, cancel)
    from engine.commands.ab import measure
    from engine.compare_handle import GPU, rerun_request
    from engine.engine import Engine
    from engine.knobs import KNOBS, PREFIX

    report = found.compare
    engine = Engine.open(
        report.model_path,
        device=(GPU if report.backend == GPU else "cpu") if report.backend else "auto",
        threads=report.threads or None,
        context_tokens=report.context_tokens or None,
        cancel=cancel,
    )
    in_effect = {PREFIX + knob.name: engine.knobs.raw(knob.name)[0] for knob in KNOBS}
    request = rerun_request(found, engine.card, in_effect)
    holder = [engine]
    del engine  # a reload frees it
    return measure(holder, request, {}, cancel, as_json=arguments.json)


def _rerun_bench(found: RunRecord, arguments: argparse.Namespace, cancel: threading.Event) -> int:
    from engine.commands import bench

    parser = argparse.ArgumentParser()
    bench.add_options(parser)
    options = parser.parse_args([])
    for name, value in found.request.items():
        if hasattr(options, name):
            setattr(options, name, value)
    options.json = arguments.json
    return bench.run(options, cancel)


def _need(arguments: argparse.Namespace, least: int, most: int | None) -> list[str]:
    """The words behind the action; UsageError where their number is wrong."""
    words = arguments.words
    if len(words) < least or (most is not None and len(words) > most):
        raise UsageError(
            f"`rondo runs {arguments.action}` does not take {len(words)} words.",
            next_step=f"It is: {arguments.action} {ACTIONS[arguments.action]}.",
        )
    return words


def _handle() -> StoredRuns:
    from engine.measure.runs import RunStore
    from engine.measure.runs_handle import StoredRuns

    return StoredRuns(RunStore())
