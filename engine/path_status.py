# SPDX-License-Identifier: MIT OR Apache-2.0
"""What stands at a path that a user named, told apart from one that cannot be followed."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def path_status(path: str | os.PathLike[str]) -> os.stat_result | None:
    """What `path` leads to, None where nothing is there.

    Raises OSError where that cannot be known: links in a circle, a folder that may not be entered, a name too
    long. `Path.exists` takes some of those, by the version of Python, for a path where nothing is.
    """
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether `path` leads to a folder. Raises OSError as `path_status` does."""
    status = path_status(path)
    return status is not None and stat.S_ISDIR(status.st_mode)


def make_folder(folder: Path, *, mode: int = 0o777) -> None:
    """Make `folder` (with `mode`) and what is missing above it. Raises OSError with the cause as it is.

    Python's own call says of links in a circle that the folder exists.
    """
    path_status(folder)
    folder.mkdir(mode=mode, parents=True, exist_ok=True)
