# SPDX-License-Identifier: MIT OR Apache-2.0
"""`rondo bench --suite policies`: the router against fixed drafting policies, on a model or on a shape."""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path

from engine.api import Message
from engine.cli import GATE, OK, print_json
from engine.commands.bench_backends import factory_on
from engine.commands.shared import numbers, switches_of, tell, threads_of
from engine.errors import UsageError
from engine.knobs import KnobSet
from engine.measure.export_csv import require_new, write_json
from engine.measure.machine import code_record
from engine.measure.policies import (
    PLAIN,
    ROUTER,
    PolicyReport,
    Prompt,
    read_policy_prompts,
    run_policies,
)
from engine.measure.policies_forced import (
    PRICED_ROWS,
    ForcedReport,
    ForcedRequest,
    run_forced,
)
from engine.measure.price_store import live_prices
from engine.model.backend import MAX_DRAFT, Backend
from engine.moment import iso_utc
from engine.numbers import grouped
from engine.paths import demo_model
from engine.spec.block import NARROW, WIDE
from engine.spec.choose_drafter import block_drafter, lookup_drafter
from engine.spec.drafter import Drafter
from engine.spec.lookup_memory import Memory, lookup_rate, open_memory
from engine.spec.lookup_rate import LookupRate
from engine.spec.mtp import MtpChain
from engine.spec.staircut_build import build_staircut

_ROOT = Path(__file__).parents[2]
_CAPACITY = 2048  # positions; the prompts and their answers are short


def run_policy_suite(arguments: argparse.Namespace, cancel: threading.Event) -> int:
    """Measure and print; the gate fails where policies wrote different tokens."""
    knobs = switches_of(arguments)
    if arguments.accept:
        if arguments.model:
            raise UsageError(
                "--accept sets the acceptance on a shape.", next_step="Leave --model out."
            )
        return _forced(arguments, knobs, cancel)
    rates = arguments.write_rates
    if rates:
        require_new(rates)
    rate = lookup_rate(knobs)
    report = _model(arguments, knobs, rate, cancel)
    if rates:
        write_json(rates, {"_about": _about(arguments), **rate.counts()})
        tell(f"wrote {rates}; QWEN38_STAIR_RHO={rates} starts from these rates")
    if arguments.json:
        print_json(report.to_json())
    else:
        _print_policies(report)
    return OK if report.tokens_identical else GATE


def _model(
    arguments: argparse.Namespace, knobs: KnobSet, rate: LookupRate, cancel: threading.Event
) -> PolicyReport:
    from engine.load.checkpoint import read_checkpoint
    from engine.model.choose import open_backend, refuse_device

    if arguments.shape != "demo":
        raise UsageError(
            "Synthetic weights write no text to compare policies on.",
            next_step="Name a model with --model, or an acceptance with --accept.",
        )
    folder = Path(arguments.model or demo_model())
    device = arguments.device
    checkpoint = read_checkpoint(
        folder,
        context_tokens=_CAPACITY,
        on_found=lambda found: refuse_device(found.plan.config, device=device, knobs=knobs),
        cancel=cancel,
    )
    vocab = checkpoint.config.vocab_size
    memory = open_memory(knobs, model=folder, vocab_size=vocab, remember=False)
    opened = open_backend(
        checkpoint,
        capacity=min(_CAPACITY, checkpoint.config.context_tokens),
        knobs=knobs,
        device=device,
        threads=arguments.threads,
        float32=False,
        cancel=cancel,
    )
    try:
        prompts = []
        for workload, text in read_policy_prompts():
            rendered = checkpoint.template.render((Message("user", text),), thinking=False)
            prompts.append(Prompt(workload, tuple(rendered.token_ids)))
        _require_room(opened.backend, prompts, arguments.tokens)
        return run_policies(
            opened.backend,
            _policies(opened.backend, knobs, memory, rate),
            prompts,
            stop_ids=frozenset(checkpoint.stop_ids),
            tokens=arguments.tokens,
            turns=arguments.turns,
            on_progress=tell,
            cancel=cancel,
        )
    finally:
        opened.backend.close()


def _require_room(backend: Backend, prompts: list[Prompt], tokens: int) -> None:
    """UsageError where an answer would end at the context and not at `tokens`."""
    room = backend.capacity - max(len(prompt.token_ids) for prompt in prompts)
    if tokens > room:
        raise UsageError(
            f"Answers of {grouped(tokens)} tokens do not fit behind these prompts.",
            kept="Nothing was measured.",
            next_step=f"Use --tokens {room} or fewer.",
        )


def _policies(
    backend: Backend, knobs: KnobSet, memory: Memory, rate: LookupRate
) -> dict[str, Drafter | None]:
    """Every fixed policy that the model has the drafters for, and the router over all of them, with `rate`."""
    policies: dict[str, Drafter | None] = {PLAIN: None}
    if backend.config.mtp_layers:
        policies |= {f"mtp {depth}": MtpChain(backend, depth) for depth in range(1, MAX_DRAFT + 1)}
    policies["lookup"] = lookup_drafter(knobs, memory, lookup_rate(knobs))
    for width in (NARROW, WIDE):
        if block := block_drafter(knobs, backend, memory, width=width):
            policies[f"block {width}"] = block
    policies[ROUTER] = build_staircut(
        backend,
        live_prices(backend, knobs),
        lookup=lookup_drafter(knobs, memory, rate),
        rate=rate,
        mtp_branches=knobs.number("MTP_TREE"),
        block=block_drafter(knobs, backend, memory),
    )
    return policies


def _about(arguments: argparse.Namespace) -> dict[str, object]:
    return {
        "model": Path(arguments.model or demo_model()).name,
        "commit": code_record(_ROOT)["git_commit"],
        "date": iso_utc(),
        "tokens": arguments.tokens,
        "turns": arguments.turns,
    }


def forced_request(arguments: argparse.Namespace) -> ForcedRequest:
    """What `--accept` asks for; UsageError for values that measure nothing."""
    request = ForcedRequest(
        accept=_shares(arguments.accept),
        rows=numbers(arguments.rows, "--rows") if arguments.rows else PRICED_ROWS,
        context_tokens=arguments.context,
        tokens=arguments.tokens,
        turns=arguments.turns,
        seed=arguments.seed,
    )
    request.check()
    return request


def _forced(arguments: argparse.Namespace, knobs: KnobSet, cancel: threading.Event) -> int:
    from engine.load.synthetic import synthetic_weights
    from engine.measure.bench import stored_bytes
    from engine.measure.peers.worker import require_memory
    from engine.measure.shapes import named_shape

    shape = named_shape(arguments.shape, vocab=arguments.vocab)
    request = forced_request(arguments)
    if request.capacity > shape.config.context_tokens:
        raise UsageError(
            f"A context of {grouped(request.context_tokens)} tokens with answers of "
            f"{grouped(request.tokens)} takes {grouped(request.capacity)} positions; "
            f"{shape.name} has {grouped(shape.config.context_tokens)}.",
            kept="Nothing was measured.",
            next_step="Give --context or --tokens a smaller number.",
        )
    require_memory(
        stored_bytes(shape.config, arguments.weights),
        f"{shape.name} with {arguments.weights} weights",
    )
    weights = synthetic_weights(shape.config, arguments.weights, arguments.seed)
    threads = threads_of(arguments)
    backend = factory_on(arguments.device, knobs)(
        shape.config, weights, capacity=request.capacity, threads=threads
    )
    del weights
    try:
        report = run_forced(
            backend,
            knobs,
            request,
            on_progress=tell,
            cancel=cancel,
        )
    finally:
        backend.close()
    if arguments.json:
        print_json({"shape": shape.name, "threads": threads, **report.to_json()})
    else:
        _print_forced(shape.name, report)
    return OK


def _shares(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"--accept {text!r} is not a list of shares.", next_step="Write --accept 0.5,0.65,0.8."
        ) from None


def _print_policies(report: PolicyReport) -> None:
    print(f"prices: {report.price_source}")
    print(
        f"{'class':14} {'policy':10} {'tok/round':>10} {'ms/round':>9} {'tok/s':>9} {'to plain':>9}"
    )
    plain = {row.workload: row.decode_ms for row in report.rows if row.policy == PLAIN}
    for row in report.rows:
        print(
            f"{row.workload:14} {row.policy:10} {row.tokens_per_round:10.2f} {row.ms_per_round:9.3f} "
            f"{row.tokens_per_s:9.1f} {plain[row.workload] / row.decode_ms:9.2f}"
        )
    for workload, share in report.router_share.items():
        print(f"{workload}: staircut / {report.best_fixed[workload]} (best fixed) = {share:.3f}")
    rounds = ", ".join(f"{name} {count}" for name, count in report.choices.items())
    print(f"router's rounds: {rounds}; {report.nodes_mean:.1f} nodes on the mean")
    if not report.tokens_identical:
        print("the policies wrote different tokens", file=sys.stderr)


def _print_forced(name: str, report: ForcedReport) -> None:
    first = report.chain_ms[min(report.chain_ms)]
    print(f"{name}: round ms by rows")
    for rows, ms in report.chain_ms.items():
        print(f"{rows:4} {ms:10.3f} {ms / first:7.2f}")
    for case in report.cases:
        print(f"acceptance {case.accept:g}: cut at {case.cut_nodes} nodes")
        for row in case.report.rows:
            print(
                f"  {row.policy:10} {row.tokens_per_round:6.2f} tok/round {row.ms_per_round:9.3f} ms "
                f"{row.tokens_per_s:9.2f} tok/s"
            )
        best, share = case.report.best_fixed["forced"], case.report.router_share["forced"]
        print(f"  to plain {case.plain_share:.2f}, to {best} (best fixed) {share:.3f}")
    for setting, state in report.state_bytes.items():
        ms = report.commit_ms[setting]
        print(f"commit {setting}: {state / 1e6:.2f} MB of state a round, {ms:.3f} ms")
