# SPDX-License-Identifier: MIT OR Apache-2.0
"""Profile files: KEY=value lines that set switches. Reading one executes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from engine.errors import RondoError, UsageError
from engine.knob_table import knob_named
from engine.paths import beside_profile
from engine.replace_file import replace_text

_LIMIT_BYTES = 1 << 20
_ANOTHER = "Give the path of a file of KEY=value lines."


def read_profile(path: Path) -> dict[str, str]:
    """The KEY=value lines of an env file, by full name.

    Blank lines and lines that start with # are skipped. A relative path is taken from the file's own folder
    where that has it. UsageError carries the line number.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_LIMIT_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(
            f"{path}: cannot read the profile: {reason}.", next_step=_ANOTHER
        ) from error
    if len(data) > _LIMIT_BYTES:
        raise UsageError(
            f"{path}: larger than {_LIMIT_BYTES} bytes, not a profile.", next_step=_ANOTHER
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}: the profile is not UTF-8 text (byte {error.start}).", next_step=_ANOTHER
        ) from error
    values: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        key, equals, value = line.partition("=")
        key, value = key.strip(), value.strip()
        where = f"{path}, line {number}"
        if not equals:
            raise UsageError(
                f"{where}: expected KEY=value, got {line[:80]!r}.",
                next_step="Correct the line, or begin it with # to leave it out.",
            )
        if key in values:
            raise UsageError(f"{where}: {key} stands twice.", next_step="Remove one of them.")
        try:
            knob = knob_named(key)
            knob.parse(value)
        except UsageError as error:
            raise UsageError(f"{where}: {error.cause}", next_step=error.next_step) from None
        values[key] = beside_profile(path, value) if knob.kind == "path" else value
    return values


def write_profile(path: Path, values: Mapping[str, str], *, note: str = "") -> None:
    """Write `values` (full names) so that `read_profile` gives them back; the old file stays until then.

    `note` becomes comment lines at the top. Raises UsageError for a name or value that no profile may hold, and
    RondoError when the file cannot be written.
    """
    lines = [f"# {line}" for line in note.splitlines()]
    for key, value in values.items():
        knob_named(key).parse(value)
        lines.append(f"{key}={value.strip()}")
    try:
        replace_text(path, "\n".join(lines) + "\n")
    except OSError as error:
        raise RondoError(
            f"{path}: the profile cannot be written: {error.strerror}.",
            kept="The file that stood there is unchanged.",
            next_step="Choose another folder.",
        ) from error
