# SPDX-License-Identifier: MIT OR Apache-2.0
"""Matches the tensors of a folder with those the model needs: every slot filled, nothing left over."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from engine.errors import CheckpointError, UnsupportedModelError
from engine.load.expert_stacks import unstack_experts
from engine.load.files import listed
from engine.load.formats import DENSE, LinearPlan
from engine.load.matching import match_slots, tensors
from engine.load.safetensors_index import TensorEntry, TensorIndex
from engine.load.tensor_table import (
    Slot,
    VectorSlot,
    canonical_name,
    head_slot,
    model_slots,
    mtp_slots,
)
from engine.model.config import FULL, ModelConfig

_LAYER = re.compile(r"layers\.([0-9]{1,6})\.(linear_attn|self_attn)?")
_MTP_LAYER = re.compile(r"mtp\.layers\.([0-9]{1,6})\.")


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What to read: `linears` by module name, `vectors` by canonical name.

    `config` is the model's config with `tied` and `mtp_layers` as the tensors show them.
    """

    config: ModelConfig
    linears: dict[str, LinearPlan]
    vectors: dict[str, tuple[VectorSlot, TensorEntry]]
    notices: tuple[str, ...]
    cast_notices: tuple[str, ...]  # those of `notices` that speak of rounding to BF16

    @property
    def entries(self) -> list[TensorEntry]:
        """Every tensor that will be read."""
        entries = [entry for plan in self.linears.values() for entry in plan.entries]
        return entries + [entry for _, entry in self.vectors.values()]


def make_plan(config: ModelConfig, index: TensorIndex) -> LoadPlan:
    """Find every tensor of the model, and refuse what is missing, wrong or unknown.

    Raises:
        CheckpointError: naming the file, the tensor, what was expected and what was found.
        UnsupportedModelError: a tensor layout that this engine does not run.
    """
    found = _by_canonical_name(index.entries.values())
    _check_layers(config, found)
    if config.experts:
        found = unstack_experts(config, found)
    config, slots = _decide_heads(config, found)
    matched = match_slots(slots, found)
    if matched.missing:
        _refuse_missing(matched.missing)
    unclaimed, linears, vectors = matched.unclaimed, matched.linears, matched.vectors
    for index_ in config.attention_layers:  # KV-cache scales may hang on the attention itself
        for part in ("k_scale", "v_scale"):
            unclaimed.pop(f"layers.{index_}.self_attn.{part}", None)
    if unclaimed:
        _refuse_unclaimed(unclaimed)
    casts = _cast_notices(linears, vectors)
    return LoadPlan(config, linears, vectors, index.notices + casts, casts)


def _by_canonical_name(entries: Iterable[TensorEntry]) -> dict[str, TensorEntry]:
    found: dict[str, TensorEntry] = {}
    for entry in entries:
        name = canonical_name(entry.name)
        if name is None:
            continue
        if name in found:
            raise CheckpointError(
                f"One tensor stands under two names: {found[name].name} in {found[name].file.name} "
                f"and {entry.name} in {entry.file.name}.",
                next_step="Remove the file that does not belong to this model.",
            )
        found[name] = entry
    return found


def _check_layers(config: ModelConfig, found: dict[str, TensorEntry]) -> None:
    """The number and the kind of the layers, by config and by tensors."""
    last: tuple[int, TensorEntry] | None = None
    mixers: list[tuple[int, str, TensorEntry]] = []
    for name, entry in found.items():
        match = _LAYER.match(name)
        if not match:
            continue
        _refuse_foreign(name, entry, has_experts=config.experts > 0)
        layer = int(match[1])
        if last is None or layer > last[0]:
            last = (layer, entry)
        if match[2]:
            mixers.append((layer, match[2], entry))
    if last is not None and last[0] + 1 != config.layers:
        raise CheckpointError(
            f"config.json: num_hidden_layers is {config.layers}, but the tensors have {last[0] + 1} "
            f"layers (the last is {last[1].name} in {last[1].file.name}).",
            next_step="Set num_hidden_layers to the published value; an MTP layer does not count.",
        )
    for layer, mixer, entry in mixers:
        kind = config.layer_types[layer]
        if mixer != ("self_attn" if kind == FULL else "linear_attn"):
            raise CheckpointError(
                f"config.json: layer {layer} is {kind}, but {entry.file.name} holds {entry.name}.",
                next_step="Use the layer_types that were published with these weights.",
            )


def _refuse_foreign(name: str, entry: TensorEntry, *, has_experts: bool) -> None:
    for mark, what in (
        (".linear_attn.in_proj_qkvz.", "the fused projections of Qwen3-Next"),
        (".linear_attn.in_proj_ba.", "the fused projections of Qwen3-Next"),
        (".qweight", "GPTQ or AWQ weights"),
        (".lora_A.", "LoRA adapters"),
    ):
        if mark in name:
            raise UnsupportedModelError(
                f"{entry.file.name}: tensor {entry.name} belongs to {what}, which this engine does "
                "not run.",
                next_step="Choose a BF16, FP8 or NVFP4 checkpoint of the Qwen3.5 family.",
            )
    if ".mlp.experts." in name and not has_experts:
        raise UnsupportedModelError(
            f"config.json describes a dense model, but {entry.file.name} holds {entry.name} of "
            "mixture-of-experts layers.",
            next_step="Use the config.json and the weights of one published model.",
        )


def _decide_heads(
    config: ModelConfig, found: dict[str, TensorEntry]
) -> tuple[ModelConfig, list[Slot]]:
    """The slots of the whole model; output head and MTP head exist where tensors of them do."""
    slots = model_slots(config)
    has_head = any(name.startswith("lm_head.") for name in found)
    if has_head or not config.tied:
        slots.append(head_slot(config))
    mtp = {name: entry for name, entry in found.items() if name.startswith("mtp.")}
    for name, entry in mtp.items():
        match = _MTP_LAYER.match(name)
        if match and int(match[1]) > 0:
            raise UnsupportedModelError(
                f"{entry.file.name}: tensor {entry.name} belongs to a second MTP layer; this engine "
                "runs one.",
                next_step="Choose a checkpoint with one MTP layer.",
            )
    if mtp:
        slots += mtp_slots(config)
    elif config.mtp_layers:
        raise CheckpointError(
            f"config.json declares {config.mtp_layers} MTP layer (mtp_num_hidden_layers), but none of "
            f"its {len(mtp_slots(config))} tensors (mtp.*) is in the weight files.",
            next_step="Download the complete weights, or set mtp_num_hidden_layers to 0 in "
            "config.json to run without the MTP head.",
        )
    return replace(config, tied=not has_head and config.tied, mtp_layers=1 if mtp else 0), slots


def _refuse_missing(missing: list[str]) -> None:
    only_mtp = all(name.startswith("mtp.") for name in missing)
    next_step = "Download the weight files of this model again."
    if only_mtp:
        next_step += (
            " To run without drafting, remove all mtp.* tensors and set mtp_num_hidden_layers to 0."
        )
    raise CheckpointError(
        f"The weight files lack {tensors(len(missing))}: {listed(missing)}.",
        next_step=next_step,
    )


def _refuse_unclaimed(unclaimed: dict[str, TensorEntry]) -> None:
    names = [f"{entry.name} in {entry.file.name}" for entry in unclaimed.values()]
    raise CheckpointError(
        f"The weight files hold {tensors(len(names))} that no part of this model reads: {listed(names)}.",
        next_step="Use the weights of a model of the Qwen3.5 family as they were published.",
    )


def _cast_notices(
    linears: dict[str, LinearPlan], vectors: dict[str, tuple[VectorSlot, TensorEntry]]
) -> tuple[str, ...]:
    dtypes = {plan.codes.dtype for plan in linears.values() if plan.form == DENSE}
    dtypes |= {entry.dtype for slot, entry in vectors.values() if not slot.exact}
    wide = sorted(dtypes - {"BF16"})
    if not wide:
        return ()
    return (f"Weights stored as {' and '.join(wide)} are rounded to BF16.",)
