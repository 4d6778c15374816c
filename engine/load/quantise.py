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
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from engine.api import LoadProgress
from engine.errors import CheckpointError, UsageError
from engine.load import formats
from engine.load.checkpoint import CONFIG_FILE, inspect_checkpoint
from engine.load.plan import LoadPlan
from engine.load.reader import TensorReader
from kernels.fp8_linear.quantise import quantise_rows
from kernels.nvfp4_linear.quantise import quantise
from kernels.nvfp4_linear.reference import dequantise_nvfp4

METHODS = ("rtn", "clip")
_SHARD_BYTES = 4 << 30
_GROUP = 16
_EMBEDDING = "embed_tokens.weight"
_HEAD = "lm_head"
_PREFIX = "model.language_model."
_COPIED = (
    "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json", "README.md",
    "vocab.json", "merges.txt", "special_tokens_map.json",
)  # fmt: skip


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
        CheckpointError: the source cannot be read, is quantised already, or the target cannot be written.
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
    folder = Path(target)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file.", next_step="Choose a new folder.")
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} exists and is not empty.", next_step="Choose a new folder.")
    reports: list[ModuleReport] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        total = sum(entry.nbytes for entry in found.plan.entries)
        with TensorReader(total, on_progress, cancel) as reader:
            _write_shards(folder, _tensors(found.plan, reader, method, reports))
        _write_config(found.path, folder, found.plan)
        for name in _COPIED:
            if (found.path / name).is_file():
                shutil.copy2(found.path / name, folder / name)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError | SafetensorError):
            reason = getattr(error, "strerror", None) or error
            raise CheckpointError(
                f"{folder} cannot be written: {reason}.",
                kept="The source is untouched; the unfinished copy was removed.",
                next_step="Free some space or choose another folder.",
            ) from error
        raise
    return reports


def _tensors(
    plan: LoadPlan, reader: TensorReader, method: str, reports: list[ModuleReport]
) -> Iterator[tuple[str, Tensor]]:
    def stored(module: str, weight: Tensor) -> Iterator[tuple[str, Tensor]]:
        parts, values = _quantised(module, weight, method)
        for suffix, tensor in parts.items():
            yield _published(f"{module}.{suffix}"), tensor
        error = (values - weight).square().mean().sqrt()
        rms = weight.square().mean().sqrt().clamp_min(1e-30)
        size = sum(tensor.nbytes for tensor in parts.values())
        name = {1: "BF16", 2: "FP8", 3: "NVFP4"}[len(parts)]
        reports.append(ModuleReport(module, name, size, float(error / rms)))

    for name, (_, entry) in plan.vectors.items():
        tensor = reader.read(entry)
        yield _published(name), tensor
        if name == _EMBEDDING and plan.config.tied:
            # A tied head gets codes of its own: gathering wants BF16, the product FP8.
            yield from stored(_HEAD, tensor.float())
    for module, linear in plan.linears.items():
        yield from stored(module, reader.read(linear.codes).float())


def _quantised(module: str, weight: Tensor, method: str) -> tuple[dict[str, Tensor], Tensor]:
    """The stored parts of a linear and the float32 values they stand for."""
    if module == _HEAD:
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
    """Gates are tiny and steer the state; rows that do not divide into groups have no NVFP4 form."""
    return module.endswith(("in_proj_a", "in_proj_b")) or columns % _GROUP != 0


def _published(name: str) -> str:
    return name if name.startswith(("mtp.", "lm_head")) else _PREFIX + name


def _write_shards(folder: Path, tensors: Iterator[tuple[str, Tensor]]) -> None:
    """Files of at most _SHARD_BYTES; one file alone has the plain name and no index."""
    batch: dict[str, Tensor] = {}
    where: dict[str, str] = {}
    files: list[Path] = []

    def flush() -> None:
        path = folder / f"model-{len(files) + 1:05d}.safetensors"
        save_file(batch, path, metadata={"format": "pt"})
        where.update(dict.fromkeys(batch, path.name))
        files.append(path)
        batch.clear()

    for name, tensor in tensors:
        batch[name] = tensor.contiguous()
        if sum(part.nbytes for part in batch.values()) >= _SHARD_BYTES:
            flush()
    if batch:
        flush()
    if len(files) == 1:
        files[0].rename(folder / "model.safetensors")
        return
    total = sum(path.stat().st_size for path in files)
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1), "utf-8")


def _write_config(source: Path, folder: Path, plan: LoadPlan) -> None:
    values = json.loads((source / CONFIG_FILE).read_text("utf-8-sig"))
    layers = {_HEAD: {"quant_algo": "FP8"}}
    for module, linear in plan.linears.items():
        if module != _HEAD and not _stays_dense(module, linear.slot.columns):
            name = _published(module)
            layers[name] = {"quant_algo": "W4A16_NVFP4", "group_size": _GROUP}
    for part in (values, values.get("text_config") or {}):
        if "tie_word_embeddings" in part:
            part["tie_word_embeddings"] = False
    values["quantization_config"] = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": layers,
        "producer": {"name": "rondo"},
    }
    (folder / CONFIG_FILE).write_text(json.dumps(values, indent=2) + "\n", "utf-8")
