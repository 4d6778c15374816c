# SPDX-License-Identifier: MIT OR Apache-2.0
"""The protocol of an A/B: warm both sides, compare the texts, measure the noise, then alternate AB BA.

Both sides run in one process on one loaded model. Within a pair the sides alternate answer by answer, each
prompt being answered several times, so that a drift of the machine falls on both; the order is swapped from
repeat to repeat and from pair to pair, which cancels a linear one.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from engine.allocation import memory_short
from engine.api_compare import ComparePair, CompareProgress, CompareReport, CompareRequest
from engine.errors import Cancelled, RondoError
from engine.measure.ab_evidence import (
    BASE,
    SIDES,
    Evidence,
    Measured,
    Noise,
    Setting,
)
from engine.measure.ab_noise import NoiseStore, noise_key
from engine.measure.ab_pairs import estimator_words, fitting_repeats, pairs_of, wants_more
from engine.measure.ab_report import build_report, fault_of
from engine.measure.workloads import Workload, check_request

NOISE_PAIRS = 10  # at most; as many as are asked for, if fewer


class Sides(Protocol):
    """The two settings of one engine."""

    setting: Setting

    def enter(self, side: str, *, fresh: bool = False) -> None:
        """Put a side in effect; `fresh` loads the model anew even where the side is in effect already."""

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
        """One answer of the side that is in effect. Raises Cancelled within one round of `cancel`."""

    def hold(self) -> None:
        """Let nothing be learned any more; a fresh load learns again until the next call."""

    def restore(self) -> None:
        """Put back what was in effect before; called at every end."""


class CompareStopped(RondoError):
    """An A/B that could not go on. `partial` is the report of the pairs that were complete."""

    title = "The comparison stopped"

    def __init__(self, error: BaseException, partial: CompareReport) -> None:
        kept = {
            0: "No pair was complete, so none is kept.",
            1: "1 complete pair is kept.",
        }.get(partial.n_pairs, f"{partial.n_pairs} complete pairs are kept.")
        step = "Copy the report and try again."
        error = memory_short(error, "the comparison") or error
        if isinstance(error, RondoError):
            kept, step = f"{kept} {error.kept}".strip(), error.next_step
            super().__init__(error.cause, kept=kept, next_step=step)
        else:
            super().__init__(f"{type(error).__name__}: {error}", kept=kept, next_step=step)
        self.partial = partial


def run_ab(
    request: CompareRequest,
    sides: Sides,
    works: Sequence[Workload],
    *,
    noise_store: NoiseStore,
    machine: Mapping[str, object],
    on_progress: Callable[[CompareProgress], None] = lambda progress: None,
    cancel: threading.Event | None = None,
    why_stopped: Callable[[], str] = lambda: "Cancelled",
) -> CompareReport:
    """Compare; blocks until there is an answer.

    A set `cancel` ends it within one round and the complete pairs are judged; `why_stopped` says in words who
    ended it. Raises UsageError for a request that measures nothing, CompareStopped for any other error. What
    was in effect before is in effect afterwards.
    """
    check_request(request)
    run = _Run(request, sides, works, noise_store, machine, on_progress, cancel)
    try:
        try:
            run.measure()
        except Cancelled:
            run.stopped = why_stopped()
        finally:
            sides.restore()
    except Exception as error:
        run.stopped = run.stopped or "An error ended it"
        raise CompareStopped(error, run.report()) from error
    return run.report()


class _Run:
    """The runs of one A/B as they come in."""

    def __init__(
        self,
        request: CompareRequest,
        sides: Sides,
        works: Sequence[Workload],
        noise_store: NoiseStore,
        machine: Mapping[str, object],
        on_progress: Callable[[CompareProgress], None],
        cancel: threading.Event | None,
    ) -> None:
        self._request = request
        self._sides = sides
        self._works = works
        self._store = noise_store
        self._machine = machine
        self._tell = on_progress
        self._cancel = cancel or threading.Event()
        self._begun_s = time.monotonic()
        self._measured: list[Measured] = []
        self._others: list[Measured] = []
        self._noise: Noise | None = None
        self._whole = 0
        self._pairs: tuple[ComparePair, ...] = ()
        self._runs_left = 0
        self._run_s: list[float] = []
        self.stopped = ""

    def measure(self) -> None:
        """Everything in order; ends early where the texts or the paths already decide."""
        setting = self._sides.setting
        for side in SIDES:
            self._sides.enter(side)
            learning_s = setting.learning_s
            if side != BASE and setting.drafts_alike and not setting.reloads:
                # Else the costs of the candidate's passes would decide what both sides draft.
                self._sides.hold()
                learning_s = 0.0
            begun_s = time.monotonic()
            self._others += self._warm(side)
            while time.monotonic() - begun_s < learning_s:
                self._warm(side)
        self._sides.hold()
        if fault_of(self._evidence()):
            return
        self._settle_repeats()
        key = noise_key(self._noise_values())
        noise_pairs = min(self._request.pairs, NOISE_PAIRS)
        self._noise = self._store.recent(key, pairs=noise_pairs)
        self._runs_left = self._runs_of_pair(1) + self._request.pairs * self._runs_of_pair()
        if not self._noise:
            self._runs_left += noise_pairs * self._runs_of_pair()
            self._noise = self._measure_noise(key, noise_pairs)
        self._pair(0, "a first pair, not counted", self._others, repeats=1)
        for index in range(1, self._request.pairs + 1):
            self._pair(index, f"pair {index} of {self._request.pairs}", self._measured)
            self._whole = index
            self._pairs = pairs_of(self._evidence().blocks(), self._evidence().metric)
        if not self._sides.setting.switches:
            self._store.put(key, [pair.log_ratio for pair in self._pairs])

    def report(self) -> CompareReport:
        """The answer from what is there."""
        return build_report(
            self._evidence(), machine=self._machine, seconds=time.monotonic() - self._begun_s
        )

    def _warm(self, side: str) -> list[Measured]:
        """Every prompt once, untimed."""
        return [self._one(f"warming the {side}", side, work, 0, 0) for work in self._works]

    def _settle_repeats(self) -> None:
        """Fix how often a pair repeats each answer, where the request leaves it open."""
        if not self._request.repeats:
            base = (one.block for one in self._others if one.block.side == BASE)
            self._request = replace(self._request, repeats=fitting_repeats(base))

    def _runs_of_pair(self, repeats: int | None = None) -> int:
        """Answers of one pair, untimed ones included."""
        untimed = 1 if self._sides.setting.settles else 0
        return 2 * len(self._works) * (untimed + (repeats or self._request.repeats))

    def _measure_noise(self, key: str, pairs: int) -> Noise:
        """Pairs of the base against itself, treated as the real ones are."""
        metric = self._evidence().metric
        runs: list[Measured] = []
        for index in range(pairs):
            stage = f"noise of the base against itself, {index + 1} of {pairs}"
            self._pair(index, stage, runs, both=BASE)
        self._others.extend(_on_side(one, BASE) for one in runs)
        ratios = tuple(pair.log_ratio for pair in pairs_of((one.block for one in runs), metric))
        self._store.put(key, ratios)
        return Noise(ratios, f"A against A, {len(ratios)} pairs, in this run")

    def _pair(
        self,
        index: int,
        stage: str,
        runs: list[Measured],
        *,
        both: str | None = None,
        repeats: int | None = None,
    ) -> None:
        """One pair: both sides on every prompt, by turns; `both` puts one setting on either side."""
        # What answers leave is young; a full collection would hold every thread for long.
        gc.collect(1)
        order = SIDES if index % 2 else SIDES[::-1]
        settings = {side: both or side for side in SIDES}
        repeats = repeats or self._request.repeats
        setting = self._sides.setting
        if setting.settles:
            # A flip is slow: a side answers every prompt before the other one's turn, and once untimed.
            for place, side in enumerate(order):
                fresh = setting.reloads and both is not None and place == 1
                self._sides.enter(settings[side], fresh=fresh)
                for work in self._works:
                    self._others.append(
                        self._one(f"{stage}, warming", settings[side], work, index, place)
                    )
                self._sides.hold()
                for work in self._works:
                    for repeat in range(repeats):
                        at = (index, place, repeat)
                        self._timed(stage, side, settings[side], work, at, runs)
            return
        for work in self._works:
            begun, repeat = len(runs), 0
            while repeat < repeats or wants_more([one.block for one in runs[begun:]], repeats):
                for place, side in enumerate(order[::-1] if repeat % 2 else order):
                    self._sides.enter(settings[side])
                    at = (index, place, repeat)
                    self._timed(stage, side, settings[side], work, at, runs)
                repeat += 1

    def _timed(
        self,
        stage: str,
        side: str,
        setting: str,
        work: Workload,
        at: tuple[int, int, int],
        runs: list[Measured],
    ) -> None:
        """`at`: index of the pair, place in it and repeat."""
        one = self._one(f"{stage}: {work.name}, {setting}", setting, work, *at)
        runs.append(_on_side(one, side))

    def _one(
        self, stage: str, side: str, work: Workload, index: int, place: int, repeat: int = 0
    ) -> Measured:
        """One answer, with the garbage collector held back."""
        if self._cancel.is_set():
            raise Cancelled
        pairs = self._pairs
        self._tell(CompareProgress(len(pairs), self._request.pairs, stage, pairs, self._left_s()))
        begun_s = time.monotonic()
        with _no_collection():
            one = self._sides.run(
                side, work, pair=index, order=place, repeat=repeat, cancel=self._cancel
            )
        self._run_s.append(time.monotonic() - begun_s)
        self._runs_left -= 1
        return one

    def _left_s(self) -> float | None:
        if self._runs_left <= 0:
            return None
        return self._runs_left * sum(self._run_s) / len(self._run_s)

    def _evidence(self) -> Evidence:
        return Evidence(
            self._request,
            self._sides.setting,
            tuple(self._measured),
            tuple(self._others),
            self._noise,
            self.stopped,
            self._whole,
        )

    def _noise_values(self) -> dict[str, object]:
        setting = self._sides.setting
        return {
            "machine": [self._machine.get(name) for name in ("cpu_model", "cores_available")],
            "code": self._machine.get("code_sha256_12"),
            "model": [setting.model_path, setting.weight_format, setting.threads],
            "knobs": setting.base,
            "settles": setting.settles,
            "estimator": estimator_words(self._request.repeats),
            "metric": self._evidence().metric,
            "works": [(work.name, work.prompt, work.tokens, work.forced) for work in self._works],
        }


def _on_side(one: Measured, side: str) -> Measured:
    return replace(one, block=replace(one.block, side=side))


@contextmanager
def _no_collection() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
