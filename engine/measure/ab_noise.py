# SPDX-License-Identifier: MIT OR Apache-2.0
"""The noise of this machine, kept for an hour: log ratios of a setting against itself."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.measure.ab_evidence import Noise
from engine.replace_file import replace_text

SCHEMA_VERSION = 1
KEPT_S = 3600.0


def noise_key(values: Mapping[str, object]) -> str:
    """A name for what the noise depends on: machine, model, workload and how it is run."""
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class NoiseStore:
    """One small file for every key in `folder`. A file that cannot be read or written counts as absent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def recent(self, key: str, *, pairs: int = 1) -> Noise | None:
        """What was measured within the last hour, if anything was with so many pairs."""
        try:
            values = json.loads((self._folder / f"{key}.json").read_text("utf-8"))
            age_s = time.time() - float(values["measured_s"])
            ratios = tuple(float(ratio) for ratio in values["log_ratios"])
            known = values["schema_version"] == SCHEMA_VERSION
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None
        if not known or len(ratios) < pairs or not all(map(math.isfinite, ratios)):
            return None
        if not 0 <= age_s <= KEPT_S:
            return None
        return Noise(ratios, f"A against A, {len(ratios)} pairs, {age_s / 60:.0f} min before")

    def put(self, key: str, log_ratios: Sequence[float]) -> None:
        """Keep the ratios; the floor is measured again next time where that fails."""
        values = {
            "schema_version": SCHEMA_VERSION,
            "measured_s": time.time(),
            "log_ratios": list(log_ratios),
        }
        with contextlib.suppress(OSError):
            replace_text(self._folder / f"{key}.json", json.dumps(values))
