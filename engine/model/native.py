# SPDX-License-Identifier: MIT OR Apache-2.0
"""The hybrid forward on the compiled kernels: one arithmetic for every row count, replayed from tapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from engine.errors import UnsupportedModelError, UsageError
from engine.knobs import KnobSet
from engine.load.drafter import BlockCheckpoint
from engine.load.weights import ModelWeights
from engine.model.arena import MAX_ROWS, Arena
from engine.model.backend import (
    VERIFY_ROWS,
    Backend,
    DraftStep,
    Mark,
    OperationTime,
    Verified,
    accepted_path,
    check_mark,
    check_room,
    tree_parents,
)
from engine.model.block_forward import BlockRows
from engine.model.block_native import NativeBlock, unsupported_block
from engine.model.block_waiting import CONTEXT, DRAFT
from engine.model.byte_model import ByteModel
from engine.model.config import ModelConfig
from engine.model.engaged import Engaged
from engine.model.native_commit import CommitWay, NativeCommits
from engine.model.native_drafters import NativeDrafters
from engine.model.native_forward import NativeForward
from engine.model.native_state import committed_state
from engine.model.native_weights import NativeWeights
from engine.model.pass_times import PassTimes
from engine.model.projection import Packing, takes_int8
from engine.model.steps import PassTape
from engine.model.suspect import first_suspect
from engine.model.switches import Switches
from engine.model.verify_graph import GraphKey, VerifyGraphs, context_class, round_shapes
from kernels.build import NativeBuildError
from kernels.tape import Pool

_DRAFTS = frozenset(("draft", "extend", DRAFT, CONTEXT))  # kinds of passes of drafters alone
_NO_RECORDS = _DRAFTS | {"head", "replay"}  # kinds that touch no record set


class NativeBackend(Backend):
    """See `engine.model.backend.Backend`.

    Rows of a verify pass are recorded, not committed: `commit` only names the rows to keep, and the next pass
    applies them to each state tile as it loads it, so that the state is read and written once a round. With
    QWEN38_COMMIT_IN_VERIFY off a pass of its own applies them at once, and with QWEN38_RANKK off their tokens
    run through the model again, with the same bits.
    """

    name = "native"

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        *,
        capacity: int,
        knobs: KnobSet,
        pool: Pool,
        tokens: int | None = None,
        on_layer: Callable[[int], None] = lambda index: None,
    ) -> None:
        """Pack `weights`, whose linears are freed one by one as they are packed, and lay out the arena.

        `tokens`: ids that exist; padded vocabulary rows behind them are never chosen. `on_layer(index)` is
        called before a layer is packed and may raise to cancel.
        """
        tokens = tokens or config.vocab_size
        self.config = config
        self.capacity = capacity
        self.length = self.sequence = 0
        self.pool = pool
        self._found_threads = 0  # before a switch asked for a number of its own
        self._graphs: VerifyGraphs[PassTape] = VerifyGraphs()
        scaled_kv = knobs.flag("KV_FP8")
        self._bytes = ByteModel.of(config, weights, scaled_kv=scaled_kv)
        self._engaged = Engaged()
        self.apply_knobs(knobs)
        self._packing = Packing(
            knobs.flag("FUSE_PROJ"), knobs.flag("GDN_AB"), pool.library.has_matrix_unit
        )
        self.takes_int8 = takes_int8(weights, self._packing)
        packed = NativeWeights.pack(
            config,
            weights,
            positions=capacity + VERIFY_ROWS,
            packing=self._packing,
            on_layer=on_layer,
        )
        self._arena = Arena.build(
            config,
            packed.widths,
            rows=MAX_ROWS,
            capacity=capacity,
            mtp=packed.mtp is not None,
            scaled_kv=scaled_kv,
        )
        self._drafters = NativeDrafters(self._arena, capacity, tokens)
        self.block: BlockCheckpoint | None = None
        self._forward = NativeForward(config, packed, self._arena, tokens)
        self._ids = self._arena.ids.numpy()
        self._start = self._arena.start.numpy()
        self._commits = NativeCommits(self._arena, self._engaged)
        self._parents = self._arena.parents.numpy()
        self._best = self._arena.best.numpy()
        self._logits = self._arena.logits[:, :tokens].numpy()
        self._times = PassTimes()
        self.reset(speculate=False)

    def reset(self, *, speculate: bool) -> None:
        self.length = 0
        self.sequence += 1
        self._commits.reset()
        self._verified: list[int] = []
        self._tree: Sequence[int] | None = None  # parents of the verified rows, None for a chain
        self._pass_rows = 0  # of the latest trunk pass, whose tokens lie in the arena
        self._drafters.reset(active=speculate)
        for buffers in self._arena.delta.values():
            buffers.state.recurrent.zero_()
            buffers.state.tail.zero_()

    def mark_bytes(self) -> int:
        return self._commits.state_bytes()

    def mark(self) -> Mark:
        self._commits.flush(self._run, self.length)
        state = self._commits.states(), self._drafters.mark(self._run)
        return Mark(self.sequence, self.length, state)

    def resume(self, mark: Mark | None, *, speculate: bool) -> None:
        if mark is not None:
            check_mark(mark, self.sequence, self.length)
            states, _ = mark.state
            self._commits.go_back(states)
            self.length = mark.length
        self._verified = []
        self._drafters.resume(self._run, mark, active=speculate, length=self.length)

    def prefill(self, ids: Sequence[int]) -> Verified:
        self._begin(ids)
        self._drafters.catch_up(self._run)
        for at in range(0, len(ids), MAX_ROWS):
            part = ids[at : at + MAX_ROWS]
            self._pass("prefill", part)
            self._commits.applied()
            self._drafters.prefilled(self._run, part)
            self.length += len(part)
        return Verified([int(self._best[0])], self._logits[:1])

    def all_logits(self, ids: Sequence[int]) -> Tensor:
        self._begin(ids)
        logits = torch.empty(len(ids), self.config.vocab_size)
        for at in range(0, len(ids), VERIFY_ROWS):
            part = ids[at : at + VERIFY_ROWS]
            self.prefill(part)
            self._run("head", len(part))
            logits[at : at + len(part)] = self._arena.logits[: len(part), : logits.shape[1]]
        return logits

    def verify(self, ids: Sequence[int], parents: Sequence[int] | None = None) -> Verified:
        rows, tree = len(ids), tree_parents(ids, parents)
        self._begin(ids)
        self._drafters.begin(self._run, rows)
        if tree is not None:
            self._parents[:rows] = tree
        self._pass("chain" if tree is None else "tree", ids, in_round=True)
        self._commits.applied()
        self._verified, self._tree = list(ids), tree
        return Verified(self._best[:rows].tolist(), self._logits[:rows])

    def commit(self, rows: Sequence[int] | int) -> None:
        verified = self._verified
        path = accepted_path(rows, len(verified), self._tree)
        ids = [verified[row] for row in path]
        self._verified = []
        self._drafters.committed(self._run, path, ids, verified=len(verified))

        def replay() -> None:
            self._pass("replay", ids, in_round=True)

        self._commits.keep(self._run, self._commit_way, path, self.length, replay)
        self.length += len(path)

    def draft_steps(self, anchor: int, depth: int, width: int) -> list[DraftStep]:
        return self._drafters.steps(self._run, anchor, depth, width)

    def attach_block(self, block: BlockCheckpoint) -> None:
        why_not = unsupported_block(block.config)
        if why_not:
            raise UnsupportedModelError(
                f"The native kernels do not take this block drafter ({why_not}).",
                next_step="Set QWEN38_CPU_ISA=reference, or QWEN38_DFLASH2=off.",
            )
        forward = self._forward
        native = NativeBlock(
            block.config,
            block.weights,
            self._packing,
            embedding=forward.weights.embed,
            head=forward.weights.head,
            logits=self._arena.logits,
            tokens=forward.tokens,
            capacity=self.capacity,
        )
        self._drafters.attach(native)
        self.block = block
        self._graphs.clear()  # passes recorded before keep no streams

    def block_room(self) -> int:
        return self._drafters.room(self._run)

    def draft_block(self, anchor: int, width: int) -> BlockRows:
        return self._drafters.draft_block(self._run, anchor, width)

    def block_bytes(self) -> int:
        return self._drafters.block_bytes()

    def round_bytes(self, rows: int, drafted: int) -> int:
        way, moe = self._commit_way, self._arena.moe
        return self._bytes.round_bytes(
            rows,
            drafted,
            self.length,
            commit_in_verify=way.in_verify or not way.by_record,
            replay=way.replay,
            experts_read=moe.counted() if moe and rows == self._pass_rows else None,
        )

    def draft_bytes(self, steps: int) -> int:
        return self._bytes.draft_bytes(steps, self.length)

    def written_bytes(self) -> int:
        return self._bytes.state_bytes * (self._commit_way.by_record + self._commit_way.replay)

    def suspect_layer(self) -> str:
        # A drafter that computed no number proposed -1, which no embedding row stands for.
        rows = max(1, int(np.cumprod(self._ids[: self._pass_rows] >= 0).sum()))
        self.reset(speculate=False)
        self._start[0] = 0
        return first_suspect(self._forward, self.pool, rows)

    def operation_times(self) -> list[OperationTime]:
        return self._times.by_operation()

    def reset_operation_times(self) -> None:
        self._times.reset()

    def apply_knobs(self, knobs: KnobSet) -> None:
        switches = Switches.of(knobs, self.pool.library.isa)
        self._use_threads(knobs.number("CPU_THREADS"))
        self._switches = switches
        self._signature = str((*knobs.signature(), *switches.contents))  # a string keeps its hash
        self._replay = knobs.flag("VERIFY_GRAPH")
        self._most_recorded_tokens = knobs.number("GRAPH_MAX_CTX")
        self._replay_drafts = knobs.flag("DRAFT_GRAPH")
        self._commit_way = CommitWay.of(knobs)

    def engaged(self) -> dict[str, int]:
        return self._engaged.counts()

    def record_rounds(self, depth: int, width: int = 1) -> None:
        """Record the passes of `round_shapes`, so that the first rounds are fast."""
        shapes = round_shapes(depth, width)
        if self._commit_way.replay:
            shapes += [("replay", rows) for rows in range(1, depth + 2)]
        for kind, rows in shapes if self._replay else ():
            for parity in (0, 1):
                self._graphs.get(self._key(kind, rows, parity=parity), self._record)
        if self._replay_drafts and depth and self._arena.mtp_kv is not None:
            for rows in range(1, depth + 2):
                self._graphs.get(self._key("draft", rows, steps=depth, width=width), self._record)

    def _use_threads(self, wanted: int) -> None:
        """Go on with `wanted` workers; 0: with those that were found best when the model was opened."""
        if wanted and not self._found_threads:
            self._found_threads = self.pool.threads
        count = wanted or self._found_threads
        if count and count != self.pool.threads:
            try:
                self.use_pool(Pool(self.pool.library, count))
            except NativeBuildError as error:
                raise UsageError(f"{error}.", kept="The threads that ran go on.") from error

    def use_pool(self, pool: Pool) -> None:
        """Go on with another pool of workers; recordings are made anew, results keep their bits."""
        self._graphs.clear()
        self.pool.close()
        self.pool = pool

    def close(self) -> None:
        self._graphs.clear()
        self.pool.close()

    def committed_state(self) -> dict[str, Tensor]:
        """Copies of everything committed, by name: for tests and tools; see `native_state.committed_state`."""
        self._commits.flush(self._run, self.length)
        entries = self._drafters.mtp_entries(self._run)
        return committed_state(self._arena, self.length, entries)

    def _begin(self, ids: Sequence[int]) -> None:
        """Check the room; rows verified before and not committed are gone."""
        check_room(len(ids), self.length, self.capacity)
        self._verified = []

    def _pass(self, kind: str, ids: Sequence[int], *, in_round: bool = False) -> None:
        """One trunk pass over `ids`, behind the committed positions."""
        rows = self._pass_rows = len(ids)
        if rows == 1:  # a slice would take five times as long, in every plain round
            self._ids[0] = ids[0]
        else:
            self._ids[:rows] = ids
        self._start[0] = self.length
        self._run(kind, rows, in_round=in_round)

    def _run(
        self, kind: str, rows: int, *, steps: int = 0, width: int = 0, in_round: bool = False
    ) -> None:
        """Run a recording; only a pass that is part of a round adds to the operation times."""
        key = self._key(kind, rows, parity=self._commits.parity, steps=steps, width=width)
        prefix = "draft " if kind in _DRAFTS else ""
        if self._replays(kind):
            tape = self._graphs.get(key, self._record)
            tape.run()
            self._engaged.count(f"{prefix}tape replays")
        else:
            tape = self._record(key)
            self._engaged.count(f"{prefix}eager passes")
        self._engaged.ran(tape.bundle)
        if self._found_threads not in (0, self.pool.threads):
            self._engaged.count("passes on other threads")
        if in_round:
            self._times.add(key, tape, self.length)

    def _replays(self, kind: str) -> bool:
        wanted = self._replay_drafts if kind in _DRAFTS else self._replay
        return wanted and self.length <= self._most_recorded_tokens

    def _key(
        self, kind: str, rows: int, *, parity: int = 0, steps: int = 0, width: int = 0
    ) -> GraphKey:
        parity = 0 if kind in _NO_RECORDS else parity
        context = context_class(self.length + rows)
        return GraphKey(kind, rows, context, self._signature, parity, steps, width)

    def _record(self, key: GraphKey) -> PassTape:
        """Issue the operations of a key; with replay off they run as they are issued."""
        tape = PassTape(self.pool, self._switches, eager=not self._replays(key.kind))
        forward, arena, rows = self._forward, self._arena, key.rows
        block = self._drafters.block
        if key.kind == "flush":
            forward.flush(tape, parity=key.parity)
        elif key.kind == "replay":
            forward.trunk(tape, rows=rows, parity=0, advance=True)
        elif key.kind == "head":
            forward.head(tape, arena.hidden, rows)
        elif key.kind == "draft":
            forward.draft(tape, rows=rows, steps=key.steps, width=key.width)
        elif key.kind == "extend":
            forward.mtp(
                tape,
                rows=rows,
                hidden=arena.mtp_waiting,
                next_ids=arena.mtp_next,
                start=arena.mtp_start[:1],
            )
        elif key.kind == CONTEXT and block is not None:
            block.record_context(tape, rows)
        elif key.kind == DRAFT and block is not None:
            block.record_draft(tape, rows)
        else:
            advance = key.kind == "prefill"
            forward.trunk(
                tape,
                rows=rows,
                parity=key.parity,
                advance=advance,
                tree=key.kind == "tree",
                tap=self._drafters.tap,
            )
            first = rows - 1 if advance else 0
            forward.head(tape, arena.hidden[first:], rows - first)
            if key.kind == "chain" and rows == 1:
                self._drafters.record_plain(tape)
        tape.bundle = self._engaged.bundle(tape.paths)
        return tape
