# SPDX-License-Identifier: MIT OR Apache-2.0
"""Two scripted sides for an A/B: the protocol is the real one, the times come from a noise model.

For tests and screenshots of the console; nothing is measured. Times carry a linear drift over the run, a
normal error for every answer and a small one for every round, all seeded.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from engine.api import CompareBlock, CompareProgress, CompareReport, CompareRequest, RoundRing
from engine.compare_handle import Compares
from engine.errors import BusyError, Cancelled, RondoError
from engine.knobs import knob_named
from engine.measure.ab import run_ab
from engine.measure.ab_evidence import BASE, CANDIDATE, Measured, Setting
from engine.measure.ab_noise import NoiseStore
from engine.measure.runs import RunStore
from engine.measure.workloads import Workload, workloads_of
from engine.moment import iso_utc

if TYPE_CHECKING:
    from engine.fake_script import Script

OPERATIONS = (("MLP gate, up", 0.34), ("gated_delta", 0.22), ("head", 0.16), ("draft head", 0.12))
COMMITTED = (3, 1, 4, 2, 4, 3, 1, 2)
DRAFTED = 3
SLICE_MS = 4.0


@dataclass(frozen=True, slots=True)
class CompareScript:
    """What the two sides do. Percentages are of a round; `effect_pct` above 0 makes the candidate slower."""

    effect_pct: float = -3.0
    noise_pct: float = 0.5  # standard deviation of an answer's mean round
    drift_pct: float = 2.0  # over `drift_runs` answers
    drift_runs: int = 200
    round_ms: float = 12.0
    interrupted_pct: float = 0.0  # of the rounds, each by SLICE_MS
    same_text: bool = True
    same_path: bool = False
    hurry: float = 20.0  # the scripted thread waits this much less than the times say
    fail_after_runs: int = -1
    error: RondoError | None = None
    seed: int = 0


FASTER = CompareScript()


class ScriptedSides:
    """See `engine.measure.ab.Sides`. `on_round(round_ms, committed)` follows every round and may wait."""

    def __init__(
        self,
        request: CompareRequest,
        script: CompareScript,
        on_round: Callable[[float, int], None] = lambda round_ms, committed: None,
    ) -> None:
        base, candidate = dict(request.base), dict(request.candidate)
        names = [n for n in {**base, **candidate} if base.get(n) != candidate.get(n)]
        switches = tuple(knob_named(name) for name in sorted(names))
        reloads = any(knob.flip == "reload" for knob in switches)
        self.setting = Setting(
            switches=switches,
            base=request.base,
            candidate=request.candidate,
            reloads=reloads,
            model_name="Scripted engine",
            model_path="scripted",
            weight_format="BF16",
            threads=1,
            settles=reloads,
        )
        self.entered: list[tuple[str, bool]] = []  # what was put in effect, for tests
        self.held: list[int] = []  # runs before each time learning was stopped
        self.restored = 0
        self.runs = 0
        self._script = script
        self._on_round = on_round
        self._random = np.random.default_rng(script.seed)
        self._side = BASE

    def enter(self, side: str, *, fresh: bool = False) -> None:
        self.entered.append((side, fresh))
        self._side = side

    def hold(self) -> None:
        self.held.append(self.runs)

    def restore(self) -> None:
        self.restored += 1

    def run(
        self,
        side: str,
        work: Workload,
        *,
        pair: int,
        order: int,
        repeat: int,
        cancel: threading.Event,
    ) -> Measured:
        script = self._script
        if self.runs == script.fail_after_runs and script.error:
            raise script.error
        # An equal setting has no effect, whatever the script says.
        slower = (
            1 + script.effect_pct / 100 if self._side == CANDIDATE and self.setting.switches else 1
        )
        drift = 1 + script.drift_pct / 100 * self.runs / script.drift_runs
        mean_ms = script.round_ms * drift * slower
        mean_ms *= 1 + script.noise_pct / 100 * self._random.standard_normal()
        self.runs += 1
        times, cut, tokens = [], [], 1
        while tokens < work.tokens:
            if cancel.is_set():
                raise Cancelled
            committed = min(COMMITTED[len(times) % len(COMMITTED)], work.tokens - tokens)
            ms = float(np.float32(mean_ms * (1 + 0.002 * self._random.standard_normal())))
            if script.interrupted_pct and self._random.random() < script.interrupted_pct / 100:
                ms = float(np.float32(ms + SLICE_MS))
                cut.append(len(times))
            self._on_round(ms, committed)
            times.append(ms)
            tokens += committed
        one = self._measured(side, work, (pair, order, repeat), times)
        return replace(one, block=replace(one.block, interrupted=tuple(cut)))

    def _measured(
        self, side: str, work: Workload, at: tuple[int, int, int], times: list[float]
    ) -> Measured:
        script, rounds, spent = self._script, len(times), sum(times)
        variant = "" if script.same_text or self._side == BASE else "other"
        drafted = DRAFTED * rounds
        block = CompareBlock(
            pair_index=at[0],
            order_in_pair=at[1],
            repeat=at[2],
            side=side,
            workload=work.name,
            prompt_tokens=len(work.prompt) // 4 + 8,
            tokens=work.tokens,
            rounds=rounds,
            drafted_tokens=drafted,
            accepted_tokens=work.tokens - 1 - rounds,
            round_ms=tuple(times),
            draft_ms=0.18 * spent / rounds,
            verify_ms=0.66 * spent / rounds,
            other_ms=0.16 * spent / rounds,
            ttft_ms=9.0,
            prefill_tps=None,
            decode_tps=(work.tokens - 1) / spent * 1e3,
            bytes_per_round=16_400_000,
            tokens_sha256_12=hashlib.sha256((work.name + variant).encode()).hexdigest()[:12],
            finish_reason="length",
            test_time=iso_utc(),
        )
        counters = {"drafted tokens": drafted}
        if not script.same_path:
            for knob in self.setting.switches:
                counters[knob.engaged] = rounds if self._side == BASE else 2 * rounds
        operations = {name: share * spent for name, share in OPERATIONS}
        return Measured(block, (), counters, operations)


class FakeCompares(Compares):
    """The part of `FakeEngine` about A/B runs: the real protocol and store on scripted sides.

    Runs go into a temporary folder of their own, never into the user's.
    """

    ring: RoundRing
    script: Script
    _put: Callable[[str, object], None]
    _state: Callable[[str], None]
    _beat: Callable[[], None]

    def __init__(self) -> None:
        name = f"rondo-scripted-{os.getpid()}-{secrets.token_hex(4)}"
        self._folder = Path(tempfile.gettempdir()) / name
        super().__init__(RunStore(self._folder / "runs"), self._folder / "noise")

    def _queue_compare(self, compare_id: int, request: CompareRequest) -> None:
        self._put("compare", (compare_id, request))

    def _compare(
        self, compare_id: int, request: CompareRequest, is_cancelled: Callable[[], bool]
    ) -> None:
        script, model, cancel = self.script.compare, self.snapshot().model, threading.Event()
        # Scripted times need no repeats to be sure.
        request = replace(request, repeats=request.repeats or 1)
        self._state("comparing")

        def on_round(round_ms: float, committed: int) -> None:
            self._beat()
            if is_cancelled():
                cancel.set()
            time.sleep(round_ms / script.hurry / 1e3)
            self.ring.append(
                end_s=time.monotonic(),
                committed_tokens=committed,
                drafted_tokens=DRAFTED,
                accepted_tokens=committed - 1,
                rows=1 + DRAFTED,
                drafter=1,
                round_ms=round_ms,
            )

        def measure(on_progress: Callable[[CompareProgress], None]) -> CompareReport:
            if model is None:
                raise BusyError("No model is loaded.", next_step="Open a model folder first.")
            sides = ScriptedSides(request, script, on_round)
            sides.setting = replace(sides.setting, model_name=model.name, model_path=model.path)
            return run_ab(
                request,
                sides,
                workloads_of(request),
                noise_store=NoiseStore(self._noise_folder),
                machine={"cpu_model": "no machine, scripted"},
                on_progress=on_progress,
                cancel=cancel,
                why_stopped=lambda: self._stop_words,
            )

        self._run_compare(compare_id, measure)

    def _forget_runs(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
