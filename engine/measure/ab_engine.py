# SPDX-License-Identifier: MIT OR Apache-2.0
"""The two sides of an A/B on a loaded engine: it flips switches, or loads anew where a switch needs that."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from engine.api import GenerateRequest, Generation, Message
from engine.api_compare import Changes, CompareBlock, CompareRequest
from engine.engine import Engine
from engine.errors import Cancelled, UsageError
from engine.knobs import KNOBS, PREFIX, Knob, KnobSet, knob_named, status_of
from engine.measure.ab_evidence import BASE, CANDIDATE, SIDES, Measured, Setting
from engine.measure.interruptions import interruptions
from engine.measure.workloads import Workload
from engine.model.instructions import refuse_instructions
from engine.moment import iso_utc
from engine.spec.choose_drafter import SWITCHES as DRAFTER_SWITCHES
from engine.spec.decode import Round

OnRound = Callable[[Round, float, int], None]
# A flip starts other workers, and every pass is recorded for them anew.
_STARTS_WORKERS = frozenset({"CPU_THREADS"})
# Held earlier, a router goes on trying, or leaves out, what it had no rounds to find out about.
_ROUTER_S = 2.0


class EngineSides:
    """See `engine.measure.ab.Sides`. `engine` is the loaded engine, another one after a reload.

    `on_round` follows every round as it does in `Engine.generate`. `on_engine` gets None before a reload and
    the new engine after it; whoever listens must drop the old one at once. `reopen` takes the arguments of
    `Engine.open`; the device stays what it was. Raises UsageError where the two sides are equal although a
    candidate was named, or a switch changes nothing here; nothing is changed then.
    """

    def __init__(
        self,
        engine: Engine,
        request: CompareRequest,
        *,
        on_round: OnRound = lambda done, round_ms, context_tokens: None,
        on_engine: Callable[[Engine | None], None] = lambda engine: None,
        reopen: Callable[..., Engine] = Engine.open,
    ) -> None:
        self.engine: Engine | None = engine
        self._reopen = reopen
        self._on_engine = on_engine
        self._card = engine.card
        self._before = engine.knobs
        self._on_round = on_round
        self._follow: dict[str, tuple[int, ...]] = {}
        self._knobs = {
            BASE: engine.knobs.changed(dict(request.base)),
            CANDIDATE: engine.knobs.changed(dict(request.candidate)),
        }
        switches = tuple(
            knob for knob in KNOBS if len({value_of(self._knobs[side], knob) for side in SIDES}) > 1
        )
        if request.candidate != request.base and not switches:
            raise UsageError(
                "The candidate is what the base is already.",
                kept="Nothing was measured.",
                next_step="Give it another value, or none to measure the noise.",
            )
        for name, _ in (*request.base, *request.candidate):
            status = status_of(knob_named(name), engine.card.backend, engine.offers)
            if not status.available:
                raise UsageError(
                    f"{name} changes nothing here: {status.reason}.", kept="Nothing was measured."
                )
        if engine.card.backend != "cuda":
            for side in SIDES:
                refuse_instructions(self._knobs[side])
        reloads = any(knob.flip == "reload" for knob in switches)
        self.setting = Setting(
            switches=switches,
            base=changed_values(self._knobs[BASE]),
            candidate=changed_values(self._knobs[CANDIDATE]),
            reloads=reloads,
            model_name=engine.card.name,
            model_path=engine.card.path,
            weight_format=engine.card.weight_format,
            threads=engine.card.threads,
            settles=reloads or any(knob.name in _STARTS_WORKERS for knob in switches),
            learning_s=_ROUTER_S if self._routes() else 0.0,
            drafts_alike=not any(knob.name in DRAFTER_SWITCHES for knob in switches),
        )

    def _routes(self) -> bool:
        """Whether a router drafts on a side."""
        return any(self._knobs[side].flag("LEN_SWITCH") for side in SIDES)

    def enter(self, side: str, *, fresh: bool = False) -> None:
        self._apply(self._knobs[side], fresh=fresh)

    def hold(self) -> None:
        if self.engine is not None:
            self.engine.freeze_learning()

    def restore(self) -> None:
        self._apply(self._before)
        if self.engine is not None:
            self.engine.freeze_learning(frozen=False)

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
        engine = self.engine
        assert engine is not None
        follow = self._text_of(engine, work) if work.forced else None
        request = GenerateRequest(
            messages=(Message("user", work.prompt),),
            max_tokens=min(work.tokens, len(follow)) if follow else work.tokens,
            ignore_stop_tokens=True,
        )
        times = _RoundTimes(self._on_round)
        counters, operations = engine.engaged(), operation_totals(engine)
        generation = engine.generate(
            request, on_round=times.add, cancel=cancel, follow=follow or None
        )
        if generation.finish_reason == "cancelled":
            raise Cancelled
        if work.forced and not follow:
            self._follow[work.name] = generation.token_ids
        counted = _increase(counters, engine.engaged())
        counted[f"device: {engine.card.device}"] = 1
        return Measured(
            times.block(
                generation, side=side, workload=work.name, pair=pair, order=order, repeat=repeat
            ),
            generation.token_ids,
            counted,
            _increase(operations, operation_totals(engine)),
        )

    def _text_of(self, engine: Engine, work: Workload) -> Sequence[int]:
        """The tokens both sides follow; empty before the base's first answer, which becomes the text."""
        if work.reference and work.name not in self._follow:
            self._follow[work.name] = tuple(engine.encode(work.reference)[: work.tokens])
            if len(self._follow[work.name]) < 2:
                raise UsageError(
                    "The reference text is shorter than two tokens.",
                    kept="Nothing was measured.",
                    next_step="Give a longer one.",
                )
        return self._follow.get(work.name, ())

    def _apply(self, knobs: KnobSet, *, fresh: bool = False) -> None:
        engine = self.engine
        if engine is not None and not fresh and not _needs_reload(engine.knobs, knobs):
            engine.restore_knobs(knobs)
            return
        if engine is not None:
            # The old model goes first: memory may not hold two.
            self.engine = None
            self._on_engine(None)
            engine.close()
            del engine
        card = self._card
        self.engine = self._reopen(
            card.path,
            knobs=knobs,
            device="cuda" if card.backend == "cuda" else "cpu",
            threads=card.threads,
            context_tokens=card.context_tokens,
        )
        self._on_engine(self.engine)


class _RoundTimes:
    """The rounds of one answer as they end."""

    def __init__(self, on_round: OnRound) -> None:
        self._on_round = on_round
        self._round_ms: list[float] = []
        self._draft_ms = self._verify_ms = 0.0
        self._interruptions = interruptions()
        self._interrupted: list[int] = []

    def add(self, done: Round, round_ms: float, context_tokens: int) -> None:
        # The first round counts those of the prompt too; it is compared in very short answers alone.
        taken_away = interruptions()
        if taken_away != self._interruptions:
            self._interruptions = taken_away
            self._interrupted.append(len(self._round_ms))
        # The ring of round records holds float32; the same value goes into the report and the CSV.
        self._round_ms.append(float(np.float32(round_ms)))
        self._draft_ms += done.draft_ms
        self._verify_ms += done.verify_ms
        self._on_round(done, round_ms, context_tokens)

    def block(
        self,
        generation: Generation,
        *,
        side: str,
        workload: str,
        pair: int,
        order: int,
        repeat: int,
    ) -> CompareBlock:
        rounds = max(len(self._round_ms), 1)
        mean_ms = sum(self._round_ms) / rounds
        draft_ms, verify_ms = self._draft_ms / rounds, self._verify_ms / rounds
        return CompareBlock(
            pair_index=pair,
            order_in_pair=order,
            side=side,
            workload=workload,
            prompt_tokens=generation.prompt_tokens,
            tokens=len(generation.token_ids),
            rounds=len(self._round_ms),
            drafted_tokens=generation.drafted_tokens,
            accepted_tokens=generation.accepted_tokens,
            round_ms=tuple(self._round_ms),
            draft_ms=draft_ms,
            verify_ms=verify_ms,
            other_ms=mean_ms - draft_ms - verify_ms,
            ttft_ms=generation.ttft_ms,
            prefill_tps=generation.prefill_tps,
            decode_tps=generation.decode_tps,
            bytes_per_round=generation.bytes_per_round or 0,
            tokens_sha256_12=tokens_hash(generation.token_ids),
            finish_reason=generation.finish_reason,
            test_time=iso_utc(),
            repeat=repeat,
            interrupted=tuple(self._interrupted),
        )


def tokens_hash(token_ids: Sequence[int]) -> str:
    """Twelve hex digits of the SHA-256 of the ids as little-endian 32-bit integers."""
    return hashlib.sha256(np.asarray(token_ids, dtype="<i4").tobytes()).hexdigest()[:12]


def operation_totals(engine: Engine) -> dict[str, float]:
    """Milliseconds by operation since the table was reset; empty where they are not measured."""
    return {row.name: row.total_ms for row in engine.kernel_table().rows}


def changed_values(knobs: KnobSet) -> Changes:
    """The switches that differ from their defaults, with their prefix."""
    return tuple(
        (PREFIX + knob.name, knobs.raw(knob.name)[0])
        for knob in KNOBS
        if value_of(knobs, knob) != knob.parse(knob.default)
    )


def value_of(knobs: KnobSet, knob: Knob) -> object:
    """The parsed value of a switch."""
    return knob.parse(knobs.raw(knob.name)[0])


def _needs_reload(before: KnobSet, after: KnobSet) -> bool:
    return any(
        value_of(before, knob) != value_of(after, knob) for knob in KNOBS if knob.flip == "reload"
    )


def _increase(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What was added by name; a name whose total fell was reset meanwhile and is left out."""
    added = {name: total - before.get(name, 0) for name, total in after.items()}
    return {name: amount for name, amount in added.items() if amount >= 0}
