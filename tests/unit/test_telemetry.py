# SPDX-License-Identifier: MIT OR Apache-2.0
"""The ring of round records: order, overwriting, and what a reader is told it lost."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.measure.telemetry import ROUND_DTYPE, RoundRing


def append(ring: RoundRing, count: int) -> None:
    """Append `count` records whose context is 3 times their index."""
    for _ in range(count):
        ring.append(context_tokens=3 * ring.count, round_ms=0.5)


def test_fields_arrive_as_written_and_the_rest_is_zero() -> None:
    ring = RoundRing(8)
    ring.append(request_id=7, end_s=1.25, committed_tokens=4, drafter=1, bytes_read=1 << 40)
    rows, cursor, lost = ring.since(0)
    assert (cursor, lost, len(rows)) == (1, 0, 1)
    row = rows[0]
    assert rows.dtype == ROUND_DTYPE
    assert (row["request_id"], row["end_s"], row["committed_tokens"]) == (7, 1.25, 4)
    assert row["bytes_read"] == 1 << 40
    assert row["verify_ms"] == 0
    ring.append()
    assert ring.since(1)[0][0]["round_index"] == 1


def test_an_unknown_field_is_refused_and_not_published() -> None:
    ring = RoundRing(8)
    with pytest.raises(TypeError, match="tokens"):
        ring.append(tokens=3)
    assert ring.count == 0


def test_a_reused_row_keeps_nothing_of_the_record_before() -> None:
    ring = RoundRing(2)
    ring.append(accepted_tokens=9)
    ring.append(accepted_tokens=9)
    ring.append(committed_tokens=1)
    assert ring.since(2)[0][0]["accepted_tokens"] == 0


def test_a_slow_reader_is_told_what_it_lost() -> None:
    ring = RoundRing(8)
    append(ring, 20)
    rows, cursor, lost = ring.since(0)
    assert list(rows["round_index"]) == list(range(13, 20))
    assert (cursor, lost) == (20, 13)
    assert ring.since(cursor)[2] == 0


def test_rows_are_a_copy() -> None:
    ring = RoundRing(4)
    append(ring, 2)
    rows = ring.since(0)[0]
    append(ring, 4)
    assert list(rows["context_tokens"]) == [0, 3]


@given(
    capacity=st.integers(2, 9),
    steps=st.lists(st.tuples(st.integers(0, 25), st.booleans()), max_size=30),
)
def test_every_record_is_read_once_or_counted_as_lost(
    capacity: int, steps: list[tuple[int, bool]]
) -> None:
    ring = RoundRing(capacity)
    cursor, seen, lost_in_all = 0, [], 0
    for count, reads in steps:
        append(ring, count)
        if reads:
            rows, cursor, lost = ring.since(cursor)
            assert cursor == ring.count
            assert len(rows) + lost >= 0
            assert np.array_equal(rows["context_tokens"], 3 * rows["round_index"])
            seen += rows["round_index"].tolist()
            lost_in_all += lost
            assert len(seen) + lost_in_all == cursor
    assert seen == sorted(set(seen))


class _Interrupted:
    """Rows whose reader is interrupted by the writer, just after the copy was made."""

    def __init__(self, ring: RoundRing, count: int) -> None:
        self.rows, self.ring, self.count = ring._rows, ring, count

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: object) -> np.ndarray:
        copied = self.rows[index]
        self.ring._rows = self.rows
        append(self.ring, self.count)
        return copied


@pytest.mark.parametrize("written_meanwhile", [1, 3, 7, 40])
def test_rows_overtaken_while_they_were_copied_count_as_lost_once(written_meanwhile: int) -> None:
    ring = RoundRing(8)
    append(ring, 7)
    ring._rows = _Interrupted(ring, written_meanwhile)
    rows, cursor, lost = ring.since(0)
    assert cursor == 7
    assert len(rows) + lost == 7
    # The writer may be filling the row after its last record, too.
    safe_from = ring.count - 8 + 1
    assert list(rows["round_index"]) == list(range(min(safe_from, 7), 7))
    rows, cursor, lost_later = ring.since(cursor)
    assert len(rows) + lost_later == written_meanwhile


def test_a_reader_beside_the_writer_never_sees_a_torn_row() -> None:
    ring = RoundRing(16)
    total = 20_000
    writer = threading.Thread(target=append, args=(ring, total), name="ring writer")
    writer.start()
    cursor = read = lost_in_all = 0
    while cursor < total:
        rows, cursor, lost = ring.since(cursor)
        assert np.array_equal(rows["context_tokens"], 3 * rows["round_index"])
        assert np.all(np.diff(rows["round_index"]) == 1)
        read += len(rows)
        lost_in_all += lost
    writer.join()
    assert read + lost_in_all == total
