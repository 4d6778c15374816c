# SPDX-License-Identifier: MIT OR Apache-2.0
"""Lookup before another drafter: whose draft a round verifies, and what the choice learns."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engine.spec.drafter import RoundOutcome
from engine.spec.lookup import LookupDrafter, LookupOptions
from engine.spec.lookup_first import LookupFirst
from engine.spec.tree import DraftTree


class Other:
    """Drafts a chain of `depth` tokens that counts down from the anchor; notes what it is told."""

    name = "other"

    def __init__(self, depth: int = 3) -> None:
        self.depth = depth
        self.read_bytes = 77 if depth else 0
        self.began: list[list[int]] = []
        self.settled = 0

    def begin(self, prompt: Sequence[int]) -> None:
        self.began.append(list(prompt))

    def propose(self, anchor: int, limit: int) -> DraftTree | None:
        depth = min(self.depth, limit)
        chain = tuple(anchor - each for each in range(depth + 1))
        return DraftTree.chain(chain, [0.9] * depth, "other") if depth else None

    def settle(self, outcome: RoundOutcome) -> None:
        self.settled += 1


def run(drafter: LookupFirst, text: Sequence[int], rounds: int) -> list[str]:
    """The source of each round's draft while the text goes on like this, from its first token as anchor."""
    sources = []
    for _ in range(rounds):
        tree = drafter.propose(text[0], 15)
        if tree is None:
            sources.append("none")
            tree = DraftTree.chain(text[:1], (), "")
        else:
            sources.append(tree.sources[-1])
            assert drafter.read_bytes == (77 if sources[-1] == "other" else 0)
        depths = tree.depths()
        path, tokens = tree.walk(lambda node, at=depths, text=text: text[1 + at[node]])
        drafter.settle(RoundOutcome(tree, path, tokens, 0.0, 0.0))
        text = text[len(tokens) :]
    return sources


def test_a_copy_moves_from_the_other_drafter_to_lookup_and_new_text_back() -> None:
    other = Other()
    drafter = LookupFirst(LookupDrafter(), other)
    source = list(range(1000, 1200))
    drafter.begin([*source, *source[:8]])
    assert other.began == [[*source, *source[:8]]]
    # A lookup tree promises 1.66 tokens; the other drafter is trusted with 2, and loses that in two rounds.
    assert run(drafter, source[8:], 6) == ["other", "other", *["lookup"] * 4]
    drafter.begin(source)
    assert run(drafter, list(range(5000, 4900, -1)), 5) == ["other"] * 5
    assert other.settled == 11


def test_the_other_drafter_is_asked_again_from_time_to_time() -> None:
    drafter = LookupFirst(LookupDrafter(LookupOptions(deep=0)), Other())
    source = list(range(1000, 1900))
    drafter.begin([*source, *source[:8]])
    found = run(drafter, source[8:], 40)
    assert [at for at, name in enumerate(found) if name == "other"] == [0, 1, 18, 35]


def test_lookup_that_misleads_is_left_alone() -> None:
    drafter = LookupFirst(LookupDrafter(LookupOptions(min_order=2)), Other())
    text = [900, 901]
    for line in range(60):
        text += [*range(300 - 5 * line, 292 - 5 * line, -1), 900, 901]
    drafter.begin([900, 901, 310, 309, 308])
    found = run(drafter, text, 80)
    assert "lookup" not in found[20:]


def test_lookup_drafts_where_the_other_cannot() -> None:
    drafter = LookupFirst(LookupDrafter(), Other(depth=0))
    source = list(range(1000, 1100))
    drafter.begin([*source, *source[:8]])
    assert run(drafter, source[8:], 2) == ["lookup", "lookup"]
    drafter.begin([5])
    assert run(drafter, [7, 8], 1) == ["none"]


@pytest.mark.parametrize("deep_after", [0, 1])
def test_a_deep_chain_needs_no_better_record(deep_after: int) -> None:
    drafter = LookupFirst(LookupDrafter(LookupOptions(deep_after=deep_after)), Other(depth=15))
    source = list(range(1000, 1200))
    drafter.begin([*source, *source[:8]])
    assert run(drafter, source[8:], 1) == (["lookup"] if deep_after == 0 else ["other"])
