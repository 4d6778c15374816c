# SPDX-License-Identifier: MIT OR Apache-2.0
"""Putting a file in the place of another, all of it or nothing."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path

from engine.path_status import make_folder


def replace_text(path: Path, text: str) -> None:
    """Put UTF-8 `text` in the place of what `path` holds; makes the folder. Half a surrogate pair becomes "?".

    The text is on the disk before it takes the name. Raises OSError where that is not possible: what stood
    there is as it was, and no part is left.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(3)}")
    try:
        make_folder(path.parent)
        with partial.open("xb") as file:
            file.write(text.encode("utf-8", "replace"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError:
        with contextlib.suppress(OSError):  # where the folder is none there is no part either
            partial.unlink()
        raise
