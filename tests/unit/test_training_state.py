# SPDX-License-Identifier: MIT OR Apache-2.0
"""A training run that stops and goes on: the same tensors, average, moments and progress."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ops.demo.training_state import TrainingState, rates


def begin() -> TrainingState:
    random = torch.Generator().manual_seed(1)
    tensors = {
        "inner": torch.randn(64, 64, generator=random),
        "norm": torch.randn(64, generator=random),
    }
    return TrainingState(tensors, dtype=torch.float32)


def one_step(state: TrainingState) -> None:
    (state.tensors["inner"] @ state.tensors["norm"]).square().sum().backward()
    state.optimiser.step(1e-2, 1e-2)
    state.step_done(longest=0.5)


def test_a_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    whole, stopped = begin(), begin()
    assert not begin().resume(path)
    for _ in range(2):
        one_step(whole), one_step(stopped)
    stopped.progress.pool, stopped.progress.seconds = 3, 1.5
    stopped.save(path, shape=(1, 2))
    assert [each.name for each in tmp_path.iterdir()] == ["state.pt"]
    assert torch.load(path, weights_only=True)["shape"] == (1, 2)
    again = begin()
    assert again.resume(path)
    assert again.progress == stopped.progress
    for _ in range(2):
        one_step(whole), one_step(again)
    assert again.progress.step == 4
    for name in whole.tensors:
        assert torch.equal(whole.tensors[name], again.tensors[name])
        assert torch.equal(whole.average[name], again.average[name])


def test_the_average_begins_with_the_first_step() -> None:
    state = begin()
    one_step(state)
    first = {name: value.detach().clone() for name, value in state.tensors.items()}
    assert all(torch.equal(state.average[name], first[name]) for name in first)
    one_step(state)
    for name, value in state.tensors.items():
        assert state.average[name] == pytest.approx((first[name] + value.detach()) / 2, abs=1e-6)


def test_the_rates_warm_up_stay_and_end_at_nothing() -> None:
    assert rates(0.0, 1.0, 2.0) == pytest.approx((0.02, 0.04))
    assert rates(0.3, 1.0, 2.0) == (1.0, 2.0)
    assert rates(1.0, 1.0, 2.0) == (0.0, 0.0)
