# SPDX-License-Identifier: MIT OR Apache-2.0
"""Opens a model folder: every refusal first, from small files and headers, then the weights."""

from __future__ import annotations

import math
import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.allocation import allocating
from engine.api import LoadProgress
from engine.errors import Cancelled, CheckpointError, UnsupportedModelError
from engine.load import formats
from engine.load.files import model_folder, read_json_object, read_text
from engine.load.generation import GenerationDefaults, read_generation
from engine.load.linears import read_linear, refuse_invalid, rounded
from engine.load.memory import MemoryNeed, available_memory_bytes, check_memory
from engine.load.plan import LoadPlan, make_plan
from engine.load.reader import KEPT, TensorReader
from engine.load.safetensors_index import read_index
from engine.load.stored import Dense, StoredLinear
from engine.load.template import ChatTemplate
from engine.load.tensor_table import expert_prefix, mlp_prefix
from engine.load.tokenizer import Tokenizer
from engine.load.weights import (
    AttentionLayerWeights,
    ExpertWeights,
    GdnLayerWeights,
    LayerWeights,
    ModelWeights,
    MoeWeights,
    MtpWeights,
)
from engine.model.config import FULL, ModelConfig
from kernels.cpu.threads import one_torch_thread

CONFIG_FILE = "config.json"
_QUANT_METHODS = ("fp8", "modelopt", "compressed-tensors")
_CARD_HEAD_BYTES = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """An opened model folder. `weight_bytes` counts the tensors as they lie in memory."""

    path: Path
    name: str
    config: ModelConfig
    weights: ModelWeights
    tokenizer: Tokenizer
    template: ChatTemplate
    generation: GenerationDefaults
    stop_ids: tuple[int, ...]
    is_demo: bool
    weight_format: str  # BF16, or such as "NVFP4 + FP8 head"
    weight_bytes: int
    notices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Inspected:
    """All that is known of a model folder before a weight is read."""

    path: Path
    plan: LoadPlan
    tokenizer: Tokenizer
    template: ChatTemplate
    generation: GenerationDefaults
    stop_ids: tuple[int, ...]
    is_demo: bool
    notices: tuple[str, ...]


def inspect_checkpoint(path: str | Path) -> Inspected:
    """Check a model folder without reading its weights.

    Raises:
        CheckpointError, UnsupportedModelError: naming the file, the tensor or field, what was expected and
            what to do.
    """
    folder = model_folder(path)
    values = read_json_object(folder, CONFIG_FILE)
    if values is None:
        raise CheckpointError(
            f"{CONFIG_FILE} is missing in {str(folder)!r}.",
            next_step="Choose the folder that holds config.json and the .safetensors files.",
        )
    config = ModelConfig.from_dict(values)
    _check_quant_method(values)
    plan = make_plan(config, read_index(folder))
    tokenizer = Tokenizer.read(folder)
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"tokenizer.json has ids up to {tokenizer.vocab_size - 1}, but the embedding has "
            f"{config.vocab_size} rows (vocab_size in {CONFIG_FILE}).",
            next_step="Use the tokenizer.json that was published with these weights.",
        )
    template, template_notices = ChatTemplate.read(folder, tokenizer)
    generation, stop_ids, stop_notices = read_generation(folder, values, tokenizer)
    return Inspected(
        path=folder,
        plan=plan,
        tokenizer=tokenizer,
        template=template,
        generation=generation,
        stop_ids=stop_ids,
        is_demo=_is_demo(folder),
        notices=plan.notices + template_notices + stop_notices,
    )


def read_checkpoint(
    path: str | Path,
    *,
    context_tokens: int | None = None,
    keep_float32: bool = False,
    scaled_kv: bool = False,
    on_found: Callable[[Inspected], None] | None = None,
    on_progress: Callable[[LoadProgress], None] | None = None,
    cancel: threading.Event | None = None,
    available_bytes: int | None = None,
) -> Checkpoint:
    """Open a model folder and read its weights.

    Args:
        path: the folder.
        context_tokens: the context the caller will hold, for the memory estimate; None: the model's own.
        keep_float32: leave F32 tensors as they are instead of rounding them to BF16.
        scaled_kv: the context will be held in e4m3, for the memory estimate.
        on_found: called with what is known before a weight is read; what it raises ends the opening.
        on_progress: called with bytes read and the total, rising, the last time with both equal.
        cancel: checked at least every 64 MB.
        available_bytes: memory to stay within; None asks the machine.

    Raises:
        CheckpointError, UnsupportedModelError: the folder cannot be used; nothing large was read.
        MemoryShortError: the estimate exceeds what is available, and nothing was read; or an allocation
            failed, and what was read is freed.
        Cancelled: `cancel` was set; everything read so far is freed.
    """
    if cancel is not None and cancel.is_set():
        raise Cancelled("Opening the model was cancelled.")
    found = inspect_checkpoint(path)
    if on_found is not None:
        on_found(found)
    plan, config = found.plan, found.plan.config
    available = available_memory_bytes() if available_bytes is None else available_bytes
    need = memory_need(plan, context_tokens, keep_float32=keep_float32, scaled_kv=scaled_kv)
    check_memory(need, available)
    total_bytes = sum(entry.nbytes for entry in plan.entries)
    with (
        allocating(f"the weights of {_model_name(found.path)}", kept=KEPT),
        TensorReader(total_bytes, on_progress, cancel) as reader,
        one_torch_thread(config.experts > 0),
    ):
        weights = _Builder(plan, reader, keep_float32=keep_float32).model()
    notices = found.notices
    if keep_float32:
        notices = tuple(notice for notice in notices if notice not in plan.cast_notices)
    return Checkpoint(
        path=found.path,
        name=_model_name(found.path),
        config=config,
        weights=weights,
        tokenizer=found.tokenizer,
        template=found.template,
        generation=found.generation,
        stop_ids=found.stop_ids,
        is_demo=found.is_demo,
        weight_format=_weight_format(weights),
        weight_bytes=weights.nbytes,
        notices=notices,
    )


def memory_need(
    plan: LoadPlan,
    context_tokens: int | None = None,
    *,
    keep_float32: bool = False,
    scaled_kv: bool = False,
) -> MemoryNeed:
    """Bytes that a model takes once loaded, with a context of so many tokens (None: its own).

    A context longer than the model's own counts as that; `scaled_kv`: it is held in e4m3.
    """
    config = plan.config
    tokens = min(config.context_tokens, context_tokens or config.context_tokens)
    weight_bytes = 0
    for linear in plan.linears.values():
        if linear.form == formats.DENSE:
            weight_bytes += _plain_bytes(linear.codes.shape, linear.codes.dtype, keep_float32)
        else:
            weight_bytes += linear.codes.nbytes + linear.slot.rows * 4
            weight_bytes += 2 * linear.scale.nbytes if linear.scale is not None else 0
    for slot, entry in plan.vectors.values():
        dtype = "F32" if slot.exact else entry.dtype
        weight_bytes += _plain_bytes(slot.shape, dtype, keep_float32 or slot.exact)
    return MemoryNeed(
        weight_bytes=weight_bytes,
        transient_bytes=max(entry.nbytes for entry in plan.entries),
        kv_bytes=config.kv_bytes_per_token(scaled=scaled_kv) * tokens,
        context_tokens=tokens,
        state_bytes=2 * config.state_bytes,  # the committed state and the one a round works on
    )


class _Builder:
    """Reads the tensors of a plan into weight records, in the order of the model."""

    def __init__(self, plan: LoadPlan, reader: TensorReader, *, keep_float32: bool) -> None:
        self._plan = plan
        self._reader = reader
        self._keep_float32 = keep_float32

    def model(self) -> ModelWeights:
        config = self._plan.config
        return ModelWeights(
            embed=self._plain("embed_tokens.weight"),
            final_norm=self._plain("norm.weight"),
            head=None if config.tied else self._linear("lm_head"),
            layers=tuple(self._layer(i, kind) for i, kind in enumerate(config.layer_types)),
            mtp=self._mtp() if config.mtp_layers else None,
        )

    def _layer(self, index: int, kind: str) -> LayerWeights:
        prefix = f"layers.{index}."
        return self._attention(prefix) if kind == FULL else self._gdn(prefix)

    def _gdn(self, prefix: str) -> GdnLayerWeights:
        mixer, mlp = prefix + "linear_attn.", mlp_prefix(self._plan.config, prefix)
        return GdnLayerWeights(
            input_norm=self._plain(prefix + "input_layernorm.weight"),
            in_qkv=self._linear(mixer + "in_proj_qkv"),
            in_z=self._linear(mixer + "in_proj_z"),
            in_b=self._linear(mixer + "in_proj_b"),
            in_a=self._linear(mixer + "in_proj_a"),
            conv=self._plain(mixer + "conv1d.weight").squeeze(1),
            dt_bias=self._plain(mixer + "dt_bias"),
            a_log=self._plain(mixer + "A_log"),
            gdn_norm=self._plain(mixer + "norm.weight"),
            out=self._linear(mixer + "out_proj"),
            post_norm=self._plain(prefix + "post_attention_layernorm.weight"),
            gate=self._linear(mlp + "gate_proj"),
            up=self._linear(mlp + "up_proj"),
            down=self._linear(mlp + "down_proj"),
            moe=self._moe(prefix),
        )

    def _attention(self, prefix: str) -> AttentionLayerWeights:
        mixer, mlp = prefix + "self_attn.", mlp_prefix(self._plan.config, prefix)
        return AttentionLayerWeights(
            input_norm=self._plain(prefix + "input_layernorm.weight"),
            q=self._linear(mixer + "q_proj"),
            k=self._linear(mixer + "k_proj"),
            v=self._linear(mixer + "v_proj"),
            o=self._linear(mixer + "o_proj"),
            q_norm=self._plain(mixer + "q_norm.weight"),
            k_norm=self._plain(mixer + "k_norm.weight"),
            post_norm=self._plain(prefix + "post_attention_layernorm.weight"),
            gate=self._linear(mlp + "gate_proj"),
            up=self._linear(mlp + "up_proj"),
            down=self._linear(mlp + "down_proj"),
            moe=self._moe(prefix),
        )

    def _moe(self, prefix: str) -> MoeWeights | None:
        count = self._plan.config.experts
        if not count:
            return None
        return MoeWeights(
            router=self._linear(prefix + "mlp.gate"),
            shared_gate=self._linear(prefix + "mlp.shared_expert_gate"),
            experts=tuple(self._expert(expert_prefix(prefix, expert)) for expert in range(count)),
        )

    def _expert(self, prefix: str) -> ExpertWeights:
        return ExpertWeights(
            gate=self._linear(prefix + "gate_proj"),
            up=self._linear(prefix + "up_proj"),
            down=self._linear(prefix + "down_proj"),
        )

    def _mtp(self) -> MtpWeights:
        return MtpWeights(
            fc=self._linear("mtp.fc"),
            norm_embedding=self._plain("mtp.pre_fc_norm_embedding.weight"),
            norm_hidden=self._plain("mtp.pre_fc_norm_hidden.weight"),
            norm=self._plain("mtp.norm.weight"),
            layer=self._attention("mtp.layers.0."),
        )

    def _plain(self, name: str) -> Tensor:
        slot, entry = self._plan.vectors[name]
        stored = self._reader.read(entry)
        tensor = stored.float() if slot.exact else rounded(stored, keep_float32=self._keep_float32)
        refuse_invalid(tensor, entry)
        return tensor

    def _linear(self, module: str) -> StoredLinear:
        return read_linear(
            self._reader, self._plan.linears[module], keep_float32=self._keep_float32
        )


def _plain_bytes(shape: tuple[int, ...], dtype: str, keep_float32: bool) -> int:
    return math.prod(shape) * (4 if keep_float32 and dtype == "F32" else 2)


def _check_quant_method(values: dict[str, Any]) -> None:
    """The tensors decide how to read them; this only names the formats that are not read at all."""
    quantised = values.get("quantization_config")
    method = quantised.get("quant_method") if isinstance(quantised, dict) else None
    if method is not None and method not in _QUANT_METHODS:
        raise UnsupportedModelError(
            f"{CONFIG_FILE}: quantization_config.quant_method is {method!r}; this engine reads BF16 "
            f"weights and {', '.join(_QUANT_METHODS)}.",
            next_step="Choose a BF16, FP8 or NVFP4 checkpoint of this model.",
        )


def _is_demo(folder: Path) -> bool:
    """Whether the front matter of README.md says `rondo_demo: true`."""
    text = (read_text(folder, "README.md") or "")[:_CARD_HEAD_BYTES]
    match = re.match(r"---\s*\n(.*?)\n---\s*(\n|$)", text, re.DOTALL)
    return bool(match and re.search(r"^rondo_demo:\s*true\s*$", match[1], re.MULTILINE))


def _model_name(folder: Path) -> str:
    """The folder's name; of a hub cache (models--OWNER--NAME/snapshots/REVISION) OWNER/NAME."""
    path = folder.absolute()
    if path.parent.name == "snapshots" and path.parent.parent.name.startswith("models--"):
        return path.parent.parent.name.removeprefix("models--").replace("--", "/")
    return path.name or str(path)


def _weight_format(weights: ModelWeights) -> str:
    """The formats of the layers by bytes, then the head's where it differs."""
    byte_count: Counter[str] = Counter()
    for layer in weights.layers:
        names = ("in_qkv", "in_z", "out", "q", "k", "v", "o", "gate", "up", "down")
        linears = [getattr(layer, name, None) for name in names]
        for expert in layer.moe.experts if layer.moe else ():
            linears += [expert.gate, expert.up, expert.down]
        for linear in linears:
            if linear is not None:
                byte_count[_format_name(linear)] += linear.nbytes
    shown = [name for name, _ in byte_count.most_common()]
    head = _format_name(weights.head_linear)
    return " + ".join(shown if head in shown and len(shown) == 1 else [*shown, f"{head} head"])


def _format_name(linear: StoredLinear) -> str:
    is_wide = isinstance(linear, Dense) and linear.weight.dtype == torch.float32
    return "F32" if is_wide else linear.format_name
