# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes a quantised copy of a checkpoint: projections in NVFP4, the head in FP8 with a scale for every row.

The result lies in the ModelOpt layout, one tensor read and one written at a time. Norms, convolution, gates
and the embedding stay as they are.

With calibration text the layers' linears are settled in the order of a forward over it, each on the inputs
that the quantised model will give it. One linear is in float32 at a time, or those that read one input; beside
them the sum of squares of that input, K^2 float32 numbers, and the rows of the text.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from engine.allocation import allocating
from engine.api import LoadProgress
from engine.errors import Cancelled, CheckpointError, UsageError
from engine.load import formats
from engine.load.calibration_text import calibration_ids
from engine.load.checkpoint import CONFIG_FILE, inspect_checkpoint
from engine.load.linears import refuse_invalid
from engine.load.plan import LoadPlan
from engine.load.reader import TensorReader
from engine.load.stored import NVFP4_GROUP
from engine.load.writer import (
    HEAD,
    copy_text_files,
    new_folder,
    published_name,
    quantization_config,
    write_shards,
)
from engine.model.calibration import CalibrationForward
from kernels.fp8_linear.quantise import quantise_rows
from kernels.nvfp4_linear.gptq import output_error, quantise_gptq
from kernels.nvfp4_linear.quantise import quantise
from kernels.nvfp4_linear.reference import dequantise_nvfp4

METHODS = ("rtn", "clip", "gptq")
CALIBRATION_TOKENS = 8192
QUANTISING = "quantising"
_SHARD_BYTES = 4 << 30
_EMBEDDING = "embed_tokens.weight"
_STEERING = ("in_proj_a", "in_proj_b", ".mlp.gate", ".mlp.shared_expert_gate")
_CARD = "README.md"
_LEAST_ROWS = 2 * NVFP4_GROUP  # of an expert, below which its inputs say too little


@dataclass(frozen=True, slots=True)
class ModuleReport:
    """One written linear: its format, bytes, and the error of its values relative to their RMS.

    method: how an NVFP4 linear was made; empty for another format. calibration_rows: how many rows of the text
    it read. output_error: the RMS error of its outputs on those rows relative to their RMS, None for a linear
    that is not NVFP4 or read no row.
    """

    module: str
    format_name: str
    nbytes: int
    relative_error: float
    method: str = ""
    calibration_rows: int = 0
    output_error: float | None = None


def quantise_checkpoint(
    source: str | Path,
    target: str | Path,
    *,
    method: str = "clip",
    calibration: Sequence[str] | None = None,
    calibration_tokens: int = CALIBRATION_TOKENS,
    on_progress: Callable[[LoadProgress], None] | None = None,
    cancel: threading.Event | None = None,
) -> list[ModuleReport]:
    """Quantise the folder `source` into the new folder `target`; returns a report of every linear.

    Args:
        method: "rtn", "clip" or "gptq"; the last needs calibration text. "clip" weighs errors by the mean
            squares of the inputs where there is such text.
        calibration: texts, each run from an empty context. An expert that fewer than 32 rows reach is made
            by "clip" without them.
        calibration_tokens: how many tokens of them to use; time is proportional.

    Raises:
        UsageError: an unknown method, calibration text that is missing or too short, or a target that is a
            file or a folder that is not empty.
        CheckpointError: the source cannot be read, is quantised already or holds a value that is no number,
            or the target cannot be written.
        NumericsError: the model gives numbers that are not finite on the calibration text.
        MemoryShortError: there is no memory for the calibration of a linear.
        Cancelled: the cancel was set; what was written of the target is removed.
    """
    if method not in METHODS:
        raise UsageError(
            f"Method {method!r} is not known.", next_step=f"Use {' or '.join(METHODS)}."
        )
    if method == "gptq" and calibration is None:
        raise UsageError("Method 'gptq' needs calibration text.", next_step="Give some text.")
    found = inspect_checkpoint(source)
    for module, plan in found.plan.linears.items():
        if plan.form != formats.DENSE:
            raise CheckpointError(
                f"{module} in {found.path.name} is quantised already ({plan.form}).",
                next_step="Give the BF16 checkpoint it was made from.",
            )
    ids = None
    if calibration is not None:
        ids = calibration_ids(found.tokenizer, calibration, calibration_tokens)
    kept = "The source is untouched; the unfinished copy was removed."
    total = sum(entry.nbytes for entry in found.plan.entries)
    try:
        with new_folder(target, kept=kept) as folder:
            stages = _Stages(on_progress)
            with TensorReader(total, stages, cancel) as reader:
                copy = _Copy(found.plan, reader, method, stages, cancel)
                tensors = copy.tensors() if ids is None else copy.calibrated(ids)
                write_shards(folder, tensors, shard_bytes=_SHARD_BYTES)
            _write_config(found.path, folder, found.plan)
            copy_text_files(found.path, folder)
            if (found.path / _CARD).is_file():
                shutil.copy2(found.path / _CARD, folder / _CARD)
    except Cancelled:  # the reader speaks of opening a model
        raise Cancelled("Quantising was cancelled.", kept=kept) from None
    return copy.reports


class _Stages:
    """Passes a reader's progress on under the name of what it is read for."""

    def __init__(self, on_progress: Callable[[LoadProgress], None] | None) -> None:
        self._on_progress = on_progress
        self._last = LoadProgress(QUANTISING, 0, 0)

    def __call__(self, progress: LoadProgress) -> None:
        self._last = replace(progress, stage=self._last.stage)
        if self._on_progress is not None:
            self._on_progress(self._last)

    def begin(self, stage: str) -> None:
        """What follows is read for this."""
        self._last = replace(self._last, stage=stage)
        self(self._last)


class _Copy:
    """The tensors of the copy, made as they are asked for; `reports` grows with them."""

    def __init__(
        self,
        plan: LoadPlan,
        reader: TensorReader,
        method: str,
        stages: _Stages,
        cancel: threading.Event | None,
    ) -> None:
        self._plan = plan
        self._reader = reader
        self._method = method
        self._stages = stages
        self._cancel = cancel
        self.reports: list[ModuleReport] = []

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor of the copy, without calibration."""
        for name, tensor in self._vectors():
            yield from self._with_tied_head(name, tensor)
        for module in self._plan.linears:
            yield from self._linear(module)[0]

    def calibrated(self, ids: Sequence[Sequence[int]]) -> Iterator[tuple[str, Tensor]]:
        """Every tensor of the copy, linears settled on the tokens of each text."""
        vectors: dict[str, Tensor] = {}
        rows = torch.tensor([token for text in ids for token in text])
        for name, tensor in self._vectors():
            vectors[name] = tensor[rows] if name == _EMBEDDING else tensor
            yield from self._with_tied_head(name, tensor)
        made: list[tuple[str, Tensor]] = []

        def settle(modules: Sequence[str], x: Tensor) -> list[Tensor]:
            with allocating(lambda: f"calibrating {modules[0]} on {len(x)} rows"):
                hessian = None
                if len(x) and not all(_stays_dense(self._plan, module) for module in modules):
                    hessian = x.T @ x
                settled = [self._linear(module, len(x), hessian) for module in modules]
            made.extend(part for parts, _ in settled for part in parts)
            return [values for _, values in settled]

        forward = CalibrationForward(
            self._plan.config, vectors, vectors[_EMBEDDING], [len(text) for text in ids], settle
        )
        layers = self._plan.config.layers
        for index in range(layers):
            self._stages.begin(f"calibrating layer {index + 1} of {layers}")
            forward.layer(index)
            yield from made
            made.clear()
        if self._plan.config.mtp_layers:
            self._stages.begin("calibrating the MTP head")
            forward.mtp()
            yield from made
        self._stages.begin(QUANTISING)
        if HEAD in self._plan.linears:
            yield from self._linear(HEAD)[0]

    def _vectors(self) -> Iterator[tuple[str, Tensor]]:
        for name, (_, entry) in self._plan.vectors.items():
            tensor = self._reader.read(entry)
            refuse_invalid(tensor, entry)
            yield name, tensor

    def _with_tied_head(self, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        yield published_name(name), tensor
        if name == _EMBEDDING and self._plan.config.tied:
            # A tied head gets codes of its own: gathering wants BF16, the product FP8.
            yield from self._stored(HEAD, tensor.float())[0]

    def _linear(
        self, module: str, rows: int = 0, hessian: Tensor | None = None
    ) -> tuple[list[tuple[str, Tensor]], Tensor]:
        """Read a linear and store it: what `_stored` returns."""
        entry = self._plan.linears[module].codes
        weight = self._reader.read(entry).float()
        refuse_invalid(weight, entry)
        return self._stored(module, weight, rows, hessian)

    def _stored(
        self, module: str, weight: Tensor, rows: int = 0, hessian: Tensor | None = None
    ) -> tuple[list[tuple[str, Tensor]], Tensor]:
        """The tensors of a linear under their published names, and the float32 values they stand for."""
        method, output = "", None
        if module == HEAD:
            codes, scale = quantise_rows(weight)
            values = codes.float() * scale[:, None]
            parts = {"weight": codes, "weight_scale": scale[:, None].contiguous()}
        elif _stays_dense(self._plan, module):
            parts = {"weight": weight.to(torch.bfloat16)}
            values = parts["weight"].float()
        else:
            method, parts = self._nvfp4(weight, rows, hessian)
            values = dequantise_nvfp4(*parts.values()).float()
            if hessian is not None:
                output = output_error(weight, values, hessian)
        error = (values - weight).square().mean().sqrt()
        rms = weight.square().mean().sqrt().clamp_min(1e-30)
        size = sum(tensor.nbytes for tensor in parts.values())
        name = {1: "BF16", 2: "FP8", 3: "NVFP4"}[len(parts)]
        self.reports.append(
            ModuleReport(module, name, size, float(error / rms), method, rows, output)
        )
        named = [(published_name(f"{module}.{part}"), tensor) for part, tensor in parts.items()]
        return named, values

    def _nvfp4(
        self, weight: Tensor, rows: int, hessian: Tensor | None
    ) -> tuple[str, dict[str, Tensor]]:
        """The method that made the codes, and the stored parts."""
        method = self._method
        if hessian is None or rows < _LEAST_ROWS:
            hessian, method = None, "clip" if method == "gptq" else method
        if hessian is not None and method == "gptq":
            codes, scales, scale_2 = quantise_gptq(weight, hessian, self._stop_if_cancelled)
        else:
            self._stop_if_cancelled()
            mean_square = None if hessian is None else hessian.diagonal() / rows
            codes, scales, scale_2 = quantise(weight, method, mean_square)
        number = torch.tensor(scale_2, dtype=torch.float32)
        return method, {"weight": codes, "weight_scale": scales, "weight_scale_2": number}

    def _stop_if_cancelled(self) -> None:
        if self._cancel is not None and self._cancel.is_set():
            raise Cancelled


def _stays_dense(plan: LoadPlan, module: str) -> bool:
    """Gates and routers are tiny and steer; rows that do not divide into groups have no NVFP4 form."""
    return module.endswith(_STEERING) or plan.linears[module].slot.columns % NVFP4_GROUP != 0


def _write_config(source: Path, folder: Path, plan: LoadPlan) -> None:
    values = json.loads((source / CONFIG_FILE).read_text("utf-8-sig"))
    nvfp4 = [module for module in plan.linears if module != HEAD and not _stays_dense(plan, module)]
    for part in (values, values.get("text_config") or {}):
        if "tie_word_embeddings" in part:
            part["tie_word_embeddings"] = False
    values["quantization_config"] = quantization_config(nvfp4)
    (folder / CONFIG_FILE).write_text(json.dumps(values, indent=2) + "\n", "utf-8")
