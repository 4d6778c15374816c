# SPDX-License-Identifier: MIT OR Apache-2.0
"""Rows of plain rounds reach the drafters with the bits and in the order of rows told one by one."""

from __future__ import annotations

import pytest
import torch
from backends import KINDS, Loaded
from oracle import STATE_CASE, token_ids

pytestmark = pytest.mark.usefixtures("one_thread")

NATIVE = KINDS[-1]
PROMPT, CAPACITY = 20, 400


@pytest.mark.parametrize("plain_rounds", [1, 3, 63, 64, 65, 130])
def test_plain_rounds_leave_the_entries_of_a_prompt(loaded: Loaded, plain_rounds: int) -> None:
    """Behind dropped passes, plain rounds, a chain and a draft, all entries are those of one prompt."""
    ids = token_ids(STATE_CASE, CAPACITY, seed=11)
    end = PROMPT + plain_rounds
    backend = NATIVE.make(loaded.config, loaded.weights, CAPACITY)
    backend.reset(speculate=True)
    backend.prefill(ids[:PROMPT])
    for token in ids[PROMPT:end]:
        backend.verify([token + 1 if token == 0 else token - 1])  # never committed
        backend.verify([token])
        backend.commit(1)
    backend.verify(ids[end : end + 4])
    backend.commit(2)
    drafted = backend.draft_steps(ids[end + 2], 3, 2)
    backend.verify([ids[end + 2]])
    backend.commit(1)
    whole = NATIVE.make(loaded.config, loaded.weights, CAPACITY)
    whole.reset(speculate=True)
    whole.prefill(ids[: end + 2])
    wanted = whole.draft_steps(ids[end + 2], 3, 2)
    assert drafted == wanted
    whole.verify([ids[end + 2]])
    whole.commit(1)
    got, expected = NATIVE.snapshot(backend), NATIVE.snapshot(whole)
    assert got.keys() == expected.keys()
    for name in got:
        assert torch.equal(got[name], expected[name]), name


def test_a_prompt_goes_on_behind_plain_rounds(loaded: Loaded) -> None:
    ids = token_ids(STATE_CASE, CAPACITY, seed=14)
    snapshots = []
    for rounds in (5, 0):
        backend = NATIVE.make(loaded.config, loaded.weights, CAPACITY)
        backend.reset(speculate=True)
        backend.prefill(ids[:PROMPT])
        for token in ids[PROMPT : PROMPT + rounds]:
            backend.verify([token])
            backend.commit(1)
        backend.prefill(ids[PROMPT + rounds : PROMPT + 9])
        snapshots.append(NATIVE.snapshot(backend))
    assert all(torch.equal(part, snapshots[1][name]) for name, part in snapshots[0].items())


def test_drafts_between_a_pass_and_its_commit_leave_the_row_as_it_is(loaded: Loaded) -> None:
    ids = token_ids(STATE_CASE, CAPACITY, seed=13)
    drafts = []
    for asked in (False, True):
        backend = NATIVE.make(loaded.config, loaded.weights, CAPACITY)
        backend.reset(speculate=True)
        backend.prefill(ids[:PROMPT])
        for token in ids[PROMPT : PROMPT + 3]:
            backend.verify([token])
            backend.commit(1)
        backend.verify([ids[PROMPT + 3]])
        if asked:
            backend.draft_steps(ids[PROMPT + 3], 1, 1)
        backend.commit(1)
        drafts.append(backend.draft_steps(ids[PROMPT + 4], 4, 3))
    assert drafts[0] == drafts[1]


def test_a_new_sequence_knows_nothing_of_the_rows_before(loaded: Loaded) -> None:
    ids = token_ids(STATE_CASE, CAPACITY, seed=12)
    backend = NATIVE.make(loaded.config, loaded.weights, CAPACITY)
    drafts = []
    for rounds in (5, 0):
        backend.reset(speculate=True)
        backend.prefill(ids[:PROMPT])
        drafts.append(backend.draft_steps(ids[PROMPT], 4, 1))
        for token in ids[PROMPT : PROMPT + rounds]:
            backend.verify([token])
            backend.commit(1)
    assert drafts[0] == drafts[1]
