# SPDX-License-Identifier: MIT OR Apache-2.0
"""A sequence that goes back to a mark, or on from its end, has the bits of one that was never elsewhere."""

from __future__ import annotations

import pytest
from backends import BackendKind, Loaded
from hypothesis import given, settings
from hypothesis import strategies as st
from resume_checks import (
    Rounds,
    check_back_to_a_mark,
    check_end_of_marks,
    check_head_that_began_anew,
    check_head_that_rested,
    check_mark_behind_a_draft,
    check_on_from_the_end,
)

pytestmark = pytest.mark.usefixtures("one_thread")

SOME_ROUNDS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=4)


@settings(max_examples=12, deadline=None)
@given(
    start=st.integers(1, 30),
    before=SOME_ROUNDS,
    away=SOME_ROUNDS,
    more=st.integers(1, 20),
    after=SOME_ROUNDS,
)
def test_behind_a_mark_everything_is_as_if_nothing_had_followed(
    backend_factory: BackendKind,
    loaded: Loaded,
    start: int,
    before: Rounds,
    away: Rounds,
    more: int,
    after: Rounds,
) -> None:
    check_back_to_a_mark(
        backend_factory, loaded, start=start, before=before, away=away, more=more, after=after
    )


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("after", [True, False])
def test_going_on_from_the_end_is_going_on(
    backend_factory: BackendKind, loaded: Loaded, before: bool, after: bool
) -> None:
    check_on_from_the_end(backend_factory, loaded, before=before, after=after)


def test_a_mark_ends_with_its_sequence(backend_factory: BackendKind, loaded: Loaded) -> None:
    check_end_of_marks(backend_factory, loaded)


def test_a_draft_in_front_of_a_mark_leaves_no_trace(
    backend_factory: BackendKind, loaded: Loaded
) -> None:
    check_mark_behind_a_draft(backend_factory, loaded)


def test_a_head_that_began_anew_meanwhile_begins_anew(
    backend_factory: BackendKind, loaded: Loaded
) -> None:
    if backend_factory.name != "native":
        pytest.skip("its head never begins anew, or does so as the native one's")
    check_head_that_began_anew(backend_factory, loaded)


def test_a_head_that_rested_meanwhile_begins_anew(
    backend_factory: BackendKind, loaded: Loaded
) -> None:
    check_head_that_rested(backend_factory, loaded)
