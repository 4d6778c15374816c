# SPDX-License-Identifier: MIT OR Apache-2.0
"""Sums of step times over the runs of a recording, also for whoever reads them while a pass ends."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from engine.model import pass_times
from engine.model.backend import OperationTime
from engine.model.pass_times import PassTimes
from kernels.tape import StepModel

MODELS = [StepModel("norm", 10, 1), StepModel("head", 100, 2), StepModel("norm", 30, 4)]


def tape(*stamps_ns: int) -> SimpleNamespace:
    return SimpleNamespace(models=MODELS, stamps_ns=np.array(stamps_ns, np.uint64))


def test_steps_are_summed_by_their_name_over_all_runs_and_recordings() -> None:
    times = PassTimes()
    near_the_end = 2**64 - 1_000_000
    times.add("one", tape(0, 2_000_000, 5_000_000, 5_500_000), 0)
    times.add("one", tape(*(near_the_end + each for each in (0, 100_000, 300_000, 400_000))), 0)
    times.add("other", tape(7, 1_000_007, 1_000_007, 1_000_007), 0)
    assert times.by_operation() == [
        OperationTime("norm", 6, pytest.approx(3.7), 120, 15),
        OperationTime("head", 3, pytest.approx(3.2), 300, 6),
    ]
    times.reset()
    assert times.by_operation() == []


def test_what_attention_reads_follows_the_length_at_each_run() -> None:
    models = [
        StepModel("attention", 16, 64, position_bytes=4, position_flops=32),
        StepModel("block attention", 8, 2, position_bytes=1, position_flops=3, window=100),
    ]
    times = PassTimes()
    for length in (40, 140):
        stamps_ns = np.array((0, 1_000_000, 3_000_000), np.uint64)
        times.add("one", SimpleNamespace(models=models, stamps_ns=stamps_ns), length)
    assert times.by_operation() == [
        OperationTime("attention", 2, 2.0, 2 * 16 + 4 * 180, 2 * 64 + 32 * 180),
        OperationTime("block attention", 2, 4.0, 2 * 8 + 140, 2 * 2 + 3 * 140),
    ]


def test_what_a_run_counted_is_read_beside_what_every_run_reads() -> None:
    counter = torch.zeros(1, dtype=torch.int32)
    models = [
        StepModel("experts", 10, 0, counter=counter, counter_bytes=1000),
        StepModel("norm", 1, 0),
    ]
    times = PassTimes()
    for count in (3, 5):
        counter[0] = count
        stamps_ns = np.array((0, 1_000_000, 2_000_000), np.uint64)
        times.add("one", SimpleNamespace(models=models, stamps_ns=stamps_ns), 0)
    assert [each.bytes_read for each in times.by_operation()] == [8020, 2]


def test_a_pass_that_ends_while_somebody_reads_counts_whole_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times, clock_ns = PassTimes(), 10**15
    ran = tape(clock_ns, clock_ns + 1_000_000, clock_ns + 3_000_000, clock_ns + 6_000_000)
    times.add("one", ran, 0)
    diff = np.diff

    def interrupted(stamps_ns: np.ndarray) -> np.ndarray:
        begun = stamps_ns[:2].copy()
        times.add("one", ran, 0)
        return diff(np.concatenate([begun, stamps_ns[2:]]))

    monkeypatch.setattr(pass_times.np, "diff", interrupted)
    assert [each.total_ms for each in times.by_operation()] == [4.0, 2.0]
