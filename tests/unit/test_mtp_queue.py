# SPDX-License-Identifier: MIT OR Apache-2.0
"""The bookkeeping of MTP entries, replayed against a plain list of committed tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.model.mtp_queue import MtpQueue


@given(data=st.data())
def test_every_entry_is_paired_with_the_token_that_came(data: st.DataObject) -> None:
    queue = MtpQueue(active=True)
    committed: list[int] = []
    entries: list[int] = []  # the token each entry was written with
    marks: list[int] = []  # entries at places to go back to, each in front of one row that waits
    for _ in range(data.draw(st.integers(1, 12))):
        action = data.draw(st.sampled_from(["commit", "draft", "extend", "mark", "back"]))
        if action == "commit":
            ids = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
            if queue.paired_with not in (None, ids[0]):
                queue.unpair()
                entries.pop()
            queue.add(ids)
            committed += ids
        elif action == "draft" and queue.positions:
            if queue.paired_with is not None:
                queue.unpair()
                entries.pop()
            anchor = data.draw(st.integers(0, 3))
            entries += [*queue.following, anchor]
            queue.pair_last(anchor)
        elif action == "extend" and queue.following:
            entries += queue.following
            queue.write(len(queue.following))
        elif action == "mark" and queue.positions:
            if queue.paired_with is not None:
                queue.unpair()
                entries.pop()
            entries += queue.following
            queue.write(len(queue.following))
            marks.append(queue.written)
        elif action == "back" and marks:
            written = data.draw(st.sampled_from(marks))
            marks = [each for each in marks if each <= written]
            queue.go_back(written)
            del entries[written:], committed[written + 1 :]
        assert queue.positions == len(committed)
        assert queue.written == len(entries)
        known = len(committed) - 1
        assert entries[:known] == committed[1 : 1 + len(entries)][:known]
        assert len(queue.following) == max(0, queue.waiting - 1)
