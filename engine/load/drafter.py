# SPDX-License-Identifier: MIT OR Apache-2.0
"""Opens a block drafter's folder: every refusal from its headers and the target's shape, then the weights."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from engine.api import LoadProgress
from engine.errors import Cancelled, CheckpointError
from engine.load.drafter_config import read_block_config
from engine.load.files import listed, model_folder, read_json_object
from engine.load.formats import LinearPlan
from engine.load.linears import read_linear, refuse_invalid, rounded
from engine.load.matching import Matched, match_slots, tensors
from engine.load.memory import MemoryNeed, available_memory_bytes, check_memory
from engine.load.reader import TensorReader
from engine.load.safetensors_index import TensorEntry, read_index
from engine.load.stored import Nvfp4, StoredLinear
from engine.load.tensor_table import LinearSlot, Slot, VectorSlot
from engine.load.weights import parts_of
from engine.model.block_config import CONV_SIDES, CONV_TAPS, BlockConfig
from engine.model.config import ModelConfig
from engine.numbers import grouped
from kernels.nvfp4_linear.quantise import GROUP, quantise

CONFIG_FILE = "config.json"
OFF = "off"
SELECTOR = "candidate_selector."
# Drafters of this publisher were tuned on the streams that enter the named layers.
_ENTERING = "tandemllm"
_AGAIN = "Download the weight files of this drafter again."


@dataclass(frozen=True, slots=True, eq=False)
class BlockLayerWeights:
    """One drafter layer; norms are plain factors."""

    input_norm: Tensor  # bf16 [hidden]
    q: StoredLinear  # [attention_width, hidden]
    k: StoredLinear  # [kv_width, hidden]
    v: StoredLinear  # [kv_width, hidden]
    o: StoredLinear  # [hidden, attention_width]
    q_norm: Tensor  # bf16 [head_dim]
    k_norm: Tensor  # bf16 [head_dim]
    post_norm: Tensor  # bf16 [hidden]
    gate: StoredLinear  # [intermediate, hidden]
    up: StoredLinear  # [intermediate, hidden]
    down: StoredLinear  # [hidden, intermediate]
    attention_conv: Tensor  # bf16 [sides, taps, hidden]; tap 0 multiplies the row itself
    attention_kernel: StoredLinear  # [sides * taps * groups, hidden]
    mlp_conv: Tensor  # bf16 [sides, taps, hidden]
    mlp_kernel: StoredLinear  # [sides * taps * groups, hidden]


@dataclass(frozen=True, slots=True, eq=False)
class BlockWeights:
    """A whole drafter; embedding and head are the target's."""

    fc: StoredLinear  # [hidden, taps * hidden], the taps in ascending order
    hidden_norm: Tensor  # bf16 [hidden]
    norm: Tensor  # bf16 [hidden]
    hidden_projection: StoredLinear  # [rank, hidden]
    predecessor: Tensor  # bf16 [vocab, rank]
    successor: Tensor  # bf16 [vocab, rank]
    layers: tuple[BlockLayerWeights, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all stored tensors, scales included."""
        return sum(part.nbytes for part in parts_of(self))


@dataclass(frozen=True, slots=True, eq=False)
class BlockCheckpoint:
    """An opened drafter."""

    path: Path
    name: str
    config: BlockConfig
    weights: BlockWeights
    notices: tuple[str, ...]


def drafter_folder(value: str, model: Path) -> Path | None:
    """The folder that the switch names, or the drafter shipped beside a model's folder; None: no drafter.

    `value`: a path, "off", or empty for what is shipped: `drafter` inside the model's folder, else the
    neighbour whose name ends in `-drafter` instead of `-model` (or has it appended).
    """
    value = value.strip()
    if value == OFF:
        return None
    if value:
        return Path(value)
    folder = model.absolute()
    beside = folder.with_name(folder.name.removesuffix("-model") + "-drafter")
    for found in (folder / "drafter", beside):
        if (found / CONFIG_FILE).is_file():
            return found
    return None


def block_slots(config: BlockConfig) -> list[Slot]:
    """Every tensor of a drafter by its published name."""
    hidden, inner = config.hidden_size, config.intermediate_size
    kernel = CONV_SIDES * CONV_TAPS * config.conv_groups
    codes = (config.vocab_size, config.selector_rank)
    slots: list[Slot] = [
        LinearSlot("fc", hidden, len(config.taps) * hidden),
        VectorSlot("hidden_norm.weight", (hidden,)),
        VectorSlot("norm.weight", (hidden,)),
        LinearSlot(SELECTOR + "hidden_projection", config.selector_rank, hidden),
        VectorSlot(SELECTOR + "predecessor_codebook", codes),
        VectorSlot(SELECTOR + "successor_codebook", codes),
    ]
    for index in range(config.layers):
        prefix = f"layers.{index}."
        mixer = prefix + "self_attn."
        slots += [
            VectorSlot(prefix + "input_layernorm.weight", (hidden,)),
            VectorSlot(prefix + "post_attention_layernorm.weight", (hidden,)),
            LinearSlot(mixer + "q_proj", config.attention_width, hidden),
            LinearSlot(mixer + "k_proj", config.kv_width, hidden),
            LinearSlot(mixer + "v_proj", config.kv_width, hidden),
            LinearSlot(mixer + "o_proj", hidden, config.attention_width),
            VectorSlot(mixer + "q_norm.weight", (config.head_dim,)),
            VectorSlot(mixer + "k_norm.weight", (config.head_dim,)),
            LinearSlot(prefix + "mlp.gate_proj", inner, hidden),
            LinearSlot(prefix + "mlp.up_proj", inner, hidden),
            LinearSlot(prefix + "mlp.down_proj", hidden, inner),
        ]
        for conv in ("attention_conv.", "mlp_conv."):
            slots += [
                VectorSlot(prefix + conv + "base_kernel", (CONV_SIDES, CONV_TAPS, hidden)),
                LinearSlot(prefix + conv + "kernel_projection", kernel, hidden),
            ]
    return slots


def check_target(config: BlockConfig, target: ModelConfig, name: str = CONFIG_FILE) -> None:
    """Raise CheckpointError unless the drafter was made for a model of this shape; `name` is shown."""
    checks = (
        ("hidden_size", config.hidden_size, target.hidden_size),
        ("vocab_size", config.vocab_size, target.vocab_size),
        ("num_target_layers", config.target_layers, target.layers),
    )
    for field, own, wanted in checks:
        if own != wanted:
            raise CheckpointError(
                f"{name}: {field} is {grouped(own)}, but the model has {grouped(wanted)}.",
                kept="The model itself is sound.",
                next_step="Choose the drafter that was made for this model, or set QWEN38_DFLASH2=off.",
            )


def read_drafter(
    path: str | Path,
    target: ModelConfig,
    *,
    context_tokens: int = 0,
    nvfp4: bool = False,
    on_progress: Callable[[LoadProgress], None] | None = None,
    cancel: threading.Event | None = None,
    available_bytes: int | None = None,
) -> BlockCheckpoint:
    """Open a drafter's folder for a target and read its weights.

    Args:
        context_tokens: positions its cache will hold, for the memory estimate.
        nvfp4: keep the layers' projections in NVFP4, quantised here where they are stored otherwise.
        on_progress, cancel, available_bytes: as in `read_checkpoint`.

    Raises:
        CheckpointError, UnsupportedModelError: the folder cannot be used for this target; nothing large
            was read.
        MemoryShortError: the estimate exceeds what is available; nothing was read.
        Cancelled: `cancel` was set.
    """
    if cancel is not None and cancel.is_set():
        raise Cancelled("Opening the drafter was cancelled.")
    folder = model_folder(path)
    values = read_json_object(folder, CONFIG_FILE)
    if values is None:
        raise CheckpointError(
            f"{CONFIG_FILE} is missing in {str(folder)!r}.",
            next_step="Choose the folder that holds the drafter's config.json and .safetensors files.",
        )
    entering = _ENTERING in str(folder.absolute()).lower()
    config = read_block_config(
        values, default_offset=0 if entering else 1, file=f"{folder.name}/{CONFIG_FILE}"
    )
    check_target(config, target, f"{folder.name}/{CONFIG_FILE}")
    index = read_index(folder)
    matched = _match(config, index.entries)
    linears, vectors = matched.linears, matched.vectors
    entries = [entry for plan in linears.values() for entry in plan.entries]
    entries += [entry for _, entry in vectors.values()]
    need = MemoryNeed(
        weight_bytes=sum(entry.nbytes for entry in entries),
        transient_bytes=max(entry.nbytes for entry in entries),
        kv_bytes=4 * config.layers * config.kv_width * context_tokens,
        context_tokens=context_tokens,
        state_bytes=0,
    )
    check_memory(need, available_memory_bytes() if available_bytes is None else available_bytes)
    total = sum(entry.nbytes for entry in entries)
    with TensorReader(total, on_progress, cancel) as reader:
        weights = _Builder(config, linears, vectors, reader, nvfp4=nvfp4).drafter()
    notices = index.notices
    if entering and "tap_offset" not in values["dflash_config"]:
        notices += (
            f"The drafter {folder.name} reads the streams that enter layers "
            f"{', '.join(map(str, config.taps))}, as its publisher's drafters do.",
        )
    return BlockCheckpoint(folder, folder.name, config, weights, notices)


def _match(config: BlockConfig, found: dict[str, TensorEntry]) -> Matched:
    """Every slot with its tensors; raises CheckpointError for what is missing, wrong or left over."""
    matched = match_slots(block_slots(config), found)
    for names, what in ((matched.missing, "lack"), (list(matched.unclaimed), "hold unknown")):
        if names:
            raise CheckpointError(
                f"The drafter's weight files {what} {tensors(len(names))}: {listed(names)}.",
                next_step=_AGAIN if what == "lack" else "Use the files of one published drafter.",
            )
    return matched


class _Builder:
    """Reads planned tensors into weight records."""

    def __init__(
        self,
        config: BlockConfig,
        linears: dict[str, LinearPlan],
        vectors: dict[str, tuple[VectorSlot, TensorEntry]],
        reader: TensorReader,
        *,
        nvfp4: bool,
    ) -> None:
        self._config, self._linears, self._vectors = config, linears, vectors
        self._reader, self._nvfp4 = reader, nvfp4

    def drafter(self) -> BlockWeights:
        return BlockWeights(
            fc=self._linear("fc"),
            hidden_norm=self._vector("hidden_norm.weight"),
            norm=self._vector("norm.weight"),
            hidden_projection=self._linear(SELECTOR + "hidden_projection"),
            predecessor=self._vector(SELECTOR + "predecessor_codebook"),
            successor=self._vector(SELECTOR + "successor_codebook"),
            layers=tuple(self._layer(f"layers.{i}.") for i in range(self._config.layers)),
        )

    def _layer(self, prefix: str) -> BlockLayerWeights:
        mixer, mlp = prefix + "self_attn.", prefix + "mlp."
        return BlockLayerWeights(
            input_norm=self._vector(prefix + "input_layernorm.weight"),
            q=self._projection(mixer + "q_proj"),
            k=self._projection(mixer + "k_proj"),
            v=self._projection(mixer + "v_proj"),
            o=self._projection(mixer + "o_proj"),
            q_norm=self._vector(mixer + "q_norm.weight"),
            k_norm=self._vector(mixer + "k_norm.weight"),
            post_norm=self._vector(prefix + "post_attention_layernorm.weight"),
            gate=self._projection(mlp + "gate_proj"),
            up=self._projection(mlp + "up_proj"),
            down=self._projection(mlp + "down_proj"),
            attention_conv=self._vector(prefix + "attention_conv.base_kernel"),
            attention_kernel=self._linear(prefix + "attention_conv.kernel_projection"),
            mlp_conv=self._vector(prefix + "mlp_conv.base_kernel"),
            mlp_kernel=self._linear(prefix + "mlp_conv.kernel_projection"),
        )

    def _vector(self, name: str) -> Tensor:
        tensor = rounded(self._reader.read(self._vectors[name][1]))
        refuse_invalid(tensor, self._vectors[name][1])
        return tensor

    def _linear(self, module: str) -> StoredLinear:
        return read_linear(self._reader, self._linears[module])

    def _projection(self, module: str) -> StoredLinear:
        stored = self._linear(module)
        if not self._nvfp4 or isinstance(stored, Nvfp4) or stored.shape[1] % GROUP:
            return stored
        return Nvfp4(*quantise(stored.dequantise().float(), "clip"))
