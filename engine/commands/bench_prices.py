# SPDX-License-Identifier: MIT OR Apache-2.0
"""`rondo bench --suite verify --write-tables`: the verify prices of a model or a shape, kept for the router."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.cli import OK, print_json
from engine.commands.bench_backends import factory_on
from engine.commands.shared import numbers, switches_of, tell, threads_of
from engine.errors import UsageError
from engine.knobs import KnobSet
from engine.measure.machine import code_record, cpu_model
from engine.measure.price_run import PRICE_ROWS, TREES, PriceRequest, measure_prices
from engine.measure.price_store import PriceKey
from engine.model.backend import Backend
from engine.moment import iso_utc
from engine.spec.prices import CHAIN, TREE, PriceTable, parse_prices, write_prices

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class _Subject:
    """The backend to measure, and what it runs."""

    backend: Backend
    name: str
    weight_format: str


def run_prices(arguments: argparse.Namespace, cancel: threading.Event) -> int:
    """Measure, print, keep the table (or write it to --out)."""
    if arguments.suite != "verify":
        raise UsageError(
            "--write-tables measures verify passes only.", next_step="Add --suite verify."
        )
    request = PriceRequest(
        rows=numbers(arguments.rows, "--rows") if arguments.rows else PRICE_ROWS,
        contexts=numbers(arguments.contexts, "--contexts"),
        turns=arguments.turns,
        seed=arguments.seed,
    )
    request.check()
    knobs = switches_of(arguments)
    subject = _open(arguments, request, knobs, cancel)
    try:
        subject.backend.reset(speculate=False)
        key = PriceKey.of(subject.backend, knobs)
        classes = measure_prices(
            subject.backend,
            request,
            on_progress=tell,
            cancel=cancel,
        )
    finally:
        subject.backend.close()
    written = PriceTable(classes, "measured now", _provenance(arguments, request, subject, key))
    path = Path(arguments.out) if arguments.out else key.path()
    try:
        write_prices(written, path)
    except UsageError:
        print(json.dumps(written.to_json(), indent=1), file=sys.stderr)  # it took minutes
        raise
    # As the router will read it, with what there is to note.
    table = parse_prices(path.read_text(encoding="utf-8"), name=str(path), source="measured now")
    if arguments.json:
        print_json({"path": str(path), "prices": table.to_json(), "notes": list(table.notes)})
    else:
        _print_table(table)
        for note in table.notes:
            print(f"note: {note}", file=sys.stderr)
        print(f"written to {path}")
    return OK


def _open(
    arguments: argparse.Namespace,
    request: PriceRequest,
    knobs: KnobSet,
    cancel: threading.Event,
) -> _Subject:
    if arguments.model:
        return _open_model(arguments, request, knobs, cancel)
    from engine.load.synthetic import synthetic_weights
    from engine.measure.shapes import named_shape

    shape = named_shape(arguments.shape, vocab=arguments.vocab)
    threads = threads_of(arguments)
    weights = synthetic_weights(shape.config, arguments.weights, arguments.seed)
    capacity = min(request.capacity, shape.config.context_tokens)
    backend = factory_on(arguments.device, knobs)(
        shape.config, weights, capacity=capacity, threads=threads
    )
    return _Subject(backend, f"{shape.name}, synthetic", arguments.weights.upper())


def _open_model(
    arguments: argparse.Namespace,
    request: PriceRequest,
    knobs: KnobSet,
    cancel: threading.Event,
) -> _Subject:
    from engine.load.checkpoint import read_checkpoint
    from engine.model.choose import open_backend, refuse_device

    device = arguments.device
    checkpoint = read_checkpoint(
        arguments.model,
        context_tokens=request.capacity,
        on_found=lambda found: refuse_device(found.plan.config, device=device, knobs=knobs),
        cancel=cancel,
    )
    opened = open_backend(
        checkpoint,
        capacity=min(request.capacity, checkpoint.config.context_tokens),
        knobs=knobs,
        device=device,
        threads=arguments.threads,
        float32=False,
        cancel=cancel,
    )
    return _Subject(opened.backend, checkpoint.name, checkpoint.weight_format)


def _provenance(
    arguments: argparse.Namespace, request: PriceRequest, subject: _Subject, key: PriceKey
) -> dict[str, Any]:
    command = ["rondo", "bench", "--suite", "verify", "--write-tables"]
    command += ["--model", Path(arguments.model).name] if arguments.model else []
    command += [] if arguments.model else ["--shape", arguments.shape]
    command += ["--device", "cuda"] if arguments.device == "cuda" else []
    command += ["--turns", str(request.turns), "--threads", str(key.threads)]
    return {
        "machine": cpu_model(),
        "isa": key.isa,
        "threads": key.threads,
        "backend": key.backend,
        "kernels": key.kernels,
        "model": subject.name,
        "weights": subject.weight_format,
        "commit": code_record(_ROOT)["git_commit"],
        "date": iso_utc(),
        "command": shlex.join(command),
        "trees": TREES,
        "rounds": request.turns,
    }


def _print_table(table: PriceTable) -> None:
    print(f"{'context':>8} {'rows':>5} {'chain ms':>10} {'tree ms':>10}")
    for tokens, kinds in table.classes.items():
        for rows, ms in kinds[CHAIN].items():
            tree_ms = kinds[TREE].get(rows)
            tree = "-" if tree_ms is None else f"{tree_ms:.3f}"
            print(f"{tokens:8} {rows:5} {ms:10.3f} {tree:>10}")
