# SPDX-License-Identifier: MIT OR Apache-2.0
"""Which file of a folder holds which tensor, from the files' headers alone.

A safetensors file is an 8-byte little-endian header length, a JSON header, then the tensors' bytes without
holes. Everything is checked against the file's size before any tensor is read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any

from engine.errors import CheckpointError
from engine.load.files import (
    listed,
    not_a_file,
    parse_json_object,
    read_json_object,
    refuse_pointer,
    unreadable,
)
from engine.numbers import grouped

INDEX_NAME = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_PREFIX_BYTES = 8
DTYPE_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
    "C64": 8,
}
_AGAIN = "Download this file again."


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor's place: `offset` and `nbytes` count bytes from the start of the file."""

    name: str
    file: Path
    dtype: str  # the format's name, such as BF16
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    def describe(self) -> str:
        """Dtype and shape as errors show them."""
        return f"{self.dtype} {list(self.shape)}"


@dataclass(frozen=True, slots=True)
class TensorIndex:
    """Every tensor of a folder by name, and what the operator should know about the files."""

    entries: dict[str, TensorEntry]
    notices: tuple[str, ...]


def read_index(folder: Path) -> TensorIndex:
    """All tensors of a model folder: by its index file, else by scanning its .safetensors files.

    Raises:
        CheckpointError: no weights, a missing or damaged file, a file outside the folder, a tensor in two
            files, or an index that disagrees with the files.
    """
    index = read_json_object(folder, INDEX_NAME)
    present = sorted(
        path.name for path in folder.glob("*.safetensors") if not path.name.startswith(".")
    )
    if index is None:
        if not present:
            raise _no_weights(folder)
        return TensorIndex(_merge(folder, present), ())
    weight_map = _weight_map(index)
    shards = sorted(set(weight_map.values()))
    for name in shards:
        _inside(folder, name)
    missing = [name for name in shards if not _exists(folder / name)]
    if missing:
        raise CheckpointError(
            f"{INDEX_NAME} names {len(shards)} files, but {listed(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing.",
            next_step="Download the missing files into this folder.",
        )
    entries = _merge(folder, shards)
    _compare(weight_map, entries)
    stray = [name for name in present if name not in shards]
    notices = (f"Not read, because {INDEX_NAME} does not name it: {listed(stray)}.",)
    return TensorIndex(entries, notices if stray else ())


def read_header(path: Path) -> dict[str, TensorEntry]:
    """The tensors of one safetensors file.

    Raises:
        CheckpointError: anything that does not fit the format or the file's size.
    """
    try:
        if not path.is_file():
            raise not_a_file(path)
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(_PREFIX_BYTES)
            refuse_pointer(path.name, prefix + file.read(32 - _PREFIX_BYTES))
            file.seek(_PREFIX_BYTES)
            length = int.from_bytes(prefix, "little")
            _check_header_length(path.name, size, length)
            raw = file.read(length)
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path.name}: its header is not UTF-8.", next_step=_AGAIN) from error
    header = parse_json_object(text, f"{path.name} (header)")
    header.pop("__metadata__", None)
    start = _PREFIX_BYTES + length
    entries = {name: _entry(path, name, value, start) for name, value in header.items()}
    _check_layout(path.name, entries.values(), start, size)
    return entries


def _check_header_length(name: str, size: int, length: int) -> None:
    if size < _PREFIX_BYTES:
        raise CheckpointError(
            f"{name} has {size} bytes; a safetensors file has at least {_PREFIX_BYTES}.",
            next_step=_AGAIN,
        )
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"{name} claims a header of {grouped(length)} bytes; at most "
            f"{grouped(MAX_HEADER_BYTES)} are allowed.",
            next_step="This is not a safetensors file, or it is damaged: download it again.",
        )
    if _PREFIX_BYTES + length > size:
        raise CheckpointError(
            f"{name} is cut short: its header alone needs {grouped(_PREFIX_BYTES + length)} bytes, "
            f"the file has {grouped(size)}.",
            next_step=_AGAIN,
        )


def _entry(path: Path, name: str, value: Any, start: int) -> TensorEntry:
    def broken(what: str) -> CheckpointError:
        return CheckpointError(f"{path.name}: tensor {name} has {what}.", next_step=_AGAIN)

    if not isinstance(value, dict):
        raise broken("no description")
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise broken(f"the dtype {dtype!r}, which is not known here")
    if not _naturals(shape):
        raise broken(f"the shape {shape!r}")
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise broken(f"the data offsets {offsets!r}")
    nbytes = offsets[1] - offsets[0]
    expected = math.prod(shape) * DTYPE_BYTES[dtype]
    if nbytes != expected:
        raise broken(f"{grouped(nbytes)} bytes, but {dtype} {shape} needs {grouped(expected)}")
    return TensorEntry(name, path, dtype, tuple(shape), start + offsets[0], nbytes)


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_layout(name: str, entries: Any, start: int, size: int) -> None:
    """Tensors must follow one another without holes, and end where the file ends."""
    position = start
    for entry in sorted(entries, key=lambda entry: (entry.offset, entry.nbytes)):
        if entry.offset != position:
            raise CheckpointError(
                f"{name}: tensor {entry.name} begins at byte {grouped(entry.offset)}, expected "
                f"{grouped(position)} (tensors overlap or leave a hole).",
                next_step=_AGAIN,
            )
        position += entry.nbytes
    if size != position:
        what = "is cut short" if size < position else "has bytes after its last tensor"
        raise CheckpointError(
            f"{name} {what}: its header needs {grouped(position)} bytes, the file has {grouped(size)}.",
            next_step=_AGAIN,
        )


def _weight_map(index: dict[str, Any]) -> dict[str, str]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{INDEX_NAME} has no weight_map.", next_step=_AGAIN)
    for tensor, name in weight_map.items():
        if not isinstance(name, str):
            raise CheckpointError(
                f"{INDEX_NAME}: the file of {tensor} must be a name, but is {name!r}.",
                next_step=_AGAIN,
            )
    return weight_map


def _inside(folder: Path, name: str) -> Path:
    """folder/name, refused when it lies outside the folder, by its name or through a link."""
    pure = PureWindowsPath(name)  # understands both separators and drive letters
    parts = pure.parts
    if not parts or pure.anchor or ".." in parts or "\0" in name:
        raise _outside(name, name)
    path = folder / name
    try:
        root, target = folder.resolve(), path.resolve()
    except (OSError, RuntimeError) as error:  # a link that leads to itself
        raise unreadable(path, error) from error
    # A hub cache keeps files as links from snapshots/REVISION to its own blobs folder.
    blobs = root.parent.parent / "blobs" if root.parent.name == "snapshots" else None
    if root not in target.parents and target.parent != blobs:
        raise _outside(name, str(target))
    return path


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise unreadable(path, error) from error


def _outside(name: str, target: str) -> CheckpointError:
    return CheckpointError(
        f"The weight file {name!r} lies outside the model's folder ({target!r}).",
        next_step=f"Copy the file into the folder and correct {INDEX_NAME}.",
    )


def _merge(folder: Path, names: list[str]) -> dict[str, TensorEntry]:
    merged: dict[str, TensorEntry] = {}
    for name in names:
        for tensor, entry in read_header(_inside(folder, name)).items():
            if tensor in merged:
                raise CheckpointError(
                    f"Tensor {tensor} stands in two files: {merged[tensor].file.name} and {name}.",
                    next_step="Remove the file that does not belong to this model.",
                )
            merged[tensor] = entry
    return merged


def _compare(weight_map: dict[str, str], entries: dict[str, TensorEntry]) -> None:
    """The index and the files must name the same tensors in the same files."""
    for tensor, name in weight_map.items():
        entry = entries.get(tensor)
        if entry is None:
            raise CheckpointError(
                f"{INDEX_NAME} promises tensor {tensor} in {name}, but it is not there.",
                next_step="Download the index and this file again, both of one revision.",
            )
        if entry.file.name != Path(name).name:
            raise CheckpointError(
                f"{INDEX_NAME} promises tensor {tensor} in {name}, but {entry.file.name} holds it.",
                next_step="Download the index and the files again, all of one revision.",
            )
    for tensor, entry in entries.items():
        if tensor not in weight_map:
            raise CheckpointError(
                f"{entry.file.name} holds tensor {tensor}, which {INDEX_NAME} does not name.",
                next_step="Download the index and the files again, all of one revision.",
            )


def _no_weights(folder: Path) -> CheckpointError:
    others = sorted(
        path.name
        for pattern in ("*.bin", "*.gguf", "*.pt", "*.pth")
        for path in folder.glob(pattern)
    )
    found = f" Found instead: {listed(others)}." if others else ""
    return CheckpointError(
        f"No .safetensors file in {str(folder)!r}.{found}",
        next_step="Choose the folder of the published safetensors checkpoint.",
    )
