# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the A/B finds on this machine: runs of A against A, and runs with a delay planted in every round.

`python -m ops.ab_power [--model DIR] [--pairs N] [--tokens N] [--repeats N] [--runs N] [--itself N]
[--planted PCT,...] [--threads N]`. A against A may be resolved in 5 of 100 runs, and a planted delay should be
called worse. The delay is native work in the thread that verifies, behind each verify pass of the candidate, so
many percent of the mean round. The noise floor is the newest of the runs of A against A, as for the operator.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.api import CompareReport, CompareRequest
from engine.engine import Engine
from engine.measure.ab import run_ab
from engine.measure.ab_engine import EngineSides
from engine.measure.ab_evidence import CANDIDATE, Measured
from engine.measure.ab_noise import NoiseStore
from engine.measure.machine import machine_record
from engine.measure.workloads import Workload, workloads_of
from engine.paths import demo_model

_PRIME = 2**127 - 1
_FITTING = 4  # answers to each prompt, for each step towards the wanted delay


@dataclass
class Delay:
    """A power of so many bits modulo a prime: native work that touches no memory and no other thread.

    taken_ms: what each call took where it was planted, by which it is lengthened or shortened.
    """

    bits: int
    taken_ms: list[float] = field(default_factory=list)

    def __call__(self) -> None:
        begun = time.perf_counter()
        pow(3, (1 << self.bits) - 1, _PRIME)
        self.taken_ms.append(1e3 * (time.perf_counter() - begun))

    @property
    def typical_ms(self) -> float:
        """Median milliseconds of the calls so far."""
        return statistics.median(self.taken_ms)


class DelayedSides(EngineSides):
    """Two equal settings; what the candidate verifies takes longer."""

    delay: Delay | None = None

    def run(self, side: str, work: Workload, **place: Any) -> Measured:
        engine = self.engine
        assert engine is not None
        delay, backend = self.delay, engine._backend
        verify = backend.verify

        def delayed(*rows: object) -> object:
            verified = verify(*rows)
            assert delay is not None
            delay()
            return verified

        if side == CANDIDATE and delay is not None:
            backend.verify = delayed  # type: ignore[method-assign]
        try:
            return super().run(side, work, **place)
        finally:
            backend.verify = verify  # type: ignore[method-assign]


class ReadOnlyNoise(NoiseStore):
    """A planted difference is no noise."""

    def put(self, key: str, log_ratios: Sequence[float]) -> None:
        """Keep what is there."""


@dataclass
class Tally:
    """The runs of one planted delay."""

    planted_pct: float
    reports: list[CompareReport] = field(default_factory=list)

    def line(self) -> str:
        """Verdicts, then the medians over the runs of what was seen."""
        verdicts = Counter(report.verdict for report in self.reports)
        seen = [100 * ((report.ratio_median or 1) - 1) for report in self.reports]
        floors = [report.noise_floor_pct or 0.0 for report in self.reports]
        cut = [report.interrupted_pct or 0.0 for report in self.reports]
        words = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
        return (
            f"| {self.planted_pct:.2f} % | {len(self.reports)} | {words} | {statistics.median(seen):+.2f} % "
            f"({min(seen):+.2f} to {max(seen):+.2f}) | {statistics.median(floors):.2f} % "
            f"({min(floors):.2f} to {max(floors):.2f}) | {statistics.median(cut):.0f} % |"
        )


def measure(
    engine: Engine, request: CompareRequest, runs: int, delay: Delay | None, noise: NoiseStore
) -> list[CompareReport]:
    """So many A/B of equal settings, the candidate delayed."""
    reports = []
    for number in range(runs):
        sides = DelayedSides(engine, request)
        sides.delay = delay
        report = run_ab(
            request,
            sides,
            workloads_of(request),
            noise_store=noise,
            machine=machine_record(),
        )
        reports.append(report)
        print(f"{number + 1} of {runs}: {report.verdict}: {report.reason}", file=sys.stderr)
    return reports


def fitted(engine: Engine, request: CompareRequest, wanted_ms: float) -> Delay:
    """A delay that takes so long where it is planted, among the passes of a model."""
    bits = 64
    for _ in range(3):
        delay = Delay(bits)
        sides = DelayedSides(engine, request)
        sides.delay = delay
        for work in workloads_of(request) * _FITTING:
            sides.run(CANDIDATE, work, pair=0, order=0, repeat=0, cancel=threading.Event())
        bits = max(1, round(bits * wanted_ms / delay.typical_ms))
    return Delay(bits)


def main(argv: list[str] | None = None) -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=str(demo_model()))
    parser.add_argument("--pairs", type=int, default=CompareRequest().pairs)
    parser.add_argument("--tokens", type=int, default=CompareRequest().tokens)
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--runs", type=int, default=10, help="for each planted delay")
    parser.add_argument("--itself", type=int, default=40, help="runs of A against A")
    parser.add_argument("--planted", default="2,1", metavar="PCT,...", help="of a round")
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args(argv)
    request = CompareRequest(pairs=chosen.pairs, tokens=chosen.tokens, repeats=chosen.repeats)
    tallies = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Engine.open(chosen.model, threads=chosen.threads) as engine,
    ):
        same = measure(engine, request, chosen.itself, None, NoiseStore(Path(folder)))
        tallies.append(Tally(0.0, same))
        round_ms = statistics.median(pair.base_ms for report in same for pair in report.pairs)
        for planted in (float(part) for part in chosen.planted.split(",") if part):
            delay = fitted(engine, request, round_ms * planted / 100)
            found = measure(engine, request, chosen.runs, delay, ReadOnlyNoise(Path(folder)))
            tallies.append(Tally(100 * delay.typical_ms / round_ms, found))
    print(
        f"{same[0].estimator}; {chosen.tokens} tokens, {chosen.pairs} pairs, rounds of {round_ms:.3f} ms.\n"
    )
    print("| planted | runs | verdicts | median change | noise floor | rounds interrupted |")
    print("|-|-|-|-|-|-|")
    for tally in tallies:
        print(tally.line())
    return 0


if __name__ == "__main__":
    sys.exit(main())
