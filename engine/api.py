# SPDX-License-Identifier: MIT OR Apache-2.0
"""The one door to the engine: frozen records in and out, and the handle the console drives.

A handle never blocks its caller: commands are queued for the engine thread, and everything the thread has
to say is pulled (`snapshot`, `events`, `text_since`, `ring`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from engine.api_compare import (
    DEFAULT_PAIRS,
    DEFAULT_TOKENS,
    FEWEST_PAIRS,
    FEWEST_TOKENS,
    METRICS,
    MOST_LABEL,
    MOST_PAIRS,
    MOST_TOKENS,
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
from engine.api_events import (
    CompareFailed,
    CompareFinished,
    CompareProgressed,
    Event,
    Failed,
    Finished,
    KnobsChanged,
    KnobsRefused,
    Loaded,
    LoadFailed,
    LoadProgressed,
    Started,
    StateChanged,
)
from engine.api_knobs import KnobHandle, KnobRow
from engine.api_records import (
    STATES,
    ErrorReport,
    GenerateRequest,
    Generation,
    KernelRow,
    KernelTable,
    LoadProgress,
    Message,
    ModelCard,
    Snapshot,
    roof_name,
)
from engine.measure.telemetry import DRAFTERS, ROUND_DTYPE, ROUTES, RoundRing
from engine.numbers import byte_size, grouped, significant
from engine.replace_file import replace_text
from engine.unique_keys import unique_keys

__all__ = [
    "DEFAULT_PAIRS",
    "DEFAULT_TOKENS",
    "DRAFTERS",
    "FEWEST_PAIRS",
    "FEWEST_TOKENS",
    "METRICS",
    "MOST_LABEL",
    "MOST_PAIRS",
    "MOST_TOKENS",
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
    "byte_size",
    "grouped",
    "open_handle",
    "replace_text",
    "roof_name",
    "significant",
    "unique_keys",
]  # fmt: skip


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
    *,
    knobs: Mapping[str, str] | None = None,
    threads: int | None = None,
    profile: str = "serve",
) -> EngineHandle:
    """A threaded engine with nothing loaded yet; `profile` names a set of switches, or a file of one."""
    from engine.runner import ThreadedEngine

    return ThreadedEngine(knobs=knobs, threads=threads, profile=profile)
