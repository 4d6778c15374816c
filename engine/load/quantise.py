# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes a quantised copy of a checkpoint: projections in NVFP4, the head in FP8 with a scale for every row.

The result lies in the ModelOpt layout, one tensor read and one written at a time. Norms, convolution, gates
and the embedding stay as they are.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engine.api import LoadProgress
from engine.errors import Cancelled, CheckpointError, UsageError
from engine.load import formats
from engine.load.checkpoint import CONFIG_FILE, inspect_checkpoint
from engine.load.linears import refuse_invalid
from engine.load.plan import LoadPlan
from engine.load.reader import TensorReader
from engine.load.safetensors_index import TensorEntry
from engine.load.stored import NVFP4_GROUP
from engine.load.writer import (
    HEAD,
    copy_text_files,
    new_folder,
    published_name,
    quantization_config,
    write_shards,
)
from kernels.fp8_linear.quantise import quantise_rows
from kernels.nvfp4_linear.quantise import quantise
from kernels.nvfp4_linear.reference import dequantise_nvfp4

METHODS = ("rtn", "clip")
_SHARD_BYTES = 4 << 30
_EMBEDDING = "embed_tokens.weight"
_STEERING = ("in_proj_a", "in_proj_b", ".mlp.gate", ".mlp.shared_expert_gate")
_CARD = "README.md"


@dataclass(frozen=True, slots=True)
class ModuleReport:
    """One written linear: its format, bytes, and the error of its values relative to their RMS."""

    module: str
    format_name: str
    nbytes: int
    relative_error: float


def quantise_checkpoint(
    source: str | Path,
    target: str | Path,
    *,
    method: str = "clip",
    on_progress: Callable[[LoadProgress], None] | None = None,
    cancel: threading.Event | None = None,
) -> list[ModuleReport]:
    """Quantise the folder `source` into the new folder `target`; returns a report of every linear.

    Raises:
        UsageError: an unknown method, or a target that is a file or a folder that is not empty.
        CheckpointError: the source cannot be read, is quantised already or holds a value that is no number,
            or the target cannot be written.
        Cancelled: the cancel was set; what was written of the target is removed.
    """
    if method not in METHODS:
        raise UsageError(
            f"Method {method!r} is not known.", next_step=f"Use {' or '.join(METHODS)}."
        )
    found = inspect_checkpoint(source)
    for module, plan in found.plan.linears.items():
        if plan.form != formats.DENSE:
            raise CheckpointError(
                f"{module} in {found.path.name} is quantised already ({plan.form}).",
                next_step="Give the BF16 checkpoint it was made from.",
            )
    reports: list[ModuleReport] = []
    kept = "The source is untouched; the unfinished copy was removed."
    total = sum(entry.nbytes for entry in found.plan.entries)
    try:
        with new_folder(target, kept=kept) as folder:
            with TensorReader(total, on_progress, cancel) as reader:
                tensors = _tensors(found.plan, reader, method, reports)
                write_shards(folder, tensors, shard_bytes=_SHARD_BYTES)
            _write_config(found.path, folder, found.plan)
            copy_text_files(found.path, folder)
            if (found.path / _CARD).is_file():
                shutil.copy2(found.path / _CARD, folder / _CARD)
    except Cancelled:  # the reader speaks of opening a model
        raise Cancelled("Quantising was cancelled.", kept=kept) from None
    return reports


def _tensors(
    plan: LoadPlan, reader: TensorReader, method: str, reports: list[ModuleReport]
) -> Iterator[tuple[str, Tensor]]:
    def stored(module: str, weight: Tensor, entry: TensorEntry) -> Iterator[tuple[str, Tensor]]:
        refuse_invalid(weight, entry)
        parts, values = _quantised(module, weight, method)
        for suffix, tensor in parts.items():
            yield published_name(f"{module}.{suffix}"), tensor
        error = (values - weight).square().mean().sqrt()
        rms = weight.square().mean().sqrt().clamp_min(1e-30)
        size = sum(tensor.nbytes for tensor in parts.values())
        name = {1: "BF16", 2: "FP8", 3: "NVFP4"}[len(parts)]
        reports.append(ModuleReport(module, name, size, float(error / rms)))

    for name, (_, entry) in plan.vectors.items():
        tensor = reader.read(entry)
        refuse_invalid(tensor, entry)
        yield published_name(name), tensor
        if name == _EMBEDDING and plan.config.tied:
            # A tied head gets codes of its own: gathering wants BF16, the product FP8.
            yield from stored(HEAD, tensor.float(), entry)
    for module, linear in plan.linears.items():
        yield from stored(module, reader.read(linear.codes).float(), linear.codes)


def _quantised(module: str, weight: Tensor, method: str) -> tuple[dict[str, Tensor], Tensor]:
    """The stored parts of a linear and the float32 values they stand for."""
    if module == HEAD:
        codes, scale = quantise_rows(weight)
        values = codes.float() * scale[:, None]
        return {"weight": codes, "weight_scale": scale[:, None].contiguous()}, values
    if _stays_dense(module, weight.shape[1]):
        return {"weight": weight.to(torch.bfloat16)}, weight.to(torch.bfloat16).float()
    codes, scales, scale_2 = quantise(weight, method)
    parts = {
        "weight": codes,
        "weight_scale": scales,
        "weight_scale_2": torch.tensor(scale_2, dtype=torch.float32),
    }
    return parts, dequantise_nvfp4(codes, scales, scale_2).float()


def _stays_dense(module: str, columns: int) -> bool:
    """Gates and routers are tiny and steer; rows that do not divide into groups have no NVFP4 form."""
    return module.endswith(_STEERING) or columns % NVFP4_GROUP != 0


def _write_config(source: Path, folder: Path, plan: LoadPlan) -> None:
    values = json.loads((source / CONFIG_FILE).read_text("utf-8-sig"))
    nvfp4 = [
        module
        for module, linear in plan.linears.items()
        if module != HEAD and not _stays_dense(module, linear.slot.columns)
    ]
    for part in (values, values.get("text_config") or {}):
        if "tie_word_embeddings" in part:
            part["tie_word_embeddings"] = False
    values["quantization_config"] = quantization_config(nvfp4)
    (folder / CONFIG_FILE).write_text(json.dumps(values, indent=2) + "\n", "utf-8")
