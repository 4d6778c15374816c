# SPDX-License-Identifier: MIT OR Apache-2.0
"""A report of scripted sides and the files of a stored run, as the tests of the runs store use them."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

from engine.api import CompareReport, CompareRequest
from engine.fake_compare import CompareScript, ScriptedSides
from engine.measure.ab import run_ab
from engine.measure.ab_noise import NoiseStore
from engine.measure.workloads import workloads_of

MACHINE = {"cpu_model": "simulated", "code_sha256_12": "0" * 12, "git_dirty": False}


def make_report(folder: Path, effect_pct: float = 3.0, **changes: object) -> CompareReport:
    request = replace(
        CompareRequest(
            candidate={"QWEN38_VERIFY_GRAPH": "0"}, tokens=32, workload="copy", repeats=1
        ),
        **changes,
    )
    sides = ScriptedSides(request, CompareScript(effect_pct=effect_pct))
    works = workloads_of(request)
    return run_ab(request, sides, works, noise_store=NoiseStore(folder / "noise"), machine=MACHINE)


def read_csv(path: Path | str) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, strict=True))
