# SPDX-License-Identifier: MIT OR Apache-2.0
"""The hybrid forward on a GPU: weights placed once, every round replayed from captured graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from engine.knobs import KnobSet
from engine.load.drafter import BlockCheckpoint
from engine.load.weights import ModelWeights
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
from engine.model.block_waiting import CONTEXT, DRAFT
from engine.model.byte_model import ByteModel
from engine.model.config import ModelConfig
from engine.model.cuda_arena import MAX_ROWS, Arena, PassInputs, cached_positions
from engine.model.cuda_block import check_block
from engine.model.cuda_bodies import body_of
from engine.model.cuda_drafters import CudaDrafters
from engine.model.cuda_forward import CudaForward, products_of
from engine.model.cuda_graphs import Body, CudaGraphs, CudaRecording
from engine.model.cuda_memory import free_bytes, give_back_memory, wait_until_idle
from engine.model.cuda_mtp import CudaMtp
from engine.model.cuda_ops import CudaOps
from engine.model.cuda_state import committed_state
from engine.model.cuda_suspect import first_suspect
from engine.model.cuda_switches import CudaSwitches
from engine.model.cuda_times import OperationTimes
from engine.model.cuda_verified import DeviceVerified, Readback
from engine.model.cuda_weights import CudaWeights
from engine.model.engaged import Engaged
from engine.model.verify_graph import GraphKey, context_class, round_shapes
from kernels.cuda_build import CudaLibrary

_CHAIN = np.arange(-1, VERIFY_ROWS - 1, dtype=np.int32)
_HELD = ("_arena", "_forward", "_inputs", "_drafters", "_readback", "_ops")
_DRAFTS = ("draft", "extend", CONTEXT, DRAFT)  # kinds of passes of a drafter alone


class CudaBackend(Backend):
    """See `engine.model.backend.Backend`.

    A verify pass commits the rows that the pass before left pending and records its own; the accepted path is
    only named by `commit`. Positions, lengths, tokens and the pending rows lie on the device, so that one
    captured graph serves every round of its shape. Up to 32 rows of a prompt are a verify pass that is kept
    whole; longer chunks commit as they are computed, are not captured, and round otherwise.

    Rows of verify passes promise equal bits alone and in any chain or tree of one context class; a prompt's
    chunks and a longer context class do not. On a CPU, for tests, the same body runs without graphs.
    """

    name = "cuda"

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        *,
        capacity: int,
        knobs: KnobSet,
        device: torch.device | str = "cuda",
        library: CudaLibrary | None = None,
        tokens: int | None = None,
        on_layer: Callable[[int], None] = lambda index: None,
        make_ops: Callable[[ModelConfig, CudaLibrary | None], CudaOps] = CudaOps,
    ) -> None:
        """Place `weights`, whose linears are freed one by one as they are placed, and lay out the arena.

        `tokens`: ids that exist; padded vocabulary rows behind them are never chosen. `on_layer(index)` is
        called before a layer is placed and may raise to cancel. `make_ops`: the operations; kernels and PyTorch
        differ in roundings.
        """
        tokens = tokens or config.vocab_size
        self.config, self.capacity = config, capacity
        self.length = self.sequence = 0
        self.block: BlockCheckpoint | None = None
        self._recorded = (-1, 1)  # depth and width of the rounds captured before the first one
        self.device = torch.device(device)
        self.library = library
        self._captures = self.device.type == "cuda"
        self._bytes = ByteModel.of(config, weights)
        self._graphs = CudaGraphs(self.device)
        self._engaged = Engaged()
        self._times = OperationTimes()
        self._ops = make_ops(config, library)
        self.apply_knobs(knobs)
        with torch.no_grad():
            placed = CudaWeights.place(
                config,
                weights,
                device=self.device,
                positions=cached_positions(capacity),
                fuse=knobs.flag("FUSE_PROJ"),
                fuse_gates=knobs.flag("GDN_AB"),
                on_layer=on_layer,
            )
            self._arena = Arena.build(config, placed, capacity=capacity, device=self.device)
            places = cached_positions(capacity)
            self._ops.reserve(
                products_of(placed), placed.head, device=self.device, positions=places
            )
            self._forward = CudaForward(config, placed, self._arena, self._ops, tokens)
        self._inputs = PassInputs.of(self._arena.inputs.host)
        self._inputs.parents[:] = _CHAIN
        self._drafters = CudaDrafters(CudaMtp(self._arena, capacity, tokens))
        self._readback = Readback(self._arena.best, self._arena.logits[:, :tokens])
        self.reset(speculate=False)

    @torch.no_grad()
    def reset(self, *, speculate: bool) -> None:
        self.length = 0
        self.sequence += 1
        self._parity = 0
        self._pending: Sequence[int] = ()
        self._verified: list[int] = []
        self._tree: Sequence[int] | None = None  # parents of the verified rows, None for a chain
        self._pass_rows = 0  # of the latest trunk pass, whose tokens lie in the arena
        self._drafters.reset(active=speculate)
        self._arena.delta.states.zero_()
        self._arena.delta.tails.zero_()

    def mark_bytes(self) -> int:
        return self._arena.delta.states.nbytes + self._arena.delta.tails.nbytes

    def free_bytes(self) -> int:
        return free_bytes(self.device)

    @torch.no_grad()
    def mark(self) -> Mark:
        self._flush()
        delta = self._arena.delta
        state = delta.states.clone(), delta.tails.clone(), self._drafters.mark(self._run)
        return Mark(self.sequence, self.length, state)

    @torch.no_grad()
    def resume(self, mark: Mark | None, *, speculate: bool) -> None:
        if mark is not None:
            check_mark(mark, self.sequence, self.length)
            states, tails, _ = mark.state
            self._arena.delta.states.copy_(states)
            self._arena.delta.tails.copy_(tails)
            self.length, self._pending = mark.length, ()
        self._verified = []
        self._drafters.resume(mark, active=speculate, length=self.length)

    @torch.no_grad()
    def prefill(self, ids: Sequence[int]) -> Verified:
        self._begin(ids)
        last = 0
        for at in range(0, len(ids), MAX_ROWS):
            part = ids[at : at + MAX_ROWS]
            if len(part) > VERIFY_ROWS:
                self._flush()
                self._pass("prefill", part)
                self._drafters.add(self._run, range(len(part)), part)
                self.length += len(part)
                last = 0
            else:
                self._verify(part, None, in_round=False)
                self._commit(range(len(part)), in_round=False)
                last = len(part) - 1
        return DeviceVerified(self._readback, last, last + 1)

    @torch.no_grad()
    def all_logits(self, ids: Sequence[int]) -> Tensor:
        self._begin(ids)
        logits = torch.empty(len(ids), self.config.vocab_size)
        for at in range(0, len(ids), VERIFY_ROWS):
            part = ids[at : at + VERIFY_ROWS]
            self._verify(part, None, in_round=False)
            logits[at : at + len(part)] = self._arena.logits[: len(part), : logits.shape[1]]
            self._commit(range(len(part)), in_round=False)
        return logits

    @torch.no_grad()
    def verify(self, ids: Sequence[int], parents: Sequence[int] | None = None) -> Verified:
        tree = tree_parents(ids, parents)
        self._begin(ids)
        self._verify(ids, tree, in_round=True)
        return DeviceVerified(self._readback, 0, len(ids))

    @torch.no_grad()
    def commit(self, rows: Sequence[int] | int) -> None:
        self._commit(accepted_path(rows, len(self._verified), self._tree), in_round=True)
        if not self._commit_in_verify:
            self._flush(in_round=True)
            self._engaged.count("commit passes")

    @torch.no_grad()
    def draft_steps(self, anchor: int, depth: int, width: int) -> list[DraftStep]:
        return self._drafters.mtp.draft(self._run, anchor, depth, width)

    @torch.no_grad()
    def attach_block(self, block: BlockCheckpoint) -> None:
        check_block(block.config)
        self._graphs.clear()  # passes recorded before keep no streams
        try:
            self._drafters.attach(self._run, block, self._forward, self.capacity)
        except BaseException:
            self._graphs.clear()  # those of its passes hold its buffers
            raise
        self.block = block
        self.record_rounds(*self._recorded)

    def block_room(self) -> int:
        return self._drafters.room()

    @torch.no_grad()
    def draft_block(self, anchor: int, width: int) -> BlockRows:
        return self._drafters.draft_block(self._run, anchor, width)

    def block_bytes(self) -> int:
        return self._drafters.block_bytes()

    def round_bytes(self, rows: int, drafted: int) -> int:
        return self._bytes.round_bytes(
            rows, drafted, self.length, commit_in_verify=self._commit_in_verify
        )

    def draft_bytes(self, steps: int) -> int:
        return self._bytes.draft_bytes(steps, self.length)

    def written_bytes(self) -> int:
        return self._bytes.state_bytes

    @torch.no_grad()
    def suspect_layer(self) -> str:
        # A drafter that computed no number proposed -1, which no embedding row stands for.
        known = np.cumprod(self._inputs.ids[: self._pass_rows] >= 0)
        rows = min(VERIFY_ROWS, max(1, int(known.sum())))
        self.reset(speculate=False)
        self._stage()
        return first_suspect(self._forward, rows)

    def operation_times(self) -> list[OperationTime] | str:
        return self._times.by_operation(timed=self._ops.switches.timed)

    def reset_operation_times(self) -> None:
        self._times.reset()

    def apply_knobs(self, knobs: KnobSet) -> None:
        switches = CudaSwitches.of(knobs)
        self._ops.switches = switches
        # A string keeps its hash; a table counts by what it holds.
        self._signature = str((*knobs.signature(), switches.tiles, switches.fp8_tiles))
        self._replay = knobs.flag("VERIFY_GRAPH")
        self._replay_drafts = knobs.flag("DRAFT_GRAPH")
        self._most_recorded_tokens = knobs.number("GRAPH_MAX_CTX")
        self._commit_in_verify = knobs.flag("COMMIT_IN_VERIFY")

    def engaged(self) -> dict[str, int]:
        return self._engaged.counts()

    @torch.no_grad()
    def record_rounds(self, depth: int, width: int = 1) -> None:
        """Capture the passes of `round_shapes`, of an empty sequence; depth -1 captures nothing."""
        self._recorded = (depth, width)
        counts, keys = range(1, depth + 2), []
        if self._replay:
            shapes = round_shapes(depth, width)
            keys += [self._key(*shape, parity) for shape in shapes for parity in (0, 1)]
        if self._replay_drafts and depth > 0 and self._arena.mtp_kv is not None:
            keys += [self._key("draft", rows, 0, steps=depth, width=width) for rows in counts]
        self._stage()
        for key in keys if self._captures else ():
            self._graphs.get(key, self._capture)

    def close(self) -> None:
        if self._captures:
            wait_until_idle(self.device)
        self._graphs.clear()
        for name in _HELD:  # whoever still refers to this backend holds none of its memory
            self.__dict__.pop(name, None)
        give_back_memory()

    @torch.no_grad()
    def committed_state(self) -> dict[str, Tensor]:
        """Copies of everything committed, by name, on the CPU; see `NativeBackend.committed_state`."""
        self._flush()
        entries = self._drafters.mtp_entries(self._run)
        return committed_state(self._arena, self.config, self.length, entries)

    def _begin(self, ids: Sequence[int]) -> None:
        """Check the room; rows verified before and not committed are gone."""
        check_room(len(ids), self.length, self.capacity)
        self._verified = []

    def _verify(self, ids: Sequence[int], tree: Sequence[int] | None, *, in_round: bool) -> None:
        rows = len(ids)
        self._arena.inputs.wait()
        self._inputs.parents[:] = _CHAIN
        if tree is not None:
            self._inputs.parents[:rows] = tree
        self._pass("chain" if tree is None else "tree", ids, in_round=in_round)
        self._pending = ()
        self._verified, self._tree = list(ids), tree

    def _commit(self, path: Sequence[int], *, in_round: bool) -> None:
        ids = [self._verified[row] for row in path]
        self._verified = []
        self._pending = path
        # The next pass owns the other record set and finds these rows in this one.
        self._parity = 1 - self._parity
        self._drafters.add(self._run, path, ids, in_round=in_round)
        self.length += len(path)

    def _flush(self, *, in_round: bool = False) -> None:
        """Apply the pending rows to the states and caches."""
        if self._pending:
            self._stage()
            self._run("flush", 0, in_round=in_round)
            self._pending = ()

    def _pass(self, kind: str, ids: Sequence[int], *, in_round: bool = False) -> None:
        """One trunk pass over `ids`, behind the committed positions."""
        self._arena.inputs.wait()
        self._inputs.ids[: len(ids)] = ids
        self._pass_rows = len(ids)
        self._stage()
        self._run(kind, len(ids), in_round=in_round)

    def _stage(self) -> None:
        """Bring what a pass reads to the device: the tokens in the arena, the length, the pending rows."""
        inputs, count = self._inputs, len(self._pending)
        self._arena.inputs.wait()
        inputs.start[0] = self.length
        inputs.count[0] = count
        inputs.rows[:count] = self._pending
        self._arena.inputs.upload()

    def _run(
        self, kind: str, rows: int, *, steps: int = 0, width: int = 0, in_round: bool = False
    ) -> None:
        """Run a recording; only a pass that is part of a round adds to the operation times."""
        prefix = "draft " if kind in _DRAFTS else ""
        key = self._key(kind, rows, self._parity, steps=steps, width=width)
        if self._replays(kind, rows):
            recording = self._graphs.get(key, self._capture)
            self._engaged.count(f"{prefix}tape replays")
        else:
            recording = CudaRecording(self._ops, self._body(key), self.device)
            self._engaged.count(f"{prefix}eager passes")
        recording.run()
        self._engaged.ran(self._engaged.bundle(recording.paths))
        if in_round and recording.steps:
            torch.cuda.synchronize(self.device)
            self._times.add(recording)
            self._engaged.count("timed passes")

    def _replays(self, kind: str, rows: int) -> bool:
        """Whether a pass comes from a graph.

        A chunk of more than 32 rows does not: its attention is the library's, whose masks and slices need its
        place on the host, so that every place would be a graph of its own, replayed once. Its launches hide
        behind its products, which take that many rows many times as long as a round.
        """
        wanted = self._replay_drafts if kind in _DRAFTS else self._replay
        short = self.length <= self._most_recorded_tokens and rows <= VERIFY_ROWS
        return self._captures and wanted and short

    def _key(
        self, kind: str, rows: int, parity: int, *, steps: int = 0, width: int = 0
    ) -> GraphKey:
        parity = 0 if kind in _DRAFTS else parity
        context = context_class(self.length + VERIFY_ROWS)
        return GraphKey(kind, rows, context, self._signature, parity, steps, width)

    def _body(self, key: GraphKey) -> Body:
        block, first = self._drafters.block, self._drafters.mtp.first
        return body_of(key, self._forward, block, length=self.length, first=first)

    def _capture(self, key: GraphKey) -> CudaRecording:
        if self._pending and key.kind in ("chain", "tree"):
            # The pass before the capture appends keys and values where pending rows may still lie.
            flush = key._replace(kind="flush", rows=0)
            CudaRecording(self._ops, self._body(flush), self.device).run()
            self._pending = ()
            self._stage()
        recording = CudaRecording(self._ops, self._body(key), self.device)
        pending = self._forward.inputs.count
        recording.capture(
            self._graphs.pool, settle=pending.zero_, restore=self._arena.inputs.upload
        )
        self._engaged.count("graph captures")
        return recording
