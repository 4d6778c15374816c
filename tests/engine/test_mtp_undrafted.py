# SPDX-License-Identifier: MIT OR Apache-2.0
"""Long stretches that nobody drafts for: the MTP head computes nothing, and drafts again behind them."""

from __future__ import annotations

import pytest
import torch
from backends import KINDS, Loaded
from oracle import STATE_CASE, token_ids

from engine.model.arena import MAX_ROWS
from engine.model.mtp_queue import ROWS_KEPT, MtpQueue

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT, ROUNDS = 20, MAX_ROWS + 40
CAPACITY = PROMPT + ROUNDS + 8
NATIVE = KINDS[-1]


def test_undrafted_rounds_cost_the_head_nothing(loaded: Loaded) -> None:
    ids = token_ids(STATE_CASE, CAPACITY, seed=43)
    backend = NATIVE.make(loaded.config, loaded.weights, CAPACITY)
    backend.reset(speculate=True)
    backend.prefill(ids[:PROMPT])
    written = ids[PROMPT : PROMPT + ROUNDS]
    for token in written:
        backend.verify([token])
        backend.commit(1)
    passes = {name for name in backend.engaged() if name.startswith("draft")}
    assert passes == set()
    assert len(backend.draft_steps(ids[PROMPT + ROUNDS], 3, 1)) == 3
    # Values are not rotated: those of the newest positions are the ones of a cache that holds everything.
    whole = NATIVE.make(loaded.config, loaded.weights, CAPACITY)
    whole.reset(speculate=True)
    whole.prefill(ids[: PROMPT + ROUNDS])
    kept = NATIVE.snapshot(backend)["mtp values"]
    everything = NATIVE.snapshot(whole)["mtp values"]
    assert ROWS_KEPT <= len(kept) < MAX_ROWS  # since the sequence started anew
    assert torch.equal(kept, everything[-len(kept) :])


@pytest.mark.parametrize("waiting", [1, 2, 3, 5])
def test_a_draft_behind_another_anchor_starts_from_the_same_row(
    loaded: Loaded, waiting: int
) -> None:
    ids = token_ids(STATE_CASE, CAPACITY, seed=44)
    drafts = []
    for anchors in ((3, 9), (9,)):
        backend = NATIVE.make(loaded.config, loaded.weights, CAPACITY)
        backend.reset(speculate=True)
        backend.prefill(ids[:PROMPT])
        backend.draft_steps(ids[PROMPT], 1, 1)
        backend.verify(ids[PROMPT : PROMPT + waiting])
        backend.commit(waiting)
        drafts.append([backend.draft_steps(anchor, 2, 3) for anchor in anchors][-1])
    assert drafts[0] == drafts[1]


def test_a_sequence_that_starts_anew_keeps_its_newest_rows() -> None:
    queue = MtpQueue(active=True)
    queue.add(range(100))
    queue.write(10)
    assert (queue.positions, queue.waiting, queue.following) == (100, 90, list(range(11, 100)))
    assert queue.start_anew() == 90 - ROWS_KEPT
    assert (queue.positions, queue.written, queue.waiting) == (ROWS_KEPT, 0, ROWS_KEPT)
    assert queue.following == list(range(100 - ROWS_KEPT + 1, 100))
    queue.add([7])
    assert queue.following[-1] == 7
    assert queue.positions == ROWS_KEPT + 1
