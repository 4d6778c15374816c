# SPDX-License-Identifier: MIT OR Apache-2.0
"""Every buffer of a GPU pass, allocated once: addresses never change, so that captured graphs stay valid."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from engine.model.backend import MAX_DRAFT, VERIFY_ROWS
from engine.model.config import ModelConfig
from engine.model.cuda_weights import COLUMNS, CudaDelta, CudaWeights
from kernels.tree_paths.reference import tree_paths

MAX_ROWS = 256  # of a prompt chunk
CONV_TAIL = 3
_STEP = 8  # elements a draft step takes, so that each starts at 16 bytes; more than MAX_WIDTH


class Staged:
    """int32 values that the host writes and one copy brings to the device.

    `host` is the NumPy side in page-locked memory, `device` the tensor that operations read.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self._pinned = torch.zeros(size, dtype=torch.int32, pin_memory=pinned)
        self.host: np.ndarray = self._pinned.numpy()
        self.device = torch.zeros(size, dtype=torch.int32, device=device)
        self._copied = torch.cuda.Event() if pinned else None

    def wait(self) -> None:
        """Until the last copy has read the host's side; it may be written then."""
        if self._copied is not None:
            self._copied.synchronize()

    def upload(self) -> None:
        """Copy, without waiting."""
        self.device.copy_(self._pinned, non_blocking=True)
        if self._copied is not None:
            self._copied.record()


@dataclass(frozen=True, slots=True)
class KvPair:
    """Keys and values of one attention layer, bf16 [kv heads, positions, head dim] each."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class KvStack:
    """The same of all attention layers of a trunk, bf16 [layers, kv heads, positions, head dim] each."""

    keys: Tensor
    values: Tensor

    def layer(self, index: int) -> KvPair:
        """Views of one layer, by its place among the attention layers."""
        return KvPair(self.keys[index], self.values[index])


@dataclass(frozen=True, slots=True)
class DeltaRecord:
    """What a verify pass keeps of its rows in one layer, for the commit of some of them.

    raw: bf16 [32, channels], the rows before the convolution; k: float32 [32, key heads, key dim], unit keys;
    u: float32 [32, value heads, value dim], corrections; g: float32 [32, value heads], the decay's logarithm;
    gc: the same summed along the row's path.
    """

    raw: Tensor
    k: Tensor
    u: Tensor
    g: Tensor
    gc: Tensor


@dataclass(frozen=True, slots=True)
class DeltaStack:
    """Recurrent state, convolution tails and records of all delta layers.

    states: float32 [layers, value heads, key dim, value dim]; tails: bf16 [layers, 3, channels], oldest raw row
    first; records: of each parity, every tensor with the layers in front.
    """

    states: Tensor
    tails: Tensor
    records: tuple[DeltaRecord, DeltaRecord]

    @staticmethod
    def zeros(config: ModelConfig, device: torch.device) -> DeltaStack:
        """The buffers before the first token."""
        layers, heads = len(config.gdn_layers), config.value_heads

        def wide(*shape: int) -> Tensor:
            return torch.zeros(layers, *shape, device=device)

        def narrow(*shape: int) -> Tensor:
            return torch.zeros(layers, *shape, dtype=torch.bfloat16, device=device)

        def record() -> DeltaRecord:
            return DeltaRecord(
                narrow(VERIFY_ROWS, config.qkv_rows),
                wide(VERIFY_ROWS, config.key_heads, config.key_dim),
                wide(VERIFY_ROWS, heads, config.value_dim),
                wide(VERIFY_ROWS, heads),
                wide(VERIFY_ROWS, heads),
            )

        states = wide(heads, config.key_dim, config.value_dim)
        return DeltaStack(states, narrow(CONV_TAIL, config.qkv_rows), (record(), record()))

    def layer(self, index: int) -> DeltaLayer:
        """Views of one layer, by its place among the delta layers."""
        first, second = (
            DeltaRecord(*(getattr(record, field.name)[index] for field in fields(record)))
            for record in self.records
        )
        return DeltaLayer(self.states[index], self.tails[index], (first, second))


@dataclass(frozen=True, slots=True)
class DeltaLayer:
    """One layer of a DeltaStack."""

    state: Tensor
    tail: Tensor
    records: tuple[DeltaRecord, DeltaRecord]


@dataclass(frozen=True, slots=True)
class PassInputs:
    """Views of one staged block: what changes from pass to pass without a new capture.

    ids [MAX_ROWS]; start [1]: committed positions; parents [32]: of a tree, those behind its rows a chain's;
    count [1], rows [32]: how many rows of the pass before are committed first, and which.
    """

    ids: Tensor
    start: Tensor
    parents: Tensor
    count: Tensor
    rows: Tensor

    @staticmethod
    def of(block: Tensor) -> PassInputs:
        """The views of a block of `pass_inputs_size()` elements, NumPy's or PyTorch's."""
        views, at = [], 0
        for size in _SIZES:
            views.append(block[at : at + size])
            at += _fours(size)
        return PassInputs(*views)


_SIZES = (MAX_ROWS, 1, VERIFY_ROWS, 1, VERIFY_ROWS)


def pass_inputs_size() -> int:
    """Elements of the block of a PassInputs, each view of which starts at 16 bytes."""
    return sum(_fours(size) for size in _SIZES)


@dataclass(frozen=True, slots=True)
class DraftInputs:
    """The same of the MTP head's passes.

    starts [MAX_DRAFT, 4]: column 0 is the first position of each step; following: the token behind each row.
    """

    starts: Tensor
    following: Tensor

    @staticmethod
    def of(block: Tensor) -> DraftInputs:
        """The views of a block of 4 * MAX_DRAFT more elements than there are rows."""
        return DraftInputs(block[: 4 * MAX_DRAFT].reshape(MAX_DRAFT, 4), block[4 * MAX_DRAFT :])


@dataclass(frozen=True, slots=True)
class TreePaths:
    """Of a verify pass's rows, as in `kernels.tree_paths`: paths int32 [32, 32], depths int32 [32]."""

    paths: Tensor
    depths: Tensor


@dataclass(frozen=True, slots=True)
class Arena:
    """Static buffers of one backend; rows of activations are bf16."""

    inputs: Staged  # laid out by PassInputs
    draft_inputs: Staged  # laid out by DraftInputs
    picked: Staged  # int32 [32]: rows of a path
    places: Tensor  # int64 [positions], 0, 1, 2, ...
    chain: TreePaths  # of a chain
    tree: TreePaths  # of the present tree
    residual: Tensor  # [MAX_ROWS, hidden]
    normed: Tensor  # [MAX_ROWS, hidden]
    mixed: Tensor  # [MAX_ROWS, hidden]
    hidden: Tensor  # [MAX_ROWS + 32, hidden], after the final norm
    projected: Tensor  # [MAX_ROWS, widest mixer projection]
    gates: Tensor  # [MAX_ROWS, widest pair of gates]
    attended: Tensor  # [MAX_ROWS, widest mixer output]
    query: Tensor  # [MAX_ROWS, query heads, head dim]
    gate_up: Tensor  # [MAX_ROWS, 2 intermediate]
    inner: Tensor  # [MAX_ROWS, intermediate]
    logits: Tensor  # float32 [32, vocabulary, padded to whole 64 bytes]
    best: Tensor  # int32 [32]
    delta: DeltaStack
    kv: KvStack
    mtp_kv: KvPair | None
    mtp_waiting: Tensor  # [MAX_ROWS, hidden]
    mtp_pair: Tensor  # [MAX_ROWS, 2 hidden]
    mtp_hidden: Tensor  # [MAX_ROWS + 32, hidden], after the MTP norm
    draft_ids: Tensor  # int32 [MAX_DRAFT, 8], the candidates of each step
    draft_figures: (
        Tensor  # float32 [MAX_DRAFT, 8], their logits; in column 7 the logarithm of the step's sum
    )

    @staticmethod
    def build(
        config: ModelConfig, weights: CudaWeights, *, capacity: int, device: torch.device
    ) -> Arena:
        """Allocate for `capacity` positions."""
        hidden, positions = config.hidden_size, cached_positions(capacity)
        mtp = weights.mtp is not None
        mtp_rows = MAX_ROWS if mtp else VERIFY_ROWS

        def rows(count: int, *shape: int) -> Tensor:
            return torch.zeros(count, *shape, dtype=torch.bfloat16, device=device)

        def whole(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        def cache(layers: int) -> KvStack:
            shape = (layers, config.kv_heads, positions, config.head_dim)
            return KvStack(rows(*shape), rows(*shape))

        deltas = [layer for layer in weights.layers if isinstance(layer, CudaDelta)]
        mixers = [layer.project.width for layer in weights.layers]
        mixers += [] if weights.mtp is None else [weights.mtp.layer.project.width]
        outputs = max(config.value_width, config.attention_width)
        chain = tree_paths(torch.arange(-1, VERIFY_ROWS - 1, dtype=torch.int32))
        return Arena(
            inputs=Staged(pass_inputs_size(), device),
            draft_inputs=Staged(4 * MAX_DRAFT + mtp_rows, device),
            picked=Staged(VERIFY_ROWS, device),
            places=torch.arange(positions, device=device),
            chain=TreePaths(*(part.to(device) for part in chain)),
            tree=TreePaths(*(part.to(device, copy=True) for part in chain)),
            residual=rows(MAX_ROWS, hidden),
            normed=rows(MAX_ROWS, hidden),
            mixed=rows(MAX_ROWS, hidden),
            # Behind any of its rows there are as many as a product of few rows reads.
            hidden=rows(MAX_ROWS + VERIFY_ROWS, hidden),
            projected=rows(MAX_ROWS, max(mixers)),
            gates=rows(MAX_ROWS, max((layer.gates.width for layer in deltas), default=COLUMNS)),
            attended=rows(MAX_ROWS, outputs),
            query=rows(MAX_ROWS, config.attention_heads, config.head_dim),
            gate_up=rows(MAX_ROWS, 2 * config.intermediate_size),
            inner=rows(MAX_ROWS, config.intermediate_size),
            logits=whole(VERIFY_ROWS, -(-config.vocab_size // COLUMNS) * COLUMNS),
            best=whole(VERIFY_ROWS, dtype=torch.int32),
            delta=DeltaStack.zeros(config, device),
            kv=cache(len(config.attention_layers)),
            mtp_kv=cache(1).layer(0) if mtp else None,
            mtp_waiting=rows(mtp_rows, hidden),
            mtp_pair=rows(mtp_rows, 2 * hidden),
            mtp_hidden=rows(mtp_rows + VERIFY_ROWS, hidden),
            draft_ids=whole(MAX_DRAFT, _STEP, dtype=torch.int32),
            draft_figures=whole(MAX_DRAFT, _STEP),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of every buffer on the device."""
        return sum(_nbytes(getattr(self, field.name)) for field in fields(self))


def cached_positions(capacity: int) -> int:
    """Positions that caches hold for a context of so many: a pass's rows behind it, and whole blocks."""
    return -(-(capacity + VERIFY_ROWS) // VERIFY_ROWS) * VERIFY_ROWS


def arena_bytes(config: ModelConfig, capacity: int) -> int:
    """About what an arena of this shape takes, before there are weights."""
    positions = cached_positions(capacity)
    attention = len(config.attention_layers) + (1 if config.mtp_layers else 0)
    kv = 4 * config.kv_rows * positions * attention
    channels = config.qkv_rows
    record = VERIFY_ROWS * (2 * channels + 4 * (config.key_heads * config.key_dim))
    record += VERIFY_ROWS * 4 * (2 * config.value_heads + config.value_width)
    state = 4 * config.value_heads * config.key_dim * config.value_dim
    delta = (state + 2 * record + 6 * channels) * len(config.gdn_layers)
    widest = max(channels + config.value_width, config.q_rows + 2 * config.kv_rows)
    columns = (8 if config.mtp_layers else 4) * config.hidden_size + widest + 4 * COLUMNS
    columns += max(config.value_width, config.attention_width) + config.attention_width
    columns += 3 * config.intermediate_size + 2 * config.value_heads
    activations = 2 * MAX_ROWS * columns + 4 * VERIFY_ROWS * config.hidden_size
    logits = 4 * VERIFY_ROWS * (config.vocab_size + COLUMNS)
    return kv + delta + activations + logits + 8 * positions + (64 << 10)


def _fours(size: int) -> int:
    return -(-size // 4) * 4


def _nbytes(value: object) -> int:
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, Staged):
        return value.device.nbytes
    if isinstance(value, dict):
        return sum(_nbytes(item) for item in value.values())
    if isinstance(value, tuple):
        return sum(_nbytes(item) for item in value)
    if value is None:
        return 0
    return sum(_nbytes(getattr(value, field.name)) for field in fields(value))
