# SPDX-License-Identifier: MIT OR Apache-2.0
"""What of an earlier request is not read again, and which marks are kept for that."""

from __future__ import annotations

import pytest

from engine.cache.prefix import INTERVAL, TAIL, PrefixCache
from engine.model.backend import PREFILL_CHUNK, Mark

GB = 1 << 30


class Sequence:
    """As much of a backend as marks need: it holds tokens, and copies of them as marks."""

    def __init__(self, mark_bytes: int = 1) -> None:
        self.tokens: list[int] = []
        self.sequence = 0
        self.free = GB
        self.breaks = False
        self._mark_bytes = mark_bytes

    @property
    def length(self) -> int:
        return len(self.tokens)

    def mark_bytes(self) -> int:
        return self._mark_bytes

    def free_bytes(self) -> int:
        return self.free

    def reset(self, *, speculate: bool) -> None:
        self.tokens = []
        self.sequence += 1

    def mark(self) -> Mark:
        return Mark(self.sequence, self.length, list(self.tokens))

    def resume(self, mark: Mark | None, *, speculate: bool) -> None:
        if self.breaks:
            raise MemoryError
        if mark is not None:
            assert mark.sequence == self.sequence
            assert mark.state == self.tokens[: mark.length]
            self.tokens = list(mark.state)


def read(cache: PrefixCache, backend: Sequence, prompt: list[int], budget: int = GB) -> int:
    """Read a prompt as an engine does; the tokens that were kept."""
    at = kept = cache.begin(prompt, speculate=True, budget_bytes=budget)
    assert backend.tokens == prompt[:kept]
    while at < len(prompt):
        end = cache.next_stop(at, len(prompt))
        assert at < end <= min(at + PREFILL_CHUNK, len(prompt))
        backend.tokens += prompt[at:end]
        cache.passed(end, len(prompt))
        at = end
    return kept


def answer(cache: PrefixCache, backend: Sequence, tokens: list[int]) -> None:
    """All but the last of `tokens` are committed."""
    backend.tokens += tokens[:-1]
    cache.wrote(tokens)


def test_a_chat_goes_on_from_its_end_and_from_before_an_answer_that_changed() -> None:
    backend = Sequence()
    cache = PrefixCache(backend)
    prompt = list(range(100, 300))
    assert read(cache, backend, prompt) == 0
    answer(cache, backend, [1, 2, 3, 4])
    kept_answer = [*prompt, 1, 2, 3, 4, 50, 51]
    assert read(cache, backend, kept_answer) == 203  # the 4 was chosen, but not read
    answer(cache, backend, [7, 8])
    other = [*prompt[:-2], 60, *range(40)]  # without what opened the answer
    assert read(cache, backend, other) == len(prompt) - TAIL


def test_the_same_prompt_again_reads_its_end_alone() -> None:
    backend = Sequence()
    cache = PrefixCache(backend)
    prompt = list(range(500))
    read(cache, backend, prompt)
    answer(cache, backend, [9] * 20)
    assert read(cache, backend, prompt) == 500 - TAIL
    assert read(cache, backend, list(range(1000, 1100))) == 0
    assert read(cache, backend, prompt) == 0


def test_a_long_prompt_has_marks_at_intervals() -> None:
    backend = Sequence()
    cache = PrefixCache(backend)
    prompt = list(range(3 * INTERVAL + 100))
    read(cache, backend, prompt)
    fork = prompt[: 2 * INTERVAL + 7] + [-1] * 50
    assert read(cache, backend, fork) == 2 * INTERVAL
    assert read(cache, backend, prompt) == 2 * INTERVAL


def test_marks_of_a_way_that_was_left_are_gone() -> None:
    backend = Sequence()
    cache = PrefixCache(backend)
    prompt = list(range(3 * INTERVAL + 100))
    read(cache, backend, prompt)
    fork = prompt[: INTERVAL + 7] + [-1] * (2 * INTERVAL)
    assert read(cache, backend, fork) == INTERVAL
    again = fork[: 2 * INTERVAL + 50] + [-2] * 60
    assert read(cache, backend, again) == 2 * INTERVAL


def test_the_mark_that_saves_least_goes_first_and_the_newest_stays() -> None:
    backend = Sequence(mark_bytes=100)
    cache = PrefixCache(backend)
    prompt = list(range(4 * INTERVAL))
    read(cache, backend, prompt, budget=299)  # room for two
    marks = [each.length for each in cache._marks]
    assert len(marks) == 2
    assert marks[-1] == len(prompt) - TAIL
    assert read(cache, backend, prompt, budget=299) == marks[-1]


def test_nothing_is_marked_without_memory_or_where_it_saves_little() -> None:
    backend = Sequence(mark_bytes=100)
    cache = PrefixCache(backend)
    assert read(cache, backend, list(range(400)), budget=99) == 0
    assert cache._marks == []
    backend.free = 99
    cache.forget()
    read(cache, backend, list(range(400)))
    assert cache._marks == []
    backend.free = GB
    cache.forget()
    read(cache, backend, list(range(40)))
    assert cache._marks == []
    # The end of what is held needs no mark.
    assert read(cache, backend, list(range(60))) == 40


def test_what_somebody_else_did_to_the_backend_is_not_taken_for_its_own() -> None:
    backend = Sequence()
    cache = PrefixCache(backend)
    prompt = list(range(200))
    read(cache, backend, prompt)
    backend.reset(speculate=False)
    backend.tokens = list(range(200))
    assert read(cache, backend, prompt) == 0
    cache.forget()
    cache.wrote([1, 2])
    assert read(cache, backend, prompt) == 0


def test_a_prompt_that_was_broken_off_counts_as_far_as_it_was_read() -> None:
    backend = Sequence()
    cache = PrefixCache(backend)
    prompt = list(range(600))
    cache.begin(prompt, speculate=True, budget_bytes=GB)
    backend.tokens = prompt[:PREFILL_CHUNK]
    assert read(cache, backend, prompt) == PREFILL_CHUNK


def test_tokens_that_were_committed_unseen_are_not_built_upon() -> None:
    backend = Sequence()
    cache = PrefixCache(backend)
    prompt = list(range(200))
    read(cache, backend, prompt)
    backend.tokens += [1, 2, 3]  # and nobody says so
    assert read(cache, backend, [*prompt, 1, 2, 3, 4]) == 200 - TAIL


def test_where_memory_ran_short_the_newest_place_takes_the_room_of_another() -> None:
    backend = Sequence(mark_bytes=100)
    cache = PrefixCache(backend)
    prompt = list(range(2 * INTERVAL + 100))
    read(cache, backend, prompt)
    before = [each.length for each in cache._marks]
    assert before == [INTERVAL, 2 * INTERVAL, len(prompt) - TAIL]
    backend.free = 99
    longer = [*prompt, *range(200)]
    read(cache, backend, longer)
    assert [each.length for each in cache._marks] == [*before[:-1], len(longer) - TAIL]


def test_a_backend_that_failed_on_its_way_is_not_built_upon() -> None:
    backend = Sequence()
    cache = PrefixCache(backend)
    prompt = list(range(200))
    read(cache, backend, prompt)
    backend.breaks = True
    with pytest.raises(MemoryError):
        cache.begin(prompt, speculate=True, budget_bytes=GB)
    backend.breaks = False
    assert read(cache, backend, prompt) == 0


def test_a_smaller_budget_holds_for_the_marks_that_are_there() -> None:
    backend = Sequence(mark_bytes=100)
    cache = PrefixCache(backend)
    prompt = list(range(4 * INTERVAL))
    read(cache, backend, prompt, budget=499)
    assert len(cache._marks) == 4
    read(cache, backend, [*prompt, *range(200)], budget=299)
    assert len(cache._marks) == 2
