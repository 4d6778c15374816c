# SPDX-License-Identifier: MIT OR Apache-2.0
"""What going back to a mark, or on from the end, promises on every backend."""

from __future__ import annotations

import pytest
import torch
from backends import BackendKind, Loaded
from oracle import STATE_CASE, token_ids
from state_checks import CAPACITY, assert_same

from engine.model.backend import Backend

Rounds = list[tuple[int, int]]  # (tokens drafted, right ones among them)

IDS = token_ids(STATE_CASE, CAPACITY, seed=21)
ELSEWHERE = token_ids(STATE_CASE, CAPACITY, seed=22)


def opened(kind: BackendKind, loaded: Loaded) -> Backend:
    """A backend with room for CAPACITY positions."""
    return kind.make(loaded.config, loaded.weights, CAPACITY)


def rounds(backend: Backend, ids: list[int], counts: Rounds) -> None:
    """Rounds that draft and keep what was right of it, along `ids` from the present length."""
    for drafted, right in counts:
        at = backend.length
        kept = min(1 + right, 1 + drafted)
        if drafted:
            backend.draft(ids[at], drafted)
        wrong = [(token + 1) % STATE_CASE.vocab for token in ids[at + kept : at + 1 + drafted]]
        backend.verify([*ids[at : at + kept], *wrong])
        backend.commit(kept)


def check_back_to_a_mark(
    kind: BackendKind,
    loaded: Loaded,
    *,
    start: int,
    before: Rounds,
    away: Rounds,
    more: int,
    after: Rounds,
) -> None:
    """Behind a mark everything is as if nothing had followed it."""
    back, plain = opened(kind, loaded), opened(kind, loaded)
    marks = []
    for backend in (back, plain):
        backend.reset(speculate=True)
        backend.prefill(IDS[:start])
        rounds(backend, IDS, before)
        marks.append(backend.mark())  # on both: it writes entries of the MTP head that would wait
    mark = marks[0]
    back.prefill(ELSEWHERE[:17])
    rounds(back, ELSEWHERE, away)
    back.resume(mark, speculate=True)
    assert back.length == mark.length == plain.length
    for backend in (back, plain):
        backend.prefill(IDS[mark.length : mark.length + more])
        rounds(backend, IDS, after)
    at = back.length
    assert back.draft(IDS[at], 3) == plain.draft(IDS[at], 3)
    assert_same(kind, back, plain)


def check_on_from_the_end(kind: BackendKind, loaded: Loaded, *, before: bool, after: bool) -> None:
    """Going on from the end is going on; `before`, `after`: whether the head is kept in step."""
    resumed, plain = opened(kind, loaded), opened(kind, loaded)
    for backend in (resumed, plain):
        backend.reset(speculate=before)
        backend.prefill(IDS[:20])
        rounds(backend, IDS, [(2, 1), (0, 0)])
    resumed.resume(None, speculate=after)
    at = resumed.length
    for backend in (resumed, plain):
        backend.prefill(IDS[at : at + 9])
    got, wanted = kind.snapshot(resumed), kind.snapshot(plain)
    for name in wanted:
        if before == after or not name.startswith("mtp"):
            assert torch.equal(got[name], wanted[name]), name
    assert len(resumed.draft(IDS[at + 9], 2)) == (2 if after else 0)


def check_end_of_marks(kind: BackendKind, loaded: Loaded) -> None:
    """A mark ends with its sequence, and with what lies before it."""
    backend = opened(kind, loaded)
    backend.prefill(IDS[:10])
    first = backend.mark()
    backend.prefill(IDS[10:20])
    second = backend.mark()
    assert backend.mark_bytes() > 0
    backend.resume(first, speculate=False)
    with pytest.raises(ValueError, match="mark at 20"):
        backend.resume(second, speculate=False)
    backend.reset(speculate=False)
    backend.prefill(IDS[:30])
    with pytest.raises(ValueError, match="mark at 10"):
        backend.resume(first, speculate=False)


def check_head_that_began_anew(kind: BackendKind, loaded: Loaded) -> None:
    """A head whose sequence began anew behind a mark begins anew at it; the trunk has the same bits."""
    ids = token_ids(STATE_CASE, 420, seed=23)
    back, plain = (kind.make(loaded.config, loaded.weights, 420) for _ in range(2))
    for backend in (back, plain):
        backend.reset(speculate=True)
        backend.prefill(ids[:20])
    mark = back.mark()
    rounds(back, ids, [(0, 0)] * 350)  # more than wait for entries
    back.resume(mark, speculate=True)
    for backend in (back, plain):
        backend.prefill(ids[20:50])
    assert len(back.draft(ids[50], 3)) == 3
    got, wanted = kind.snapshot(back), kind.snapshot(plain)
    for name, part in wanted.items():
        assert name.startswith("mtp") or torch.equal(got[name], part), name
    assert len(got["mtp keys"]) == 29  # of the rows since, each but the last


def check_head_that_rested(kind: BackendKind, loaded: Loaded) -> None:
    """A head that was let go and began anew behind a mark has lost the entries in front of it."""
    backend, anew = opened(kind, loaded), opened(kind, loaded)
    backend.reset(speculate=True)
    backend.prefill(IDS[:20])
    mark = backend.mark()
    backend.resume(None, speculate=False)
    backend.prefill(IDS[20:24])
    backend.resume(None, speculate=True)
    backend.prefill(ELSEWHERE[:12])
    backend.resume(mark, speculate=True)
    anew.reset(speculate=False)
    anew.prefill(IDS[:20])
    anew.resume(None, speculate=True)
    for each in (backend, anew):
        each.prefill(IDS[20:30])
    got, wanted = (each.draft_steps(IDS[30], 3, 2) for each in (backend, anew))
    assert got == wanted
    assert_same(kind, backend, anew)


def check_mark_behind_a_draft(kind: BackendKind, loaded: Loaded) -> None:
    """What was drafted in front of a mark, and not committed, leaves no trace behind it."""
    backend, plain = opened(kind, loaded), opened(kind, loaded)
    for each in (backend, plain):
        each.reset(speculate=True)
        each.prefill(IDS[:20])
    backend.draft(ELSEWHERE[20], 3)
    mark = backend.mark()
    backend.prefill(ELSEWHERE[20:31])
    backend.resume(mark, speculate=True)
    for each in (backend, plain):
        each.prefill(IDS[20:30])
    assert_same(kind, backend, plain)
