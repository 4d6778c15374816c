# SPDX-License-Identifier: MIT OR Apache-2.0
"""The one door to the engine: frozen records in and out, and the handle the console drives.

A handle never blocks its caller: commands are queued for the engine thread, and everything the thread has
to say is pulled (`snapshot`, `events`, `text_since`, `ring`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from engine.allocation import memory_short
from engine.api_compare import (
    DEFAULT_PAIRS,
    FEWEST_PAIRS,
    METRICS,
    MOST_PAIRS,
    VERDICTS,
    WORKLOADS,
    CompareBlock,
    CompareHandle,
    ComparePair,
    CompareProgress,
    CompareReport,
    CompareRequest,
    KernelDelta,
    RunDifference,
    RunRecord,
    RunSummary,
    SideFigures,
    WorkloadResult,
)
from engine.api_knobs import KnobHandle, KnobRow
from engine.errors import RondoError
from engine.measure.telemetry import DRAFTERS, ROUND_DTYPE, ROUTES, RoundRing

__all__ = [
    "DEFAULT_PAIRS",
    "DRAFTERS",
    "FEWEST_PAIRS",
    "METRICS",
    "MOST_PAIRS",
    "ROUND_DTYPE",
    "ROUTES",
    "STATES",
    "VERDICTS",
    "WORKLOADS",
    "CompareBlock",
    "CompareFailed",
    "CompareFinished",
    "CompareHandle",
    "ComparePair",
    "CompareProgress",
    "CompareProgressed",
    "CompareReport",
    "CompareRequest",
    "EngineHandle",
    "ErrorReport",
    "Event",
    "Failed",
    "Finished",
    "GenerateRequest",
    "Generation",
    "KernelDelta",
    "KernelRow",
    "KernelTable",
    "KnobRow",
    "KnobsChanged",
    "KnobsRefused",
    "LoadFailed",
    "LoadProgress",
    "LoadProgressed",
    "Loaded",
    "Message",
    "ModelCard",
    "RoundRing",
    "RunDifference",
    "RunRecord",
    "RunSummary",
    "SideFigures",
    "Snapshot",
    "Started",
    "StateChanged",
    "WorkloadResult",
    "open_handle",
]  # fmt: skip

STATES = (
    "empty",
    "loading",
    "ready",
    "prefilling",
    "writing",
    "comparing",
    "closing",
    "closed",
)


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation; `role` is system, user or assistant."""

    role: str
    content: str
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """What to generate from (exactly one of messages, prompt, token_ids) and how.

    `prompt` is raw text without the chat template. `thinking` None leaves it to the template's default.
    `truncate` drops the oldest part of a prompt that does not fit instead of refusing it; the answer keeps
    room for max_tokens, but no more than half of the context.
    """

    messages: tuple[Message, ...] = ()
    prompt: str | None = None
    token_ids: tuple[int, ...] = ()
    max_tokens: int = 512
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    speculate: bool = True
    thinking: bool | None = None
    truncate: bool = False
    ignore_stop_tokens: bool = False  # go on to max_tokens, for gates that compare long texts


@dataclass(frozen=True, slots=True)
class Generation:
    """One finished answer and its figures.

    `finish_reason`: stop (a stop token or string), length (max_tokens), context (the context is full) or
    cancelled. `text` is what follows the thinking part; `reasoning` is the thinking part.
    Rates are None where nothing was measured (fewer than two tokens).
    """

    text: str
    reasoning: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    dropped_prompt_tokens: int
    finish_reason: str
    rounds: int
    drafted_tokens: int
    accepted_tokens: int
    tokens_per_round: float | None
    acceptance_pct: float | None
    ttft_ms: float
    prefill_tps: float | None
    decode_tps: float | None
    round_ms_median: float | None
    bytes_per_round: int | None
    read_gbps: float | None
    roof_gbps: float | None
    written_bytes_per_round: int | None = None  # recurrent state


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """A RondoError (or an unexpected exception) as the console shows it."""

    title: str
    cause: str
    kept: str
    next_step: str
    details: str = ""  # traceback, for "copy report"

    @staticmethod
    def of(error: BaseException, details: str = "") -> ErrorReport:
        """The report of any exception; an unexpected one keeps its type name in the cause."""
        error = memory_short(error, "this", kept="What was loaded stays loaded.") or error
        if isinstance(error, RondoError):
            return ErrorReport(error.title, error.cause, error.kept, error.next_step, details)
        return ErrorReport(
            "An unexpected error",
            f"{type(error).__name__}: {error}",
            "What was loaded stays loaded.",
            "Copy the report and try again.",
            details,
        )


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What is loaded and how it runs."""

    name: str
    path: str
    is_demo: bool
    weight_format: str  # BF16, NVFP4 + FP8 head, ...
    parameters: int
    layers: int
    context_tokens: int
    vocab_size: int
    weight_bytes: int
    state_bytes: int
    backend: str  # "native", "reference" or "cuda"
    device: str  # "CPU, 2 threads, AVX-512 BF16"
    speculation: str  # "MTP, depth 3", "lookup first, then MTP, depth 3", or "off: why"
    speculates: bool
    thinks: bool  # the chat template knows a thinking switch
    thinks_by_default: bool
    roof_gbps: float | None  # measured read rate of this machine, None until it is known
    load_s: float
    roof_place: str = "memory"  # or cache, where a round's bytes fit into it
    threads: int = 0  # worker threads, the caller's included
    notices: tuple[str, ...] = ()  # things the operator should know, e.g. a fallback and its reason


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Where a load stands; `stage` is a phrase such as "reading weights"."""

    stage: str
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One operation's share of the rounds since the last reset."""

    name: str
    calls: int
    total_ms: float
    share_pct: float  # of the rounds' time
    read_gbps: float | None
    gflops: float | None


@dataclass(frozen=True, slots=True)
class KernelTable:
    """Per-operation times over `rounds` rounds; `unavailable` says why where there are none."""

    rows: tuple[KernelRow, ...]
    rounds: int
    round_ms: float  # mean
    unaccounted_ms: float  # round minus the sum of its operations, mean
    unavailable: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The engine's state at one moment; `beat_s` is time.monotonic() of its last sign of life."""

    state: str  # one of STATES
    beat_s: float
    request_id: int
    prompt_tokens: int  # of the request that runs
    prompt_done: int
    tokens_out: int
    thinking: bool
    context_tokens: int
    context_limit: int
    memory_bytes: int  # resident memory of the process
    model: ModelCard | None


class Event:
    """Base of the rare things that happen; drained by `EngineHandle.events`."""


@dataclass(frozen=True, slots=True)
class StateChanged(Event):
    state: str


@dataclass(frozen=True, slots=True)
class LoadProgressed(Event):
    progress: LoadProgress


@dataclass(frozen=True, slots=True)
class Loaded(Event):
    card: ModelCard


@dataclass(frozen=True, slots=True)
class LoadFailed(Event):
    """The previous model, if any, is still the one that runs (`kept` in the report says so)."""

    path: str
    report: ErrorReport


@dataclass(frozen=True, slots=True)
class Started(Event):
    request_id: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Finished(Event):
    request_id: int
    generation: Generation


@dataclass(frozen=True, slots=True)
class Failed(Event):
    request_id: int
    report: ErrorReport
    text: str  # what had been written until then


@dataclass(frozen=True, slots=True)
class CompareProgressed(Event):
    compare_id: int
    progress: CompareProgress


@dataclass(frozen=True, slots=True)
class CompareFinished(Event):
    """The A/B has an answer; a cancelled one too, from the pairs that were complete."""

    compare_id: int
    report: CompareReport


@dataclass(frozen=True, slots=True)
class CompareFailed(Event):
    """The A/B could not go on; `partial` holds the pairs that were complete, if any."""

    compare_id: int
    error: ErrorReport
    partial: CompareReport | None


@dataclass(frozen=True, slots=True)
class KnobsChanged(Event):
    """These (name, value) pairs are in effect from the next round on, and stay for later loads."""

    changes: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class KnobsRefused(Event):
    """None of these changes was made."""

    changes: tuple[tuple[str, str], ...]
    report: ErrorReport


class EngineHandle(CompareHandle, KnobHandle, Protocol):
    """What the console needs of an engine (`engine.runner.ThreadedEngine`, `engine.fake.FakeEngine`)."""

    ring: RoundRing

    def load(
        self, path: str, *, threads: int | None = None, knobs: Mapping[str, str] | None = None
    ) -> None:
        """Queue a load; the present model stays until the new one is ready."""

    def generate(self, request: GenerateRequest) -> int:
        """Queue a generation and return its request id; events tell its start and its end."""

    def cancel(self) -> None:
        """Stop the load or generation that runs, within one chunk or one round."""

    def close(self, timeout_s: float = 5.0) -> bool:
        """Cancel, stop the thread, free the model; False when it did not end in time."""

    def snapshot(self) -> Snapshot:
        """The present state; never blocks."""

    def events(self) -> list[Event]:
        """Events since the last call, oldest first."""

    def text_since(self, request_id: int, cursor: int) -> tuple[str, int]:
        """The raw stream of a request since `cursor` (0 at first), and the cursor to ask with next.

        A thinking part arrives between `<think>` and `</think>`.
        """

    def kernel_table(self) -> KernelTable:
        """Per-operation times since the last `reset_kernel_table`."""

    def reset_kernel_table(self) -> None:
        """Start the per-operation times anew."""

    def demo_model_path(self) -> str:
        """Folder of the demo model that ships with the product."""


def open_handle(
    *, knobs: Mapping[str, str] | None = None, threads: int | None = None
) -> EngineHandle:
    """A threaded engine with nothing loaded yet."""
    from engine.runner import ThreadedEngine

    return ThreadedEngine(knobs=knobs, threads=threads)
