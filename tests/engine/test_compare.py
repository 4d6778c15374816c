# SPDX-License-Identifier: MIT OR Apache-2.0
"""An A/B on a loaded model: texts, paths, rounds, what is restored, and the model loaded anew."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.api import (
    CompareProgress,
    CompareRequest,
    GenerateRequest,
    Generation,
    Message,
)
from engine.engine import Engine
from engine.errors import NumericsError, UsageError
from engine.knobs import KnobSet
from engine.measure.ab import CompareStopped, run_ab
from engine.measure.ab_engine import EngineSides, tokens_hash
from engine.measure.ab_evidence import Measured
from engine.measure.ab_noise import NoiseStore
from engine.measure.ab_session import compare_on
from engine.measure.workloads import Workload, workloads_of
from engine.paths import demo_model
from engine.spec.drafters import Drafters
from engine.spec.lookup_memory import Memory

FLIP = {"QWEN38_VERIFY_GRAPH": "0"}
SHORT = {"workload": "prompt", "prompt": "Why?", "tokens": 8, "pairs": 6, "repeats": 1}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """Without the router, whose rounds follow the clock until it is frozen."""
    knobs = {"QWEN38_LEN_SWITCH": "0"}
    with Engine.open(demo_model(), threads=1, context_tokens=256, knobs=knobs) as opened:
        yield opened


def alone(engine: Engine) -> Generation:
    """The answer that the short request gets outside a comparison."""
    message = Message("user", SHORT["prompt"])
    return engine.generate(
        GenerateRequest(messages=(message,), max_tokens=SHORT["tokens"], ignore_stop_tokens=True)
    )


def test_a_flip_is_compared_on_equal_texts_and_put_back(engine: Engine) -> None:
    before = engine.knobs
    report = compare_on(engine, CompareRequest(candidate=FLIP, **SHORT))
    assert report.verdict in ("better", "worse", "not resolved")
    assert report.tokens_identical
    assert report.engaged_differs
    assert report.n_pairs == 6
    assert dict(report.base.engaged)["tape replays"] > 0
    assert dict(report.candidate.engaged)["tape replays"] == 0
    assert dict(report.candidate_knobs) == dict(report.base_knobs) | FLIP
    assert report.base.rounds == report.candidate.rounds
    assert (report.threads, report.model_path) == (1, str(demo_model()))
    assert report.kernels[-1].name == "unaccounted"
    assert sum(row.base_ms_per_round for row in report.kernels) == pytest.approx(
        report.base.ms_per_round, rel=1e-3
    )
    assert engine.knobs is before


def test_an_answer_is_the_one_that_generate_gives(engine: Engine) -> None:
    report = compare_on(engine, CompareRequest(candidate=FLIP, **SHORT))
    alone = engine.generate(
        GenerateRequest(messages=(Message("user", "Why?"),), max_tokens=8, ignore_stop_tokens=True)
    )
    assert {block.tokens_sha256_12 for block in report.blocks} == {tokens_hash(alone.token_ids)}
    assert {block.tokens for block in report.blocks} == {8}
    assert {block.rounds for block in report.blocks} == {alone.rounds}
    assert {block.prompt_tokens for block in report.blocks} == {alone.prompt_tokens}


def test_both_sides_follow_a_reference_text(engine: Engine) -> None:
    text = "A text that this model would never have written by itself at all, not ever."
    request = CompareRequest(candidate=FLIP, forced=True, reference=text, **SHORT)
    report = compare_on(engine, request)
    assert {block.tokens_sha256_12 for block in report.blocks} == {
        tokens_hash(engine.encode(text)[:8])
    }
    assert any("given text" in note for note in report.notes)


def test_a_forced_run_without_a_text_follows_what_the_base_writes(engine: Engine) -> None:
    own = compare_on(engine, CompareRequest(candidate=FLIP, forced=True, **SHORT))
    assert {block.tokens_sha256_12 for block in own.blocks} == {
        tokens_hash(alone(engine).token_ids)
    }


@pytest.mark.parametrize(
    ("candidate", "teaches"), [(FLIP, False), ({"QWEN38_MTP_DEPTH": "2"}, True)]
)
def test_learning_is_held_while_it_is_timed_and_goes_on_afterwards(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, candidate: dict[str, str], teaches: bool
) -> None:
    """The costs of a candidate's passes must not decide what the base drafts; its own drafter learns."""
    states: list[bool] = []
    real = engine.generate

    def generate(*args: object, **kwargs: object) -> object:
        states.append(engine._memory.rate.learning)
        return real(*args, **kwargs)

    monkeypatch.setattr(engine, "generate", generate)
    compare_on(engine, CompareRequest(candidate=candidate, **SHORT))
    assert states[:2] == [True, teaches]  # the warm-ups
    assert not any(states[2:])
    assert engine._memory.rate.learning


def test_a_drafter_made_while_learning_is_held_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    class Router:
        frozen = False

        def freeze(self, *, frozen: bool = True) -> None:
            self.frozen = frozen

    router, memory = Router(), Memory()
    monkeypatch.setattr("engine.spec.drafters.choose_drafter", lambda *given: router)
    drafters = Drafters(None, memory)
    drafters.freeze()
    assert drafters.of(KnobSet({})) is router
    assert router.frozen
    assert not memory.rate.learning
    drafters.freeze(frozen=False)
    assert not router.frozen
    assert memory.rate.learning


class SimulatedClock:
    """Time that only verify passes spend: 10 ms each, with a normal error for every answer."""

    def __init__(self, seed: int) -> None:
        self.now_s = 0.0
        self.slower = self.error = 0.0
        self._random = np.random.default_rng(seed)

    def begin(self, slower: float) -> None:
        self.slower, self.error = slower, 0.005 * self._random.standard_normal()

    def verified(self) -> None:
        self.now_s += 0.010 * (1 + self.error) * (1 + self.slower)


class PlantedSides(EngineSides):
    """The candidate's verify pass takes longer; both settings are the same."""

    clock: SimulatedClock
    planted: float

    def run(self, side: str, work: Workload, **place: object) -> Measured:
        self.clock.begin(self.planted if side == "candidate" else 0.0)
        return super().run(side, work, **place)


@pytest.mark.parametrize(
    ("planted", "verdict"), [(0.02, "worse"), (-0.02, "better"), (0.0, "not resolved")]
)
def test_two_percent_in_the_verify_pass_is_found_through_the_whole_path(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, planted: float, verdict: str
) -> None:
    clock, real = SimulatedClock(seed=5), engine._backend.verify

    def verify(*args: object, **kwargs: object) -> object:
        clock.verified()
        return real(*args, **kwargs)

    monkeypatch.setattr(engine._backend, "verify", verify)
    monkeypatch.setattr("time.perf_counter", lambda: clock.now_s)
    request = CompareRequest(**{**SHORT, "pairs": 10})
    sides = PlantedSides(engine, request)
    sides.clock, sides.planted = clock, planted
    report = run_ab(
        request, sides, workloads_of(request), noise_store=NoiseStore(tmp_path), machine={}
    )
    assert report.verdict == verdict
    assert report.ratio_median == pytest.approx(1 + planted, abs=0.006)
    assert report.base.ms_per_round == pytest.approx(10, rel=0.01)


def test_rounds_in_which_the_system_took_the_processor_are_marked(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reading before the answer, one behind each round; it grows before the second and fourth."""
    counts = [7, 7, 8, 8, 11, *[11] * 30]
    readings = iter(counts)
    monkeypatch.setattr("engine.measure.ab_engine.interruptions", lambda: next(readings))
    request = CompareRequest(**SHORT)
    [work] = workloads_of(replace(request, tokens=24))
    sides = EngineSides(engine, request)
    one = sides.run("base", work, pair=1, order=0, repeat=2, cancel=threading.Event())
    assert one.block.rounds > 4
    assert one.block.interrupted == (1, 3)
    assert one.block.repeat == 2


def test_nothing_is_recorded_in_timed_answers_behind_a_flip_that_starts_workers(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other threads need other recordings, which are made in an untimed answer."""
    stage, recorded = "", []
    backend, real = engine._backend, engine._backend._record

    def record(key: object) -> object:
        recorded.append(stage)
        return real(key)

    def on_progress(progress: CompareProgress) -> None:
        nonlocal stage
        stage = progress.stage

    monkeypatch.setattr(backend, "_record", record)
    request = CompareRequest(candidate={"QWEN38_CPU_THREADS": "2"}, **SHORT)
    report = compare_on(engine, request, on_progress=on_progress)
    assert report.n_pairs == 6
    assert any("an untimed answer follows it" in note for note in report.notes)
    assert any(name.startswith("pair 6") for name in recorded)
    timed = [name for name in recorded if not name.endswith(", warming")]
    assert {name.partition(" ")[0] for name in timed} == {"warming"}


def test_a_program_compares_on_the_engine_itself(engine: Engine) -> None:
    report = engine.compare({}, FLIP, **SHORT)
    assert report.request.candidate == tuple(FLIP.items())
    assert report.run_id == ""
    assert report.n_pairs == 6


def test_what_changes_nothing_is_refused_before_anything_runs(engine: Engine) -> None:
    for changes, words in (
        ({"QWEN38_VERIFY_GRAPH": "1"}, "what the base is already"),
        ({"QWEN38_NO_SUCH": "1"}, "QWEN38_NO_SUCH"),
        ({"QWEN38_VERIFY_GRAPH": "2"}, "is not accepted"),
        ({"QWEN38_CPU_ISA": "reference"}, "rondo ab"),
    ):
        with pytest.raises(UsageError, match=words):
            compare_on(engine, CompareRequest(candidate=changes, **SHORT))


def test_an_error_inside_a_round_restores_and_keeps(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, real, calls = engine.knobs, engine.generate, []

    def generate(*args: object, **kwargs: object) -> object:
        calls.append(1)
        if len(calls) == 2 + 2 * 6 + 2 + 5:
            raise NumericsError("A NaN.", kept="The model stays.", next_step="Look.")
        return real(*args, **kwargs)

    monkeypatch.setattr(engine, "generate", generate)
    with pytest.raises(CompareStopped, match=r"A NaN\. 2 complete pairs are kept"):
        compare_on(engine, CompareRequest(candidate=FLIP, **SHORT))
    assert engine.knobs is before


def test_a_cancel_inside_a_reload_run_puts_the_first_model_back() -> None:
    """The instruction set changes with the side; the old model is freed before the new one is read."""
    holder = [Engine.open(demo_model(), threads=1, context_tokens=256)]
    first = weakref.ref(holder[0])
    before = holder[0].knobs
    alive_when_loaded: list[bool] = []
    devices: list[str] = []
    cancel = threading.Event()

    def on_engine(opened: Engine | None) -> None:
        holder[:] = [] if opened is None else [opened]
        if opened is not None:
            gc.collect()
            alive_when_loaded.append(first() is not None)
            devices.append(opened.card.device)

    def on_progress(progress: CompareProgress) -> None:
        if progress.stage.startswith("noise"):
            cancel.set()

    request = CompareRequest(candidate={"QWEN38_CPU_ISA": "reference"}, **SHORT)
    report = compare_on(
        holder[0], request, on_engine=on_engine, on_progress=on_progress, cancel=cancel
    )
    assert report.verdict in ("cancelled", "invalid")  # near ties may fall differently
    assert report.reloaded
    assert "PyTorch" in devices[0]
    assert devices[-1] == report_device(holder[0])
    assert not any(alive_when_loaded)
    assert holder[0].knobs is before
    holder[0].close()


def test_a_model_is_loaded_again_as_it_was_opened() -> None:
    """The same device and room, by the caller's own way to open: with its suffix store, where it has one."""
    first = Engine.open(demo_model(), device="cpu", threads=1, context_tokens=256)
    asked: list[dict[str, Any]] = []

    def reopen(path: str, **options: Any) -> Engine:
        asked.append({"path": path, **options})
        return first

    request = CompareRequest(candidate={"QWEN38_CPU_ISA": "reference"}, **SHORT)
    EngineSides(first, request, reopen=reopen).enter("candidate")
    [options] = asked
    assert options.pop("knobs").choice("CPU_ISA") == "reference"
    assert options == {
        "path": first.card.path, "device": "cpu", "threads": 1, "context_tokens": 256,
    }  # fmt: skip


def test_values_that_are_put_back_are_described_as_before(engine: Engine) -> None:
    knobs, card = engine.knobs, engine.card
    engine.set_knobs({"QWEN38_MTP_DEPTH": "0"})
    assert engine.card.speculation != card.speculation
    engine.restore_knobs(knobs)
    assert engine.card == card


def report_device(engine: Engine) -> str:
    assert "PyTorch" not in engine.card.device
    return engine.card.device
