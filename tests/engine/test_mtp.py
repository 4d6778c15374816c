# SPDX-License-Identifier: MIT OR Apache-2.0
"""The MTP head against a twin written from the formulas, and its cache over every history of rounds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from backends import BackendKind, Loaded
from mtp_checks import (
    CAPACITY,
    Twin,
    assert_equals_replay,
    check_drafts_need_a_head,
    check_mtp_cache_over_rounds,
    draft_of_twin,
)
from oracle import CASES, MOE_CASES, STATE_CASE, Case, oracle_hidden, token_ids

from engine.model.reference import ReferenceBackend

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("case", [*CASES, *MOE_CASES], ids=lambda case: case.name)
def test_rows_agree_with_the_twin(loaded_case: Callable[[Case], Loaded], case: Case) -> None:
    loaded = loaded_case(case)
    ids = token_ids(case, 48, seed=21)
    hidden = oracle_hidden(loaded.oracle, ids[:-1])
    twin = Twin(loaded)
    wanted = twin.rows(hidden, ids[1:])
    backend = ReferenceBackend(loaded.config, loaded.weights, capacity=64, dtype=torch.float32)
    mtp = backend._weights.mtp
    assert mtp is not None
    got = backend._mtp_forward(mtp, hidden, ids[1:], 0)
    assert ((got - wanted) @ twin.head.T).abs().max() < 2e-4
    for name in twin.tensors:
        damaged = Twin(loaded)
        damaged.tensors[name] = torch.zeros_like(damaged.tensors[name])
        assert ((got - damaged.rows(hidden, ids[1:])) @ twin.head.T).abs().max() > 1e-2, name


@pytest.mark.parametrize("case", [*CASES, *MOE_CASES], ids=lambda case: case.name)
def test_drafts_agree_with_the_twin(loaded_case: Callable[[Case], Loaded], case: Case) -> None:
    loaded = loaded_case(case)
    backend = ReferenceBackend(loaded.config, loaded.weights, capacity=160, dtype=torch.float32)
    for length in (1, 2, 17, 130):
        ids = token_ids(case, length + 1, seed=22)
        backend.reset(speculate=True)
        cut = length // 2
        if cut:
            backend.prefill(ids[:cut])
        backend.prefill(ids[cut:length])
        wanted = draft_of_twin(loaded, ids[:length], ids[length], 4)
        assert backend.draft(ids[length], 4) == wanted
        assert backend.draft(ids[length], 2) == wanted[:2], "a draft leaves no trace"


@pytest.mark.parametrize("seed", range(3))
def test_cache_stays_in_step_over_rounds(
    backend_factory: BackendKind, loaded: Loaded, seed: int
) -> None:
    check_mtp_cache_over_rounds(backend_factory, loaded, seed)


def test_rounds_without_drafting_keep_the_cache_whole(
    backend_factory: BackendKind, loaded: Loaded
) -> None:
    ids = token_ids(STATE_CASE, CAPACITY, seed=31)
    backend = backend_factory.make(loaded.config, loaded.weights, CAPACITY)
    backend.reset(speculate=True)
    backend.prefill(ids[:5])
    for token in ids[5:100]:
        backend.verify([token])
        backend.commit(1)
    assert_equals_replay(backend_factory, loaded, backend, ids[:100], 5)


@pytest.mark.parametrize(
    ("prompt", "behind"), [(4, 6), (4, 13), (4, 15), (4, 31), (CAPACITY - 2, 0)]
)
def test_a_backlog_of_any_length_is_caught_up_on(
    backend_factory: BackendKind, loaded: Loaded, prompt: int, behind: int
) -> None:
    """Passes are filled up to a power of two rows, but never beyond what the cache holds."""
    ids = token_ids(STATE_CASE, CAPACITY, seed=37)
    backend = backend_factory.make(loaded.config, loaded.weights, CAPACITY)
    backend.reset(speculate=True)
    backend.prefill(ids[:prompt])
    for token in ids[prompt : prompt + behind]:
        backend.verify([token])
        backend.commit(1)
    backend.draft(ids[prompt + behind], 1)
    assert_equals_replay(backend_factory, loaded, backend, ids[: prompt + behind], prompt)


def test_no_draft_without_a_head_or_a_committed_token(
    backend_factory: BackendKind, loaded: Loaded
) -> None:
    check_drafts_need_a_head(backend_factory, loaded)
