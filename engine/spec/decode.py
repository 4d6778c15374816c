# SPDX-License-Identifier: MIT OR Apache-2.0
"""The round: draft, verify, walk, commit. Every caller decodes through this one loop."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine.errors import NumericsError
from engine.model.backend import VERIFY_ROWS, Backend, Verified
from engine.spec.drafter import Drafter, RoundOutcome, RouteChoice, Routes
from engine.spec.sampling import Sampling, choose
from engine.spec.tree import DraftTree

NO_DRAFTER = "none"


class Round(NamedTuple):
    """What one round did. `tokens` are new in the text; the last one is the next round's anchor.

    drafted, accepted: nodes besides the anchor. tree: whether some node had two children. drafter: the source
    of most accepted nodes, of most nodes where none was accepted, "none" without a draft. draft_ms: proposing
    and learning. bytes_written: recurrent state. choice: the router's, None where none was asked.
    """

    tokens: tuple[int, ...]
    drafted: int
    accepted: int
    rows: int
    tree: bool
    drafter: str
    draft_ms: float
    verify_ms: float
    sample_ms: float
    commit_ms: float
    bytes_read: int
    bytes_written: int
    choice: RouteChoice | None = None


class DecodeLoop:
    """Continues a prefilled sequence round by round.

    The anchor is the last chosen token: it is part of the text, but the model has not read it yet. The text
    does not depend on the drafter: the token behind a node is chosen from that node's own row, by its logits
    and its position alone.
    """

    def __init__(
        self,
        backend: Backend,
        sampling: Sampling,
        stop_ids: frozenset[int],
        drafter: Drafter | None = None,
        *,
        follow: Sequence[int] | None = None,
    ) -> None:
        """`follow`: a text to go along instead of choosing; it must hold every token that is asked for."""
        self._backend = backend
        self._sampling = sampling
        self.drafter = drafter
        self._router: Routes | None = None
        self._follow = follow
        self._follow_from = 0
        self._most = VERIFY_ROWS - 1
        self.stop_ids = stop_ids
        self.anchor = -1
        self.written: list[int] = []  # every token chosen, the anchor last

    def begin(self, prefilled: Verified, prompt: Sequence[int] = ()) -> int:
        """Choose the first token from the prompt's last row; the drafter starts from the prompt's tokens."""
        self._follow_from = self._backend.length
        self.anchor = self._choose(prefilled, 0, self._backend.length)
        self.written = [self.anchor]
        self.use(self.drafter, prompt)
        return self.anchor

    def use(self, drafter: Drafter | None, committed: Sequence[int]) -> None:
        """Draft by another drafter from the next round on; it starts from the tokens before the anchor."""
        self.drafter = drafter
        self._router = drafter if isinstance(drafter, Routes) else None
        if drafter is not None:
            drafter.begin(committed)

    def limit(self, rows: int, nodes: int) -> None:
        """From the next round on: the most rows of a verify pass, the anchor included, and nodes of a draft."""
        self._most = min(rows - 1, nodes)

    def room(self) -> int:
        """Rows the context still takes; 0 when it is full."""
        return self._backend.capacity - self._backend.length

    def round(self, wanted: int) -> Round:
        """One round that adds 1 to `wanted` tokens. Needs room for one row.

        Stops at a stop id: it is the last of the tokens then, and nothing after it is committed.
        """
        backend, drafter = self._backend, self.drafter
        start = time.perf_counter()
        resting = self._router is not None and self._router.resting
        if resting:
            tree, read_bytes, choice = None, 0, self._router.choice
        else:
            tree, read_bytes, choice = self._propose(wanted)
        after_draft = time.perf_counter()
        first = backend.length + 1
        if tree is None:
            rows = 1
            verified = backend.verify((self.anchor,))
        else:
            rows = len(tree)
            verified = backend.verify(tree.tokens, tree.parents)
        after_verify = time.perf_counter()
        if tree is None:
            path, tokens = (0,), (self._choose(verified, 0, first),)
        else:
            path, tokens = tree.walk(self._chooser(verified, tree, first), self.stop_ids)
        after_sample = time.perf_counter()
        # Before the commit: the context is the one the pass read, and its experts are known.
        bytes_read = backend.round_bytes(rows, 0) + read_bytes
        backend.commit(path)
        after_commit = time.perf_counter()
        draft_s, verify_s = after_draft - start, after_verify - after_draft
        if drafter is not None:
            if resting:
                self._router.pass_by(self.anchor, tokens[0], verify_s * 1e3)
            else:
                done = tree or DraftTree.plain(self.anchor)
                drafter.settle(RoundOutcome(done, path, tokens, draft_s * 1e3, verify_s * 1e3))
            draft_s += time.perf_counter() - after_commit
        self.anchor = tokens[-1]
        self.written.extend(tokens)
        return Round(
            tokens=tokens,
            drafted=rows - 1,
            accepted=len(path) - 1,
            rows=rows,
            tree=tree is not None and not tree.is_chain,
            drafter=NO_DRAFTER if tree is None else credited(tree, path),
            draft_ms=draft_s * 1e3,
            verify_ms=verify_s * 1e3,
            sample_ms=(after_sample - after_verify) * 1e3,
            commit_ms=(after_commit - after_sample) * 1e3,
            bytes_read=bytes_read,
            bytes_written=backend.written_bytes(),
            choice=choice,
        )

    def _propose(self, wanted: int) -> tuple[DraftTree | None, int, RouteChoice | None]:
        """(what to verify, None for the anchor alone; bytes the draft had to read; the router's choice)."""
        limit = min(self._most, wanted - 1, self.room() - 1)
        drafter = self.drafter
        if drafter is None or limit < 1:
            return None, 0, None
        tree = drafter.propose(self.anchor, limit)
        if tree is not None:
            if tree.tokens[0] != self.anchor:
                raise ValueError(
                    f"{drafter.name} drafted behind {tree.tokens[0]}, not behind the anchor {self.anchor}"
                )
            tree = tree.truncate(limit + 1) if len(tree) > 1 else None
        return tree, drafter.read_bytes, self._router.choice if self._router else None

    def _chooser(self, verified: Verified, tree: DraftTree, first: int) -> Callable[[int], int]:
        """The token behind a node; the anchor's is at position `first`."""
        depths = () if self._sampling.greedy and self._follow is None else tree.depths()

        def choose_behind(node: int) -> int:
            return self._choose(verified, node, first + depths[node] if depths else first)

        return choose_behind

    def _choose(self, verified: Verified, row: int, position: int) -> int:
        best = verified.best[row]
        if best < 0:
            raise NumericsError(
                f"The model produced invalid numbers; first seen in {self._backend.suspect_layer()}.",
                kept="The text so far is kept.",
                next_step="Check the model folder: a weight is damaged or was converted wrongly.",
            )
        if self._follow is not None:
            return self._follow[position - self._follow_from]
        if self._sampling.greedy:
            return best
        return choose(verified.logits[row], self._sampling, position)


def credited(tree: DraftTree, path: Sequence[int]) -> str:
    """The source of most accepted nodes, of most nodes where none was accepted."""
    nodes = path[1:] or range(1, len(tree))
    names = [tree.sources[node] for node in nodes]
    if names.count(names[0]) == len(names):
        return names[0]
    return Counter(names).most_common(1)[0][0]
