# SPDX-License-Identifier: MIT OR Apache-2.0
"""Fixtures: the backends under test and the random models they run, each built once in a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from backends import KINDS, BackendKind, Loaded, load_case
from oracle import STATE_CASE, Case

pytest.register_assert_rewrite("mtp_checks", "state_checks")


@pytest.fixture(scope="session", params=KINDS, ids=lambda kind: kind.name)
def backend_factory(request: pytest.FixtureRequest) -> BackendKind:
    """Every backend in turn."""
    return request.param


@pytest.fixture(scope="session")
def loaded_case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Loaded]:
    """Gives a case as it was saved and read back."""
    known: dict[str, Loaded] = {}

    def load(case: Case) -> Loaded:
        if case.name not in known:
            known[case.name] = load_case(case, tmp_path_factory.mktemp(case.name))
        return known[case.name]

    return load


@pytest.fixture(scope="session")
def loaded(loaded_case: Callable[[Case], Loaded]) -> Loaded:
    """The small model for tests of the sequence state."""
    return loaded_case(STATE_CASE)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """One thread for PyTorch, restored afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
