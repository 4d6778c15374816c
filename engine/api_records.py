# SPDX-License-Identifier: MIT OR Apache-2.0
"""Records of a handle: what is asked, what comes back, what is loaded and how the engine stands."""

from __future__ import annotations

from dataclasses import dataclass

from engine.allocation import memory_short
from engine.errors import Cancelled, PromptError, RondoError

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
    cancelled. `kept_prompt_tokens`: of the prompt, those that an earlier request left and that were not read
    again; `prefill_tps` is of the others. `text` is what follows the thinking part; `reasoning` is that part.
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
    roof_place: str = "memory"  # see ModelCard
    kept_prompt_tokens: int = 0


def roof_name(place: str) -> str:
    """What the roof of a `roof_place` is called beside a figure."""
    return "cache roof" if place == "cache" else "roof"


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """A RondoError (or an unexpected exception) as the console shows it.

    cancelled: the operator asked for it, and nothing is wrong. prompt_refused: the prompt itself cannot be
    run, and would not be if it were sent again.
    """

    title: str
    cause: str
    kept: str
    next_step: str
    details: str = ""  # traceback, for "copy report"
    cancelled: bool = False
    prompt_refused: bool = False

    @staticmethod
    def of(error: BaseException, details: str = "") -> ErrorReport:
        """The report of any exception; an unexpected one keeps its type name in the cause."""
        error = memory_short(error, "this", kept="What was loaded stays loaded.") or error
        if isinstance(error, RondoError):
            cancelled = isinstance(error, Cancelled)
            return ErrorReport(
                error.title,
                error.cause,
                error.kept,
                error.next_step,
                "" if cancelled else details,
                cancelled=cancelled,
                prompt_refused=isinstance(error, PromptError),
            )
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
    thinks: bool  # the chat template knows a thinking switch
    thinks_by_default: bool
    roof_gbps: float | None  # measured read rate of this machine, None until it is known
    load_s: float
    roof_place: str = "memory"  # or cache, where a round's bytes fit into it
    threads: int = 0  # worker threads, the caller's included
    experts: str = ""  # "8 of 256 experts a token" where layers route to experts
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
    """Per-operation times over `rounds` rounds; `unavailable` says why where there are none.

    waits: it has no rows yet, and the rounds of the next answer will fill it as the engine stands.
    """

    rows: tuple[KernelRow, ...]
    rounds: int
    round_ms: float  # mean
    unaccounted_ms: float  # round minus the sum of its operations, mean
    unavailable: str = ""
    waits: bool = False


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
