# SPDX-License-Identifier: MIT OR Apache-2.0
"""Opening the small files of a model folder, with errors that say what is wrong with which file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.errors import CheckpointError
from engine.numbers import grouped
from engine.path_status import is_folder, path_status
from engine.unique_keys import RepeatedKeyError, unique_keys

MAX_JSON_BYTES = 256 << 20
_SHOWN = 6  # names in a row
_LFS_POINTER = b"version https://git-lfs"


def model_folder(path: str | Path) -> Path:
    """The folder at `path`.

    Raises:
        CheckpointError: nothing is there, it is a file, or it may not be listed.
    """
    folder = Path(path)
    try:
        folder = folder.expanduser()
        if path_status(folder) is None:
            raise CheckpointError(
                f"{str(folder)!r} does not exist.",
                next_step="Choose the folder that holds config.json and the .safetensors files.",
            )
        if not is_folder(folder):
            raise CheckpointError(
                f"{str(folder)!r} is a file, not a folder.",
                next_step="Choose the folder that holds config.json and the .safetensors files.",
            )
        next(folder.iterdir(), None)
    except (OSError, ValueError, RuntimeError) as error:  # the last: ~ of a user who is not there
        raise unreadable(folder, error) from error
    return folder


def listed(names: Sequence[str]) -> str:
    """The first few of `names`, and how many more there are, as errors show them."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def unreadable(path: Path, error: Exception) -> CheckpointError:
    """A CheckpointError for a file or folder that the system does not let us read."""
    reason = getattr(error, "strerror", None) or str(error).rstrip(".")
    return CheckpointError(
        f"{str(path)!r} cannot be read: {reason}.",
        next_step="Check the path, the permissions and the disk.",
    )


def refuse_pointer(name: str, head: bytes) -> None:
    """Raise CheckpointError when a file's first bytes (32 are enough) are those of a Git LFS pointer.

    A clone without Git LFS leaves one in place of every large file; the same download gives it again.
    """
    if head.startswith(_LFS_POINTER):
        raise CheckpointError(
            f"{name} is a Git LFS pointer, a note of where the file lies, not the file.",
            next_step="Run `git lfs pull` in the model's folder, or download the file itself.",
        )


def read_text(folder: Path, name: str) -> str | None:
    """The text of folder/name without its byte order mark; None when there is no such file.

    Raises:
        CheckpointError: a folder in its place, too large, a Git LFS pointer, not UTF-8, or unreadable.
    """
    path = folder / name
    try:
        if path_status(path) is None:
            return None
        if not path.is_file():
            raise not_a_file(path)
        size = path.stat().st_size
        if size > MAX_JSON_BYTES:
            raise CheckpointError(
                f"{name} has {grouped(size)} bytes; at most {grouped(MAX_JSON_BYTES)} are expected.",
                next_step="Download this file again.",
            )
        data = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
    refuse_pointer(name, data[:32])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"{name} is not UTF-8 text: byte {error.start} of {len(data)} is invalid.",
            next_step="Download this file again.",
        ) from error


def not_a_file(path: Path) -> CheckpointError:
    """The error of something else than a file at a path that leads to something."""
    kind = "a folder" if path.is_dir() else "a pipe or a device"
    return CheckpointError(
        f"{path.name} is {kind} where a file is expected.",
        next_step="Download the model's files again.",
    )


def parse_json_object(text: str, name: str) -> dict[str, Any]:
    """A JSON object in which no key stands twice; `name` is shown in errors.

    Raises:
        CheckpointError: not JSON, not an object, a repeated key, or nested too deeply.
    """
    try:
        value = json.loads(text, object_pairs_hook=unique_keys)
    except RepeatedKeyError as error:
        raise CheckpointError(
            f"{name}: {error}.",
            next_step="Remove one of the two, or download this file again.",
        ) from error
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise CheckpointError(
            f"{name} is not valid JSON: {reason}.",
            next_step="Download this file again.",
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{name} must hold a JSON object, but holds a {type(value).__name__}.",
            next_step="Download this file again.",
        )
    return value


def read_json_object(folder: Path, name: str) -> dict[str, Any] | None:
    """The JSON object in folder/name; None when there is no such file. Raises CheckpointError."""
    text = read_text(folder, name)
    return None if text is None else parse_json_object(text, name)
