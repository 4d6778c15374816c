# SPDX-License-Identifier: MIT OR Apache-2.0
"""How accepted rows of a verify pass become part of a native backend's sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.knobs import KnobSet
from engine.model.arena import Arena
from engine.model.engaged import Engaged
from engine.model.run_pass import RunPass

_PARTS = 10**9  # differences are counted in billionths


@dataclass(frozen=True, slots=True)
class CommitWay:
    """What the switches ask of a commit."""

    by_record: bool = True  # apply what the verify pass recorded
    replay: bool = False  # run the accepted tokens through the model again
    in_verify: bool = True  # leave the recorded rows to the next pass

    @staticmethod
    def of(knobs: KnobSet) -> CommitWay:
        """The way that these values ask for; `check` takes both, one after the other."""
        way = knobs.choice("RANKK")
        return CommitWay(way != "0", way != "1", knobs.flag("COMMIT_IN_VERIFY"))


class NativeCommits:
    """The rows that wait to be applied, and the record set that holds them.

    Passes run through `run`, which is handed in with every call, so that the backend and this do not hold each
    other.
    """

    def __init__(self, arena: Arena, engaged: Engaged) -> None:
        self._arena, self._engaged = arena, engaged
        self._count = arena.pending.count.numpy()
        self._rows = arena.pending.rows.numpy()
        self._start = arena.start.numpy()
        self.reset()

    def reset(self) -> None:
        """An empty sequence."""
        self.parity = 0  # the record set that the next pass owns
        self.applied()

    def states(self) -> list[Tensor]:
        """Copies of the recurrent states and convolution tails, with nothing pending."""
        return [state.clone() for state in self._arena_states()]

    def state_bytes(self) -> int:
        """Bytes of those copies."""
        return sum(state.nbytes for state in self._arena_states())

    def go_back(self, states: list[Tensor]) -> None:
        """Put copies back; what is pending is gone."""
        for state, kept in zip(self._arena_states(), states, strict=True):
            state.copy_(kept)
        self.reset()

    def applied(self) -> None:
        """A pass took what was pending."""
        self._count[0] = 0

    def keep(
        self,
        run: RunPass,
        way: CommitWay,
        path: Sequence[int],
        length: int,
        replay: Callable[[], None],
    ) -> None:
        """The rows `path` of the last verify pass follow the `length` committed positions.

        `replay()` runs their tokens through a pass that commits at once, behind `length` positions.
        """
        both = way.by_record and way.replay
        before = self.states() if both else []
        if way.by_record:
            if len(path) > 1:  # the first row of a path is always row 0
                self._rows[: len(path)] = path
            self._count[0] = len(path)
            # The next pass owns the other record set and finds these rows in this one.
            self.parity = 1 - self.parity
            self._engaged.count("commits by record")
            if not way.in_verify:
                self.flush(run, length + len(path), in_round=True)
                self._engaged.count("commit passes")
        if both:
            recorded = self._committed(length, len(path))
            for state, kept in zip(self._arena_states(), before, strict=True):
                state.copy_(kept)
            replay()
            self._compare(recorded, self._committed(length, len(path)))
        elif way.replay:
            replay()
        if way.replay:
            self._engaged.count("commits by replay")

    def flush(self, run: RunPass, length: int, *, in_round: bool = False) -> None:
        """Apply the pending rows to the states and caches; `length` positions then are committed."""
        if self._count[0]:
            self._start[0] = length
            run("flush", 0, in_round=in_round)
            self.applied()

    def _arena_states(self) -> list[Tensor]:
        states = [buffers.state for buffers in self._arena.delta.values()]
        return [part for state in states for part in (state.recurrent, state.tail)]

    def _committed(self, length: int, rows: int) -> list[Tensor]:
        """Copies of the states and of the keys and values of `rows` positions behind `length`."""
        caches = self._arena.kv.values()
        entries = [part for cache in caches for part in cache.read(length + rows, length)]
        return [*self.states(), *entries]

    def _compare(self, recorded: list[Tensor], replayed: list[Tensor]) -> None:
        pairs = zip(recorded, replayed, strict=True)
        apart = max(difference(one, other) for one, other in pairs)
        self._engaged.count("commits compared")
        self._engaged.most("largest commit difference (1e-9)", apart)


def difference(one: Tensor, other: Tensor) -> int:
    """The largest difference of two tensors in billionths, rounded up; a NaN on one side alone is the most."""
    if torch.equal(one.view(torch.uint8), other.view(torch.uint8)):
        return 0
    apart = (one.double() - other.double()).abs()
    apart[(one == other) | (one.isnan() & other.isnan())] = 0
    most = float(apart.nan_to_num(nan=_PARTS, posinf=_PARTS).max())
    return max(1, -int(-min(most, _PARTS) * _PARTS // 1))
