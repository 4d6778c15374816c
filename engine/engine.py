# SPDX-License-Identifier: MIT OR Apache-2.0
"""A loaded model in the caller's thread: open, logits, generate, close."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from engine.answer import AnswerStream, AnswerTally
from engine.api import (
    GenerateRequest,
    Generation,
    KernelTable,
    KnobRow,
    LoadProgress,
    ModelCard,
)
from engine.cache.prefix import PrefixCache
from engine.engine_compare import EngineCompares
from engine.errors import Cancelled, UsageError
from engine.knob_rows import idle_notices, knob_rows, served_values
from engine.knobs import KnobSet
from engine.load.checkpoint import Checkpoint, read_checkpoint
from engine.measure.kernel_table import kernel_table
from engine.measure.price_store import live_prices
from engine.model.backend import PREFILL_CHUNK, Backend
from engine.model.choose import open_backend, scaled_kv
from engine.model.cuda_memory import give_back_memory
from engine.model.engaged import Engaged
from engine.open_options import OpenOptions
from engine.paths import profile_path
from engine.prompt_ids import PromptIds
from engine.request import checked_sampling
from engine.spec.decode import DecodeLoop, Round
from engine.spec.drafter import Drafter
from engine.spec.drafters import Drafters
from engine.spec.lookup_memory import Memory, open_memory


class Engine(EngineCompares):
    """One model and one live sequence; not safe to call from two threads at once.

    Made by `Engine.open`; a context manager.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        backend: Backend,
        knobs: KnobSet,
        card: ModelCard,
        memory: Memory,
    ) -> None:
        self._checkpoint = checkpoint
        self._backend = backend
        self._knobs = knobs
        self._stop_ids = frozenset(checkpoint.stop_ids)
        # Rounds since the kernel table was reset and their milliseconds; the table is asked for, and reset,
        # from another thread.
        self._round_sum = (0, 0.0)
        self._round_sum_lock = threading.Lock()
        self._engaged = Engaged()
        self._memory = memory
        self._prompts = PromptIds(checkpoint, checkpoint.config, backend.capacity)
        self._prefixes = PrefixCache(backend)
        # Of the backend alone: a cycle through this engine would keep a closed model in memory.
        self._drafters = Drafters(backend, memory, lambda knobs: live_prices(backend, knobs))
        self.card = card
        self._describe: Callable[[KnobSet], ModelCard] = lambda knobs: card

    @staticmethod
    def open(
        path: str | Path,
        *,
        profile: str | Path | None = "serve",
        knobs: Mapping[str, str] | KnobSet | None = None,
        device: str = "auto",
        threads: int | None = None,
        compute: str | None = None,
        context_tokens: int | None = None,
        remember: bool = False,
        first: GenerateRequest | None = None,
        on_progress: Callable[[LoadProgress], None] | None = None,
        on_trouble: Callable[[str], None] | None = None,
        cancel: threading.Event | None = None,
    ) -> Engine:
        """Load the model folder `path` and make it ready to generate.

        `profile` is serve, an env file, or None for defaults. `compute="float32"` runs the
        reference operations in float32, for comparison with an oracle. `remember` opens the suffix store that
        QWEN38_SUFFIX_STORE names; whoever measures leaves it closed. `on_trouble(sentence)` hears, perhaps from
        another thread, what goes wrong with its files. `first` is a request that will be asked: what is wrong
        with it, as with `device`, is raised before a weight is read. Raises RondoError of some kind with the
        cause; nothing stays allocated then.
        """
        begun = time.perf_counter()
        if not isinstance(knobs, KnobSet):
            knobs = KnobSet.resolve(profile=profile_path(profile), changes=knobs)
        options = OpenOptions(device, threads, compute, context_tokens)
        give_back_memory()
        checkpoint = read_checkpoint(
            path,
            on_found=lambda found: options.refuse(found, knobs, first),
            on_progress=on_progress,
            cancel=cancel,
            keep_float32=options.float32,
            scaled_kv=scaled_kv(knobs, device=device, float32=options.float32),
            context_tokens=options.wanted_tokens,
        )
        memory = open_memory(
            knobs,
            model=checkpoint.path,
            vocab_size=checkpoint.tokenizer.vocab_size,
            remember=remember,
            on_trouble=on_trouble,
        )
        opened = open_backend(
            checkpoint,
            capacity=options.capacity(checkpoint.config),
            knobs=knobs,
            device=device,
            threads=threads,
            float32=options.float32,
            on_progress=on_progress,
            cancel=cancel,
        )
        card = opened.card(checkpoint, knobs=knobs, load_s=time.perf_counter() - begun)
        engine = Engine(checkpoint, opened.backend, knobs, card, memory)
        try:
            engine._prepare_drafters()
        except BaseException:
            engine.close()
            raise
        idle = idle_notices(knobs, backend=card.backend, offers=engine.offers)
        cut = options.context_notice(checkpoint.config)
        engine.card = replace(card, notices=(*card.notices, *cut, *idle))
        engine._describe = lambda now: opened.card(checkpoint, knobs=now, load_s=card.load_s)
        return engine

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the model; the engine cannot be used afterwards."""
        self.forget()
        self._backend.close()

    def forget(self) -> None:
        """Let go of what is kept for later requests, and its memory."""
        self._prefixes.forget()

    @property
    def knobs(self) -> KnobSet:
        """The switches in effect."""
        return self._knobs

    @property
    def offers(self) -> frozenset[str]:
        """What the loaded model has that some switches need."""
        has = {
            "the MTP head": self._checkpoint.weights.mtp is not None,
            "the block drafter": self._backend.block is not None,
            "an NVFP4 weight for the vector units": self._backend.takes_int8,
        }
        return frozenset(name for name, held in has.items() if held)

    def engaged(self) -> dict[str, int]:
        """How often each path was taken since the load, by the name that a switch's `engaged` says."""
        return {**self._backend.engaged(), **self._engaged.counts(), **self._memory.counts}

    def knob_rows(self) -> tuple[KnobRow, ...]:
        """Every switch as it stands here."""
        return knob_rows(
            self._knobs,
            backend=self.card.backend,
            offers=self.offers,
            engaged=self.engaged(),
            served=served_values(),
        )

    def set_knobs(self, changes: Mapping[str, str]) -> None:
        """Flip switches of the loaded model, between rounds.

        Raises UsageError for an unknown name, a value that does not parse, a switch that only a reload changes,
        or one that changes nothing here; nothing is flipped then. A value that stands already is no change.
        """
        before = self._knobs
        self.restore_knobs(before.flipped(changes, backend=self.card.backend, offers=self.offers))
        if self._knobs.of_passes() != before.of_passes():
            self._drafters.price_anew()

    def restore_knobs(self, knobs: KnobSet) -> None:
        """Put back values that were in effect on this model before, with their sources."""
        self._backend.apply_knobs(knobs)
        if not knobs.same_bits(self._knobs):
            self._prefixes.forget()
        self._knobs = knobs
        self.card = replace(self._describe(knobs), notices=self.card.notices)

    def logits(self, token_ids: Sequence[int], *, chunk: int = PREFILL_CHUNK) -> Tensor:
        """Teacher-forced logits of every position: float32 [T, vocabulary]."""
        ids = self._prompts.checked(token_ids)
        self._backend.reset(speculate=False)
        parts = [self._backend.all_logits(ids[at : at + chunk]) for at in range(0, len(ids), chunk)]
        return torch.cat(parts)

    def kernel_table(self) -> KernelTable:
        """Per-operation times over the rounds since the last reset."""
        return kernel_table(self._backend.operation_times(), *self._round_sum)

    def reset_kernel_table(self) -> None:
        """Start the per-operation times anew."""
        with self._round_sum_lock:
            self._backend.reset_operation_times()
            self._round_sum = (0, 0.0)

    def _prepare_drafters(self) -> None:
        """Measure what a router needs; the kernel table then starts anew, as those passes are of no round."""
        if self._drafters.prepare(self._knobs):
            self.reset_kernel_table()

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text; control tokens in it stay text."""
        return self._checkpoint.tokenizer.encode_text(text)

    def prompt_ids(self, request: GenerateRequest) -> tuple[list[int], bool]:
        """The prompt's token ids and whether the answer starts inside a thinking part.

        Raises PromptError when there is no prompt or more than one, UsageError for a thinking choice that the
        chat template cannot follow.
        """
        return self._prompts.of(request)

    def generate(
        self,
        request: GenerateRequest,
        *,
        on_prompt: Callable[[int, int], None] | None = None,
        on_text: Callable[[str], None] | None = None,
        on_round: Callable[[Round, float, int], None] | None = None,
        cancel: threading.Event | None = None,
        follow: Sequence[int] | None = None,
        drafter: Drafter | None = None,
        remember: bool = False,
        resume: bool = False,
    ) -> Generation:
        """Answer one request; blocks until it is done.

        `on_prompt(done, total)` follows the prefill in tokens, `on_text` gets the raw stream as it grows,
        `on_round(round, round_ms, context_tokens)` every round. A set `cancel` ends it within one chunk
        or one round; what was written is returned with finish_reason "cancelled". `follow` holds the tokens of
        the answer where it is given beforehand, at least max_tokens of them: rounds then time this text.
        `drafter` drafts in place of the one that the switches ask for. `remember` lets the request use the
        suffix store, if one was opened: it is searched, and the finished answer is added to it. `resume` goes
        on from what an earlier request left, as far as the prompts agree (QWEN38_CACHE_GB); whoever measures
        reads every prompt whole.
        """
        begun = time.perf_counter()
        cancel = cancel or threading.Event()
        if follow is not None and len(self._prompts.checked(follow)) < request.max_tokens:
            raise UsageError(
                f"A text of {len(follow)} tokens cannot be followed for {request.max_tokens}."
            )
        sampling = checked_sampling(request)
        ids, thinking, dropped = self._prompts.fitted(request)
        if request.speculate and drafter is None:
            self._prepare_drafters()
        stream = AnswerStream(self._checkpoint, request.stop, thinking, on_text)
        stop_ids = frozenset() if request.ignore_stop_tokens else self._stop_ids
        loop = DecodeLoop(
            self._backend, sampling, stop_ids, self._drafter_of(request, drafter), follow=follow
        )
        tally = AnswerTally()
        self._memory.begin(remember=remember)
        kept = self._begin(ids, loop, resume=resume)
        try:
            self._prefill(ids, kept, loop, on_prompt, cancel)
            first_token_s = time.perf_counter()
            finish = self._decode(request, ids, loop, drafter, stream, tally, on_round, cancel)
        except Cancelled:
            first_token_s = time.perf_counter()
            finish = "cancelled"
        except BaseException:
            self._prefixes.forget()
            raise
        finished = time.perf_counter()
        self._prefixes.wrote(loop.written)
        stream.finish()
        if finish != "cancelled":
            self._memory.finish(stream.ids)
        return tally.generation(
            stream,
            prompt_tokens=len(ids),
            kept=kept,
            dropped=dropped,
            finish=finish,
            ttft_s=first_token_s - begun,
            decode_s=finished - first_token_s,
            roof_gbps=self.card.roof_gbps,
            roof_place=self.card.roof_place,
        )

    def _drafter_of(self, request: GenerateRequest, given: Drafter | None) -> Drafter | None:
        """Who drafts in the coming round."""
        if not request.speculate:
            return None
        return given or self._drafters.of(self._knobs)

    def _begin(self, ids: list[int], loop: DecodeLoop, *, resume: bool) -> int:
        """Have the backend stand somewhere in the prompt; how many of its tokens it holds there."""
        speculate, budget_gb = loop.drafter is not None, self._knobs.number("CACHE_GB")
        if not resume or not budget_gb:
            self._prefixes.forget()
            self._backend.reset(speculate=speculate)
            return 0
        kept = self._prefixes.begin(ids, speculate=speculate, budget_bytes=budget_gb << 30)
        self._engaged.count("prompt tokens kept", kept)
        return kept

    def _prefill(
        self,
        ids: list[int],
        kept: int,
        loop: DecodeLoop,
        on_prompt: Callable[[int, int], None] | None,
        cancel: threading.Event,
    ) -> None:
        result, at = None, kept
        if on_prompt:
            on_prompt(at, len(ids))
        while at < len(ids):
            if cancel.is_set():
                raise Cancelled
            end = self._prefixes.next_stop(at, len(ids))
            result = self._backend.prefill(ids[at:end])
            self._prefixes.passed(end, len(ids))
            at = end
            if on_prompt:
                on_prompt(at, len(ids))
        assert result is not None
        loop.begin(result, ids)

    def _decode(
        self,
        request: GenerateRequest,
        prompt: list[int],
        loop: DecodeLoop,
        given: Drafter | None,
        stream: AnswerStream,
        tally: AnswerTally,
        on_round: Callable[[Round, float, int], None] | None,
        cancel: threading.Event,
    ) -> str:
        """Rounds until something ends the answer; returns the finish reason."""
        stop_ids = loop.stop_ids
        if loop.anchor in stop_ids:
            return "stop"
        if stream.add((loop.anchor,)):
            return "stop"
        knobs: KnobSet | None = None
        while len(stream.ids) < request.max_tokens:
            if cancel.is_set():
                return "cancelled"
            if loop.room() < 1:
                return "context"
            started = time.perf_counter()
            if knobs is not self._knobs:  # switches may flip between rounds
                knobs = self._knobs
                drafter = self._drafter_of(request, given)
                if drafter is not loop.drafter:
                    loop.use(drafter, [*prompt, *stream.ids[:-1]])
                rows = knobs.number("VERIFY_ROWS")
                loop.limit(rows, knobs.number("TREE_NODES") or rows)
            done = loop.round(request.max_tokens - len(stream.ids))
            stopped = done.tokens[-1] in stop_ids
            stopped = stream.add(done.tokens[:-1] if stopped else done.tokens) or stopped
            round_ms = (time.perf_counter() - started) * 1e3
            tally.count(done, round_ms)
            self._engaged.count("drafted tokens", done.drafted)
            self._engaged.count("rows verified", done.rows)
            self._engaged.count("tree passes", done.tree)
            with self._round_sum_lock:
                rounds, rounds_ms = self._round_sum
                self._round_sum = (rounds + 1, rounds_ms + round_ms)
            if on_round:
                on_round(done, round_ms, self._backend.length)
            if stopped:
                return "stop"
        return "length"
