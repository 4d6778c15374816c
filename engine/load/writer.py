# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes a model folder in the ModelOpt layout: published names, shards with their index, the config's part."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from engine.errors import CheckpointError, UsageError, reason_of
from engine.load.stored import NVFP4_GROUP
from engine.path_status import is_folder, path_status

HEAD = "lm_head"
_PREFIX = "model.language_model."
_COPIED = (
    "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json", "vocab.json",
    "merges.txt", "special_tokens_map.json",
)  # fmt: skip


@contextmanager
def new_folder(target: str | Path, *, kept: str) -> Iterator[Path]:
    """Make the folder `target` for the length of the block; what was written is removed when it fails.

    Args:
        kept: what an error of writing says is left as it was.

    Raises:
        UsageError: the target is a file or a folder that is not empty; it is left alone.
        CheckpointError: it cannot be written.
    """
    folder = Path(target)
    try:
        if path_status(folder) is not None:
            if not is_folder(folder):
                raise UsageError(f"{folder} is a file.", next_step="Choose a new folder.")
            if any(folder.iterdir()):
                raise UsageError(
                    f"{folder} exists and is not empty.", next_step="Choose a new folder."
                )
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error, kept) from error
    try:
        yield folder
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError | SafetensorError):
            raise _unwritable(folder, error, kept) from error
        raise


def _unwritable(folder: Path, error: Exception, kept: str) -> CheckpointError:
    return CheckpointError(
        f"{folder} cannot be written: {reason_of(error)}.",
        kept=kept,
        next_step="Free some space or choose another folder.",
    )


def published_name(name: str) -> str:
    """The canonical name of a tensor or a module with the prefix that published files have."""
    return name if name.startswith(("mtp.", HEAD)) else _PREFIX + name


def write_shards(folder: Path, tensors: Iterable[tuple[str, Tensor]], *, shard_bytes: int) -> None:
    """Files of about `shard_bytes`; one file alone has the plain name and no index."""
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
        if sum(part.nbytes for part in batch.values()) >= shard_bytes:
            flush()
    if batch:
        flush()
    if len(files) == 1:
        files[0].rename(folder / "model.safetensors")
        return
    total = sum(path.stat().st_size for path in files)
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1), "utf-8")


def quantization_config(nvfp4_modules: Iterable[str]) -> dict[str, Any]:
    """The part of config.json about an FP8 head and NVFP4 linears, which are given by canonical name."""
    layers: dict[str, dict[str, Any]] = {HEAD: {"quant_algo": "FP8"}}
    for module in nvfp4_modules:
        # One entry stands for all experts of a layer.
        name = re.sub(r"(\.mlp\.experts)\..*", r"\1", published_name(module))
        layers[name] = {"quant_algo": "W4A16_NVFP4", "group_size": NVFP4_GROUP}
    return {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": layers,
        "producer": {"name": "rondo"},
    }


def copy_text_files(source: Path, folder: Path) -> None:
    """The tokenizer's files, the chat template and the generation defaults, as far as `source` has them."""
    for name in _COPIED:
        if (source / name).is_file():
            shutil.copy2(source / name, folder / name)
