# SPDX-License-Identifier: MIT OR Apache-2.0
"""Rows that are not kept leave no trace: the state has the bits of never having drafted."""

from __future__ import annotations

import pytest
import torch
from backends import BackendKind, Loaded
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import STATE_CASE
from state_checks import (
    PROMPT,
    assert_same,
    check_abandoned_pass,
    check_rejected_rows,
    prefilled,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("drafted", "kept"), [(1, 1), (2, 1), (2, 2), (3, 1), (4, 1), (4, 3), (7, 2), (7, 7)]
)
def test_rejected_rows_leave_no_trace(
    backend_factory: BackendKind, loaded: Loaded, drafted: int, kept: int
) -> None:
    check_rejected_rows(backend_factory, loaded, drafted, kept)


def test_an_abandoned_verify_pass_leaves_no_trace(
    backend_factory: BackendKind, loaded: Loaded
) -> None:
    check_abandoned_pass(backend_factory, loaded)


@settings(max_examples=12, deadline=None)
@given(rounds=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=10))
def test_any_history_of_rounds_equals_plain_decoding(
    backend_factory: BackendKind, loaded: Loaded, rounds: list[tuple[int, int]]
) -> None:
    """Each round is (drafted tokens, accepted of them); 0 drafted is a round without the drafter."""
    drafting, ids = prefilled(backend_factory, loaded)
    plain, _ = prefilled(backend_factory, loaded)
    at = PROMPT
    for drafted, accepted in rounds:
        hits = min(drafted, accepted)
        if drafted:
            drafting.draft(ids[at], drafted)
        rows = ids[at : at + 1 + hits]
        misses = [(token + 5) % STATE_CASE.vocab for token in ids[at + 1 + hits : at + 1 + drafted]]
        verified = drafting.verify([*rows, *misses])
        best = verified.best[: 1 + hits]
        drafting.commit(1 + hits)
        singly = []
        for token in rows:
            singly += plain.verify([token]).best
            plain.commit(1)
        assert best == singly
        at += 1 + hits
    assert drafting.draft(ids[at], 4) == plain.draft(ids[at], 4)
    assert_same(backend_factory, drafting, plain)


def test_commit_keeps_only_rows_of_the_last_verify_pass(
    backend_factory: BackendKind, loaded: Loaded
) -> None:
    backend, ids = prefilled(backend_factory, loaded)
    before = backend_factory.snapshot(backend)
    with pytest.raises(ValueError, match="1 to 0 rows"):
        backend.commit(1)
    backend.verify(ids[PROMPT : PROMPT + 3])
    for keep in (0, -1, 4):
        with pytest.raises(ValueError, match=f"1 to 3 rows of the last verify pass, got {keep}"):
            backend.commit(keep)
    for name, part in backend_factory.snapshot(backend).items():
        assert torch.equal(part, before[name]), name
    backend.commit(3)
    assert backend.length == PROMPT + 3
    with pytest.raises(ValueError, match="1 to 0 rows"):
        backend.commit(1)


def test_a_prefill_or_a_reset_drops_the_verify_pass(
    backend_factory: BackendKind, loaded: Loaded
) -> None:
    backend, ids = prefilled(backend_factory, loaded)
    backend.verify(ids[PROMPT : PROMPT + 3])
    backend.prefill(ids[PROMPT : PROMPT + 2])
    with pytest.raises(ValueError, match="1 to 0 rows"):
        backend.commit(2)
    backend.verify(ids[PROMPT + 2 : PROMPT + 4])
    backend.reset(speculate=True)
    with pytest.raises(ValueError, match="1 to 0 rows"):
        backend.commit(1)
    assert backend.length == 0


def test_reset_starts_anew(backend_factory: BackendKind, loaded: Loaded) -> None:
    used, ids = prefilled(backend_factory, loaded)
    used.verify(ids[:4])
    used.commit(2)
    used.reset(speculate=True)
    used.prefill(ids[:PROMPT])
    fresh, _ = prefilled(backend_factory, loaded)
    assert used.draft(ids[PROMPT], 4) == fresh.draft(ids[PROMPT], 4)
    assert_same(backend_factory, used, fresh)
