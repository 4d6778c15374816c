# SPDX-License-Identifier: MIT OR Apache-2.0
"""A scripted engine behind the real handle, for tests and screenshots of the console. It runs no model.

Its thread, cancels, events, ring and text stream behave as the real engine's do; what it says and how fast
comes from a `Script`. Times in the ring are the ones that really passed.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import replace

from engine.api import (
    ErrorReport,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    Generation,
    KernelRow,
    KernelTable,
    Loaded,
    LoadFailed,
    LoadProgress,
    LoadProgressed,
    ModelCard,
    RoundRing,
    Snapshot,
    Started,
    StateChanged,
)
from engine.compare_handle import OPENED
from engine.errors import BusyError, NumericsError, PromptError, RondoError
from engine.fake_compare import FakeCompares
from engine.fake_knobs import FakeKnobs
from engine.fake_script import CONTEXT_LIMIT, ROOF_GBPS, SCRIPTS, Script
from engine.fake_stream import TextStream, generation_of, pieces_of
from engine.hardware import OwnProcess
from engine.numbers import grouped


class _Cancel(Exception):
    """The operator's cancel reached the scripted thread."""


class FakeEngine(FakeKnobs, FakeCompares):
    """An `EngineHandle` that plays a script."""

    def __init__(self, script: Script | str = "steady") -> None:
        FakeKnobs.__init__(self)
        FakeCompares.__init__(self)
        self.script = SCRIPTS[script] if isinstance(script, str) else script
        self.ring = RoundRing()
        self.requests: list[GenerateRequest] = []  # what was asked, for tests
        self._commands: queue.SimpleQueue = queue.SimpleQueue()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._wake = threading.Event()
        self._cancelled_through = 0
        self._serial = 0
        self._last_request = 0
        self._loads = 0
        self._texts: dict[int, TextStream] = {}
        self._parts_ms = {"draft": 0.0, "verify": 0.0, "commit": 0.0}
        self._table_rounds, self._table_ms = 0, 0.0
        self._process = OwnProcess()
        self._now = Snapshot("empty", time.monotonic(), 0, 0, 0, 0, False, 0, 0, 0, None)
        self._thread = threading.Thread(target=self._run, name="rondo-fake-engine", daemon=True)
        self._thread.start()

    # Commands, from any thread.

    def load(
        self, path: str, *, threads: int | None = None, knobs: Mapping[str, str] | None = None
    ) -> None:
        if self._comparing:
            self._stop_words = OPENED
            self.cancel()
        self._put("load", (path, knobs))

    def generate(self, request: GenerateRequest) -> int:
        self.requests.append(request)
        self._last_request += 1
        self._texts[self._last_request] = TextStream()
        if self._comparing:
            self._refuse_answer(self._last_request)
        else:
            self._put("generate", (self._last_request, request))
        return self._last_request

    def cancel(self) -> None:
        self._cancelled_through = self._serial
        self._wake.set()

    def close(self, timeout_s: float = 5.0) -> bool:
        self.cancel()
        self._put("close", None)
        self._thread.join(timeout_s)
        self._forget_runs()
        return not self._thread.is_alive()

    def snapshot(self) -> Snapshot:
        return self._now

    def events(self) -> list[Event]:
        drained = []
        while not self._events.empty():
            drained.append(self._events.get())
        return drained

    def text_since(self, request_id: int, cursor: int) -> tuple[str, int]:
        stream = self._texts.get(request_id)
        return stream.since(cursor) if stream else ("", cursor)

    def kernel_table(self) -> KernelTable:
        if not self._table_rounds:
            return KernelTable((), 0, 0.0, 0.0, "no round has run yet", waits=True)
        total = self._table_ms
        rows = tuple(
            KernelRow(name, self._table_rounds, spent, 100 * spent / total, None, None)
            for name, spent in self._parts_ms.items()
        )
        mean = total / self._table_rounds
        rest = mean - sum(row.total_ms for row in rows) / self._table_rounds
        return KernelTable(rows, self._table_rounds, mean, rest)

    def reset_kernel_table(self) -> None:
        self._parts_ms = dict.fromkeys(self._parts_ms, 0.0)
        self._table_rounds, self._table_ms = 0, 0.0

    def demo_model_path(self) -> str:
        return "assets/demo-model"

    # The thread.

    def _put(self, kind: str, payload: object) -> None:
        self._serial += 1
        self._commands.put((self._serial, kind, payload))

    def _run(self) -> None:
        while True:
            try:
                serial, kind, payload = self._commands.get(timeout=0.2)
            except queue.Empty:
                self._beat()
                continue
            self._active = serial
            self._wake.clear()
            if kind == "close":
                self._state("closed")
                return
            if kind == "load":
                self._load(*payload)
            elif kind == "knobs":
                self._apply_knobs()
            elif kind == "compare":
                self._compare(*payload, lambda at=serial: self._cancelled_through >= at)
                self._state("ready" if self._now.model else "empty")
            else:
                self._generate(*payload)

    def _load(self, path: str, knobs: Mapping[str, str] | None) -> None:
        script, before = self.script, self._now.model
        self._state("loading")
        steps = max(4, int(script.load_s / 0.03))
        try:
            for step in range(steps):
                done = script.load_bytes * (step + 1) // steps
                self._sleep(script.load_s / steps)
                self._events.put(
                    LoadProgressed(LoadProgress("reading weights", done, script.load_bytes))
                )
                failing = script.load_error and self._loads >= script.fail_loads_after
                if failing and step >= steps // 2:
                    raise script.load_error
            self._load_knobs(knobs)
            self._loads += 1
            card = self._card(path)
            self._update(model=card, context_limit=CONTEXT_LIMIT, context_tokens=0)
            self._events.put(Loaded(card))
        except _Cancel:
            kept = f"{before.name} is still loaded." if before else "No model is loaded."
            cause, again = "Opening the model was cancelled.", "Open it again to go on."
            report = ErrorReport("Cancelled", cause, kept, again, cancelled=True)
            self._events.put(LoadFailed(path, report))
        except RondoError as error:
            self._events.put(LoadFailed(path, ErrorReport.of(error)))
        self._state("ready" if self._now.model else "empty")

    def _card(self, path: str) -> ModelCard:
        script = self.script
        return ModelCard(
            name="Rondo demo (scripted)" if script.demo else "Scripted engine",
            path=path,
            is_demo=script.demo,
            weight_format="BF16",
            parameters=script.load_bytes // 2,
            layers=8,
            context_tokens=CONTEXT_LIMIT,
            vocab_size=4096,
            weight_bytes=script.load_bytes,
            state_bytes=2_400_000,
            backend="reference",
            device="no device, scripted",
            speculation="MTP, depth 3",
            thinks=bool(script.thought),
            thinks_by_default=bool(script.thought),
            roof_gbps=ROOF_GBPS,
            load_s=script.load_s,
            notices=("This engine plays a script and runs no model.",),
        )

    def _generate(self, request_id: int, request: GenerateRequest) -> None:
        stream = self._texts[request_id]
        started = time.monotonic()
        try:
            prompt_tokens = self._check_prompt(request)
            self._update(
                request_id=request_id,
                prompt_tokens=prompt_tokens,
                prompt_done=0,
                tokens_out=0,
                context_tokens=0,
            )
            self._events.put(Started(request_id, prompt_tokens))
            self._state("prefilling")
            self._prefill(prompt_tokens)
            prefill_s = time.monotonic() - started
            self._state("writing")
            self._events.put(
                Finished(request_id, self._write(request_id, request, started, prefill_s))
            )
        except _Cancel:
            self._events.put(
                Finished(
                    request_id,
                    generation_of(stream, "cancelled", self._now.prompt_tokens, [], 0, 0),
                )
            )
        except RondoError as error:
            self._events.put(Failed(request_id, ErrorReport.of(error), stream.text()))
        self._update(thinking=False)
        self._state("ready" if self._now.model else "empty")

    def _check_prompt(self, request: GenerateRequest) -> int:
        if self._now.model is None:
            raise BusyError("No model is loaded.", next_step="Open a model folder first.")
        size = sum(len(m.content) for m in request.messages) + len(request.prompt or "")
        if not size:
            raise PromptError("The prompt is empty.", next_step="Write something and send again.")
        tokens = size // 4 + 8
        if tokens + 1 > CONTEXT_LIMIT and not request.truncate:
            raise PromptError(
                f"The prompt has {grouped(tokens)} tokens; the context holds {grouped(CONTEXT_LIMIT)}.",
                kept="The conversation is unchanged.",
                next_step='Shorten it, or switch on "drop the oldest part" under sampling.',
            )
        return min(tokens, CONTEXT_LIMIT - request.max_tokens)

    def _prefill(self, prompt_tokens: int) -> None:
        chunk = max(1, min(128, int(self.script.prompt_tps * 0.05)))
        for done in range(chunk, prompt_tokens + chunk, chunk):
            self._sleep(chunk / self.script.prompt_tps)
            done = min(done, prompt_tokens)
            self._update(prompt_done=done, context_tokens=done)

    def _write(
        self, request_id: int, request: GenerateRequest, started: float, prefill_s: float
    ) -> Generation:
        script, stream = self.script, self._texts[request_id]
        body = "\n\n".join([script.answer] * script.repeat)
        thinks = script.thought and request.thinking is not False
        pieces = pieces_of(f"<think>\n{script.thought}\n</think>\n\n{body}" if thinks else body)
        rows: list[tuple[int, int, int, float]] = []
        ttft_s = time.monotonic() - started
        out, at, reason = 0, 0, "stop"
        while at < len(pieces):
            if out >= request.max_tokens:
                reason = "length"
                break
            index = len(rows)
            if index == script.fail_after_rounds:
                raise NumericsError(
                    "Layer 5 (gated_delta) produced a NaN.",
                    kept="The text so far is kept and the model stays loaded.",
                    next_step="Send again; if it returns, copy the report.",
                )
            if index == script.stall_after_rounds:
                self._sleep(script.stall_s, beat=False)
            want = script.committed[index % len(script.committed)] if request.speculate else 1
            want = min(want, request.max_tokens - out, len(pieces) - at)
            drafted = 3 if request.speculate else 0
            try:
                round_ms = self._round(request_id, want, drafted)
            except _Cancel:
                reason = "cancelled"
                break
            for piece in pieces[at : at + want]:
                stream.append(piece)
            at, out = at + want, out + want
            rows.append((want, drafted, min(want - 1, drafted) if drafted else 0, round_ms))
            text_so_far = pieces[at - 1]
            if "</think>" in text_so_far or not thinks:
                self._update(thinking=False)
            elif thinks and index == 0:
                self._update(thinking=True)
            self._update(tokens_out=out, context_tokens=self._now.prompt_tokens + out)
        prefill_tps = self._now.prompt_tokens / prefill_s if prefill_s > 0 else None
        return generation_of(
            stream, reason, self._now.prompt_tokens, rows, ttft_s * 1e3, prefill_tps
        )

    def _round(self, request_id: int, committed: int, drafted: int) -> float:
        marks = [time.monotonic()]
        for share in (0.18 if drafted else 0.0, 0.66, 0.06):
            self._sleep(self.script.round_ms * share / 1e3)
            marks.append(time.monotonic())
        self._sleep(self.script.round_ms * 0.1 / 1e3)
        end = time.monotonic()
        draft, verify, commit = ((b - a) * 1e3 for a, b in zip(marks, marks[1:], strict=False))
        round_ms = (end - marks[0]) * 1e3
        self.ring.append(
            request_id=request_id,
            end_s=end,
            committed_tokens=committed,
            drafted_tokens=drafted,
            accepted_tokens=min(committed - 1, drafted) if drafted else 0,
            rows=drafted + 1,
            context_tokens=self._now.context_tokens + committed,
            drafter=1 if drafted else 0,
            draft_ms=draft,
            verify_ms=verify,
            commit_ms=commit,
            round_ms=round_ms,
            bytes_read=self.script.load_bytes,
        )
        for name, spent in (("draft", draft), ("verify", verify), ("commit", commit)):
            self._parts_ms[name] += spent
        self._table_rounds += 1
        self._table_ms += round_ms
        self._apply_knobs()
        return round_ms

    def _sleep(self, seconds: float, *, beat: bool = True) -> None:
        if beat:
            self._beat()
        if self._cancelled_through >= self._active:
            raise _Cancel
        if seconds <= 0.002:  # an event wait is too coarse for the shortest rounds
            time.sleep(max(seconds, 0.0))
        elif self._wake.wait(seconds):
            raise _Cancel

    def _beat(self) -> None:
        self._update()

    def _update(self, **changes: object) -> None:
        self._now = replace(self._now, beat_s=time.monotonic(), **changes)

    def _state(self, state: str) -> None:
        self._update(state=state, memory_bytes=self._process.resident_bytes())
        self._events.put(StateChanged(state))
