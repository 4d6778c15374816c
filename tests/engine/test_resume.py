# SPDX-License-Identifier: MIT OR Apache-2.0
"""A sequence that goes back to a mark, or on from its end, has the bits of one that was never elsewhere."""

from __future__ import annotations

import pytest
import torch
from backends import BackendKind, Loaded
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import STATE_CASE, token_ids

from engine.model.backend import Backend, Mark

pytestmark = pytest.mark.usefixtures("one_thread")

CAPACITY = 120
IDS = token_ids(STATE_CASE, CAPACITY, seed=21)
ELSEWHERE = token_ids(STATE_CASE, CAPACITY, seed=22)


def opened(kind: BackendKind, loaded: Loaded) -> Backend:
    return kind.make(loaded.config, loaded.weights, CAPACITY)


def rounds(backend: Backend, ids: list[int], counts: list[tuple[int, int]]) -> None:
    """Rounds that draft and keep some of what was right, along `ids` from the present length."""
    for drafted, right in counts:
        at = backend.length
        kept = min(1 + right, 1 + drafted)
        if drafted:
            backend.draft(ids[at], drafted)
        wrong = [(token + 1) % STATE_CASE.vocab for token in ids[at + kept : at + 1 + drafted]]
        backend.verify([*ids[at : at + kept], *wrong])
        backend.commit(kept)


def assert_same(kind: BackendKind, one: Backend, other: Backend) -> None:
    got, wanted = kind.snapshot(one), kind.snapshot(other)
    assert got.keys() == wanted.keys()
    for name, part in got.items():
        assert torch.equal(part, wanted[name]), name


SOME_ROUNDS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=6)


@settings(max_examples=12, deadline=None)
@given(
    start=st.integers(1, 40),
    before=SOME_ROUNDS,
    away=SOME_ROUNDS,
    more=st.integers(1, 30),
    after=SOME_ROUNDS,
)
def test_behind_a_mark_everything_is_as_if_nothing_had_followed(
    backend_factory: BackendKind,
    loaded: Loaded,
    start: int,
    before: list[tuple[int, int]],
    away: list[tuple[int, int]],
    more: int,
    after: list[tuple[int, int]],
) -> None:
    back, plain = opened(backend_factory, loaded), opened(backend_factory, loaded)
    marks: list[Mark] = []
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
    assert_same(backend_factory, back, plain)


@pytest.mark.parametrize("speculate", [(True, True), (True, False), (False, True), (False, False)])
def test_going_on_from_the_end_is_going_on(
    backend_factory: BackendKind, loaded: Loaded, speculate: tuple[bool, bool]
) -> None:
    resumed, plain = opened(backend_factory, loaded), opened(backend_factory, loaded)
    for backend in (resumed, plain):
        backend.reset(speculate=speculate[0])
        backend.prefill(IDS[:20])
        rounds(backend, IDS, [(2, 1), (0, 0)])
    resumed.resume(None, speculate=speculate[1])
    at = resumed.length
    for backend in (resumed, plain):
        backend.prefill(IDS[at : at + 9])
    got, wanted = backend_factory.snapshot(resumed), backend_factory.snapshot(plain)
    for name in wanted:
        if speculate[0] == speculate[1] or not name.startswith("mtp"):
            assert torch.equal(got[name], wanted[name]), name
    drafts = resumed.draft(IDS[at + 9], 2)
    assert len(drafts) == (2 if speculate[1] else 0)


def test_a_mark_ends_with_its_sequence(backend_factory: BackendKind, loaded: Loaded) -> None:
    backend = opened(backend_factory, loaded)
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


def test_a_head_that_began_anew_meanwhile_begins_anew(
    backend_factory: BackendKind, loaded: Loaded
) -> None:
    if not backend_factory.name.startswith("native"):
        pytest.skip("its head never begins anew")
    ids = token_ids(STATE_CASE, 420, seed=23)
    back, plain = (backend_factory.make(loaded.config, loaded.weights, 420) for _ in range(2))
    for backend in (back, plain):
        backend.reset(speculate=True)
        backend.prefill(ids[:20])
    mark = back.mark()
    rounds(back, ids, [(0, 0)] * 350)  # more than wait for entries
    back.resume(mark, speculate=True)
    for backend in (back, plain):
        backend.prefill(ids[20:50])
    assert len(back.draft(ids[50], 3)) == 3
    got, wanted = backend_factory.snapshot(back), backend_factory.snapshot(plain)
    for name, part in wanted.items():
        assert name.startswith("mtp") or torch.equal(got[name], part), name
    assert len(got["mtp keys"]) == 29  # of the rows since, each but the last
