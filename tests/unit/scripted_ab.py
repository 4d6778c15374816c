# SPDX-License-Identifier: MIT OR Apache-2.0
"""An A/B on scripted sides, as the tests of its protocol run it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from engine.api import CompareProgress, CompareReport, CompareRequest
from engine.fake_compare import CompareScript, ScriptedSides
from engine.measure.ab import NOISE_PAIRS, run_ab
from engine.measure.ab_noise import NoiseStore
from engine.measure.workloads import workloads_of

FLIP = {"QWEN38_VERIFY_GRAPH": "0"}
STEADY = CompareScript()
# Answers before the pairs that count, of four prompts without repeats.
WARM = 8 + 8 * NOISE_PAIRS + 8
MACHINE = {"cpu_model": "simulated", "cores_available": 1, "code_sha256_12": "0" * 12}


def compare(
    store: NoiseStore,
    script: CompareScript = STEADY,
    *,
    sides: ScriptedSides | None = None,
    on_progress: Callable[[CompareProgress], None] = lambda progress: None,
    cancel: threading.Event | None = None,
    **changes: object,
) -> CompareReport:
    request = replace(CompareRequest(candidate=FLIP, tokens=64, repeats=1), **changes)
    sides = sides or ScriptedSides(request, script)
    return run_ab(
        request,
        sides,
        workloads_of(request),
        noise_store=store,
        machine=MACHINE,
        on_progress=on_progress,
        cancel=cancel,
    )
