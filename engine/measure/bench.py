# SPDX-License-Identifier: MIT OR Apache-2.0
"""Whole-round timings of this engine and its peers on the same shape, in alternation with the machine's roof.

One repetition is: a read probe, a peak probe, every case of this engine, then every case of each peer. So all
of them see the same states of a shared machine, and medians over repetitions compare like with like.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from engine.errors import Cancelled
from engine.load.synthetic import synthetic_weights
from engine.load.weights import ModelWeights
from engine.measure.bench_report import MOST_TURNS, BenchReport, BenchRequest, BenchRow
from engine.measure.contenders import Contender, OwnContender, open_peer
from engine.measure.peers.catalogue import peer_choices
from engine.measure.peers.process import PeerError
from engine.measure.peers.worker import Specification, require_memory
from engine.measure.roof import Probes
from engine.model.backend import Backend
from engine.model.config import FULL, ModelConfig
from engine.numbers import grouped

_PAUSE_S = 0.02  # lets the threads of the last contender fall asleep
_PEAK_TRIES = 3
_LONG_S = 0.5  # a case's turn that is told each time


class BackendFactory(Protocol):
    """Opens the backend to measure."""

    def __call__(
        self, config: ModelConfig, weights: ModelWeights, *, capacity: int, threads: int
    ) -> Backend: ...


def run_bench(
    request: BenchRequest,
    open_backend: BackendFactory,
    *,
    probes: Probes | None,
    machine: dict[str, Any],
    on_progress: Callable[[str], None] = lambda line: None,
    cancel: threading.Event | None = None,
) -> BenchReport:
    """Measure every case of this engine and of the peers that can be loaded.

    Args:
        probes: None leaves roof_gbps and peak_gflops empty.
        machine: the machine record to keep with the figures.
        on_progress: called with one line about what happens now.

    Raises:
        UsageError: a request that measures nothing.
        MemoryShortError: the weights do not fit what is free; none was made.
        Cancelled: `cancel` was set; looked at between turns.
    """
    request.check()
    choices = peer_choices(request.peers)
    start = time.monotonic()
    config = request.shape.config
    require_memory(
        stored_bytes(config, request.weight_format),
        f"{request.shape.name} with {request.weight_format} weights",
    )
    on_progress(f"making {request.weight_format} weights of {request.shape.name}")
    weights = synthetic_weights(config, request.weight_format, request.seed)
    backend = open_backend(config, weights, capacity=request.capacity, threads=request.threads)
    del weights
    own = OwnContender(
        backend,
        weight_format=request.weight_format.upper(),
        context_tokens=request.context_tokens,
        seed=request.seed,
    )
    contenders: list[Contender] = [own]
    notices = []
    try:
        for choice in choices:
            on_progress(f"loading {choice.label}")
            try:
                peer = open_peer(choice, _specification(request, choice.variant))
                contenders.append(peer)
                notices += [peer.notice] if peer.notice else []
            except PeerError as error:
                notices.append(str(error))
        run = _Run(request, contenders, probes, on_progress, cancel)
        run.measure()
        return BenchReport(
            rows=tuple(run.rows()),
            shape_note=request.shape.note,
            backend=backend.name,
            turns=run.repetitions,
            seconds=time.monotonic() - start,
            roof_samples_gbps=tuple(run.roof_gbps),
            peak_samples_gflops=tuple(run.peak_gflops),
            barrier_samples_ns=tuple(run.barrier_ns),
            peer_versions={c.label: c.version for c in contenders if c.label},
            machine=machine,
            notices=(*notices, *run.notices),
        )
    finally:
        for contender in contenders:
            contender.close()


class _Run:
    """The repetitions of one bench and what they measured."""

    def __init__(
        self,
        request: BenchRequest,
        contenders: Sequence[Contender],
        probes: Probes | None,
        on_progress: Callable[[str], None],
        cancel: threading.Event | None,
    ) -> None:
        self._request = request
        self._contenders = list(contenders)
        self._probes = probes
        self._tell = on_progress
        self._cancel = cancel
        self._samples: dict[tuple[str | None, str, int], list[float]] = {}
        self._turns: dict[tuple[str | None, str, int], int] = {}
        self._spent_s: dict[tuple[str | None, str, int], float] = {}
        self.repetitions = 0
        self._told = False  # of this repetition, that it runs
        self.roof_gbps: list[float] = []
        self.peak_gflops: list[float] = []
        self.barrier_ns: list[float] = []
        self.notices: list[str] = []

    def measure(self) -> None:
        """Repeat until every case has its turns and the time budget is used."""
        start = time.monotonic()
        while self.repetitions < MOST_TURNS:
            self.repetitions += 1
            self._told = False
            if self._probes is not None:
                self._say("the machine's roof")
                self._stop_if_cancelled()
                self.roof_gbps.append(self._probes.read_gbps())
                # The probe is so short that one slice of another process would hide the peak.
                self.peak_gflops.append(max(self._probes.dot_gflops() for _ in range(_PEAK_TRIES)))
                self.barrier_ns.append(self._probes.barrier_ns())
            measured = [self._visit(contender) for contender in tuple(self._contenders)]
            used_s = time.monotonic() - start
            complete = self.repetitions >= self._request.turns
            if not any(measured) or (complete and used_s >= self._request.budget_s):
                break
        self._note_short_cases()

    def _visit(self, contender: Contender) -> bool:
        """One turn of each of a contender's open cases; True when there was one."""
        visited = False
        try:
            for suite, rows in self._request.cases:
                key = (contender.label, suite, rows)
                if not self._open(key):
                    continue
                self._stop_if_cancelled()
                turns = self._turns.get(key, 0)
                # Short turns of one repetition are told by its first.
                if not self._told or not turns or self._spent_s[key] >= _LONG_S * turns:
                    self._say(case_words(*key))
                begin = time.monotonic()
                self._samples.setdefault(key, []).extend(contender.turn(suite, rows))
                self._spent_s[key] = self._spent_s.get(key, 0.0) + time.monotonic() - begin
                self._turns[key] = turns + 1
                visited = True
                time.sleep(_PAUSE_S)
        except PeerError as error:
            self.notices.append(str(error))
            self._contenders.remove(contender)
            contender.close()
        return visited

    def _say(self, what: str) -> None:
        request = self._request
        within = self.repetitions <= request.turns
        end = f"of {request.turns}" if within else f"until {request.budget_s:g} s are used"
        self._tell(f"{what}, turn {self.repetitions} {end}")
        self._told = True

    def _open(self, key: tuple[str | None, str, int]) -> bool:
        """Whether one more turn of this case stays inside its limit."""
        turns = self._turns.get(key, 0)
        return not turns or self._spent_s[key] * (1 + 1 / turns) <= self._request.case_limit_s

    def _stop_if_cancelled(self) -> None:
        if self._cancel is not None and self._cancel.is_set():
            raise Cancelled("The bench was cancelled.", kept="No figures were kept.")

    def _note_short_cases(self) -> None:
        present = {contender.label for contender in self._contenders}
        for (label, suite, rows), turns in self._turns.items():
            if label in present and turns < self._request.turns:
                self.notices.append(
                    f"{label or 'this engine'}, {suite} {rows}: {turns} of {self._request.turns} turns, "
                    f"because more would exceed {self._request.case_limit_s:g} s for one case."
                )

    def rows(self) -> Iterator[BenchRow]:
        """The report's rows, case by case, this engine first."""
        request = self._request
        formats = {c.label: c for c in self._contenders}
        roof = statistics.median(self.roof_gbps) if self.roof_gbps else None
        peak = statistics.median(self.peak_gflops) if self.peak_gflops else None
        for suite, rows in request.cases:
            for label, contender in formats.items():
                samples = self._samples.get((label, suite, rows))
                if not samples:
                    continue
                median = statistics.median(samples)
                read = None if suite == "prefill" else contender.round_bytes(rows)
                flops = linear_flops(request.shape.config, rows, 1 if suite == "prefill" else rows)
                yield BenchRow(
                    suite=suite,
                    rows=rows,
                    threads=request.threads,
                    ms_median=median,
                    ms_min=min(samples),
                    ms_max=max(samples),
                    read_gbps=None if read is None else read / median / 1e6,
                    roof_gbps=roof,
                    gflops=flops / median / 1e6,
                    peak_gflops=peak,
                    tokens_per_s=1e3 * rows / median,
                    peer=label,
                    n=len(samples),
                    weight_format=contender.weight_format,
                    shape=request.shape.name,
                    context_tokens=0 if suite == "prefill" else request.context_tokens,
                    bytes_per_round=read,
                    samples_ms=tuple(samples),
                )


def case_words(label: str | None, suite: str, rows: int) -> str:
    """A case in words, such as "verify, 8 rows"; a peer's begins with its label."""
    what = "tokens" if suite == "prefill" else "row" if rows == 1 else "rows"
    return f"{f'{label}, ' if label else ''}{suite}, {grouped(rows)} {what}"


def linear_flops(config: ModelConfig, rows: int, head_rows: int) -> int:
    """Multiplications and additions of the matrix products of one pass over `rows` rows."""
    mlp = 3 * config.intermediate_size
    if config.experts:  # the router, the shared expert's gate, and those that a row runs
        mlp += config.experts + 1 + 3 * config.experts_per_token * config.expert_size
    attention = config.q_rows + 2 * config.kv_rows + config.attention_width
    gdn = config.qkv_rows + 2 * config.value_width + 2 * config.value_heads
    columns = sum(mlp + (attention if kind == FULL else gdn) for kind in config.layer_types)
    return 2 * config.hidden_size * (rows * columns + head_rows * config.vocab_size)


def stored_bytes(config: ModelConfig, weight_format: str) -> int:
    """About what `synthetic_weights` of a shape take: layers in the format, a bf16 embedding, the head."""
    bits = {"nvfp4": 4.5, "fp8": 8.0}.get(weight_format, 16.0)
    table = config.vocab_size * config.hidden_size
    layers = config.parameters - (1 if config.tied else 2) * table
    head = table if weight_format != "bf16" else 0 if config.tied else 2 * table
    return int(layers * bits / 8) + 2 * table + head


def _specification(request: BenchRequest, variant: str) -> Specification:
    return Specification(
        config=request.shape.config,
        shape_name=request.shape.name,
        variant=variant,
        threads=request.threads,
        context_tokens=request.context_tokens,
        capacity=request.capacity,
        prefill_tokens=max(request.prefill_tokens),
        max_rows=max(request.rows),
        seed=request.seed,
    )
