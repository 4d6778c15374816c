# SPDX-License-Identifier: MIT OR Apache-2.0
"""An A/B on a loaded engine, from request to report, as the command, the console and programs run it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from engine.api_compare import CompareProgress, CompareReport, CompareRequest
from engine.engine import Engine
from engine.errors import UsageError
from engine.measure.ab import run_ab
from engine.measure.ab_engine import EngineSides, OnRound
from engine.measure.ab_noise import NoiseStore
from engine.measure.machine import machine_record
from engine.measure.workloads import workloads_of
from engine.paths import data_dir


def compare_on(
    engine: Engine,
    request: CompareRequest,
    *,
    on_engine: Callable[[Engine | None], None] | None = None,
    on_round: OnRound = lambda done, round_ms, context_tokens: None,
    on_progress: Callable[[CompareProgress], None] = lambda progress: None,
    cancel: threading.Event | None = None,
    why_stopped: Callable[[], str] = lambda: "Cancelled",
    noise_folder: Path | None = None,
    reopen: Callable[..., Engine] = Engine.open,
) -> CompareReport:
    """Compare two settings of a loaded engine; see `engine.measure.ab.run_ab`.

    A switch that needs a reload replaces the engine: `on_engine` gets None, then the new one, and the caller
    drops the old one. Without `on_engine` such a switch is a UsageError. `reopen` opens the model in place of
    `Engine.open`, as the caller opened it.
    """
    works = workloads_of(request)
    replaces = on_engine or (lambda engine: None)
    sides = EngineSides(engine, request, on_round=on_round, on_engine=replaces, reopen=reopen)
    del engine  # a reload frees it
    if on_engine is None and sides.setting.reloads:
        raise UsageError(
            "A switch that takes effect when a model is loaded cannot be compared on this engine.",
            kept="Nothing was measured.",
            next_step="Use `rondo ab`, or the console, which load the model anew for each side.",
        )
    return run_ab(
        request,
        sides,
        works,
        noise_store=NoiseStore(noise_folder or data_dir() / "noise"),
        machine=machine_record(),
        on_progress=on_progress,
        cancel=cancel,
        why_stopped=why_stopped,
    )
