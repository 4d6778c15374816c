# SPDX-License-Identifier: MIT OR Apache-2.0
"""Where the product's own files and the user's folders are."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from engine.errors import UsageError, reason_of
from engine.path_status import path_status

_ROOT = Path(__file__).resolve().parent.parent
PROFILES = {
    "serve": "serve.env",
    "balanced": "serve-balanced.env",
    "fp8": "serve-fp8.env",
    "int8": "serve-int8.env",
}


def demo_model() -> Path:
    """Folder of the demo model that ships with the product."""
    return _ROOT / "assets" / "demo-model"


def prompts_file() -> Path:
    """Prompts of every kind, one a line, for gates and comparisons."""
    return _ROOT / "assets" / "prompts.txt"


def workloads_file() -> Path:
    """The prompts that A/B runs answer, by class."""
    return _ROOT / "assets" / "workloads.txt"


def policies_file() -> Path:
    """The prompts that drafting policies are compared on, several of each class."""
    return _ROOT / "assets" / "policies.txt"


def corpus_files() -> list[Path]:
    """The texts the demo model was trained on."""
    return sorted((_ROOT / "assets" / "demo-corpus").glob("*.txt"))


def profile_path(profile: str | Path | None) -> Path | None:
    """The env file of a named profile, or the path of the caller's own file; None means defaults."""
    if profile is None:
        return None
    name = str(profile)
    short = name.removeprefix("serve-")
    if short in PROFILES:
        return _ROOT / "ops" / PROFILES[short]
    why = ""
    try:
        status = path_status(name)
        if status is not None and not stat.S_ISDIR(status.st_mode):
            return Path(name)
    except (OSError, ValueError) as error:  # the latter: a name with a zero byte
        why = f": {reason_of(error)}"
    raise UsageError(
        f"Profile {name!r} is neither a file nor one of {', '.join(PROFILES)}{why}.",
        next_step="Name a profile, or give the path of a KEY=value file.",
    )


def product_path(text: str, *, own_first: bool = False) -> Path:
    """A path that a switch names: ~ is the home; a relative one is sought here, then among our own files.

    `own_first` asks our own files first, so that the present folder has no say in what they name.
    """
    text = os.path.expanduser(text)
    if (own_first or not os.path.exists(text)) and os.path.exists(_ROOT / text):
        return _ROOT / text
    return Path(text)


def beside_profile(profile: Path, text: str) -> str:
    """A path as a profile file names it, so that it means the same wherever the value goes from there.

    A relative path to something beside the file becomes one from the product's folder, or a whole one for a
    profile elsewhere. Any other text stays for `product_path`.
    """
    if not text or text.startswith("~") or os.path.isabs(text):
        return text
    found = os.path.normpath(os.path.join(os.path.abspath(profile.parent), text))
    if not os.path.exists(found):
        return text
    within = os.path.relpath(found, _ROOT)
    return found if within.startswith(os.pardir) else Path(within).as_posix()


def data_dir() -> Path:
    """The user's folder for what Rondo writes (runs, exports); not created here.

    A relative XDG_DATA_HOME counts as none, as its specification has it: runs would go with the present folder.
    """
    base = os.path.expanduser(os.environ.get("XDG_DATA_HOME", ""))
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.local/share")
    return Path(base) / "rondo"


def price_tables_dir() -> Path:
    """Folder of the verify prices measured on this machine, one file a model; not created here."""
    return data_dir() / "prices"


def shipped_prices() -> Path:
    """The verify prices that ship with the product."""
    return _ROOT / "ops" / "stair-tables.json"
