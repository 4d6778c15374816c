# SPDX-License-Identifier: MIT OR Apache-2.0
"""An A/B that ends early: what is kept of it, and what is said."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from scripted_ab import FLIP, WARM, compare

from engine.api import CompareRequest
from engine.errors import NumericsError
from engine.fake_compare import CompareScript, ScriptedSides
from engine.measure.ab import NOISE_PAIRS, CompareStopped
from engine.measure.ab_noise import NoiseStore


@pytest.fixture
def store(tmp_path: Path) -> NoiseStore:
    return NoiseStore(tmp_path / "noise")


def test_a_cancel_inside_a_repeat_keeps_the_pairs_before_it(store: NoiseStore) -> None:
    cancel = threading.Event()
    request = CompareRequest(candidate=FLIP, tokens=64, workload="copy", repeats=3)
    sides = ScriptedSides(request, CompareScript())
    runs = 2 + 6 * NOISE_PAIRS + 2 + 6 * 6 + 4
    sides._on_round = lambda ms, committed: cancel.set() if sides.runs > runs else None
    report = compare(store, sides=sides, cancel=cancel, workload="copy", repeats=3)
    assert (report.n_pairs, len(report.blocks)) == (6, 6 * 6 + 4)


@pytest.mark.parametrize(
    ("runs", "verdict", "words", "pairs"),
    [
        (
            3,
            "cancelled",
            "before a pair was complete, so there are no figures; nothing is kept.",
            0,
        ),
        (
            WARM + 3,
            "cancelled",
            "only the noise floor is kept, for an hour (A against A, 10 pairs",
            0,
        ),
        (WARM + 4 * 8 + 3, "not resolved", "Cancelled after 4 pairs", 4),
        (WARM + 7 * 8 + 5, "better", "after 7 of 10 pairs", 7),
    ],
)
def test_a_cancel_keeps_the_complete_pairs(
    store: NoiseStore, runs: int, verdict: str, words: str, pairs: int
) -> None:
    cancel = threading.Event()
    request = CompareRequest(candidate=FLIP, tokens=64, repeats=1)
    sides = ScriptedSides(request, CompareScript())
    sides._on_round = lambda ms, committed: cancel.set() if sides.runs > runs else None
    report = compare(store, sides=sides, cancel=cancel)
    assert (report.verdict, report.n_pairs, len(report.pairs)) == (verdict, pairs, pairs)
    assert words in report.reason
    assert sides.restored == 1


@pytest.mark.parametrize(
    ("pairs", "kept"),
    [
        (0, "No pair was complete, so none is kept."),
        (1, "1 complete pair is kept."),
        (3, "3 complete pairs are kept."),
    ],
)
def test_an_error_keeps_the_complete_pairs_and_restores(
    store: NoiseStore, pairs: int, kept: str
) -> None:
    error = NumericsError("Layer 5 gave a NaN.", kept="The model stays.", next_step="Look at it.")
    request = CompareRequest(candidate=FLIP, tokens=64, repeats=1)
    script = CompareScript(fail_after_runs=WARM + pairs * 8 + 2, error=error)
    sides = ScriptedSides(request, script)
    with pytest.raises(CompareStopped) as caught:
        compare(store, sides=sides)
    assert caught.value.partial.n_pairs == pairs
    assert caught.value.cause == "Layer 5 gave a NaN."
    assert caught.value.kept == f"{kept} The model stays."
    assert caught.value.next_step == "Look at it."
    assert sides.restored == 1


def test_a_lack_of_memory_is_named_and_keeps_the_complete_pairs(store: NoiseStore) -> None:
    error = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 is full.")
    request = CompareRequest(candidate=FLIP, tokens=64, repeats=1)
    sides = ScriptedSides(request, CompareScript(fail_after_runs=WARM + 3 * 8 + 2, error=error))
    with pytest.raises(CompareStopped) as caught:
        compare(store, sides=sides)
    words = "There is not enough memory for the comparison; 2.15 GB at once were asked for."
    assert caught.value.cause == words
    assert caught.value.kept == "3 complete pairs are kept."
    assert "shorter context" in caught.value.next_step
    assert caught.value.__cause__ is error
    assert sides.restored == 1
