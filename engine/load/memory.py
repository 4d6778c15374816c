# SPDX-License-Identifier: MIT OR Apache-2.0
"""Whether a model fits: an estimate of what it needs against what the machine and its container have free."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.allocation import NEXT_STEP
from engine.errors import MemoryShortError
from engine.hardware import free_memory_bytes
from engine.numbers import grouped

FLOOR_BYTES = 256 << 20  # left to everything else on the machine
_UNLIMITED = 1 << 60


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes a model takes in memory: weights, the largest tensor once more while reading, KV, state."""

    weight_bytes: int
    transient_bytes: int
    kv_bytes: int
    context_tokens: int
    state_bytes: int

    @property
    def total_bytes(self) -> int:
        """Everything together, with the floor."""
        parts = (self.weight_bytes, self.transient_bytes, self.kv_bytes, self.state_bytes)
        return sum(parts) + FLOOR_BYTES


def check_memory(need: MemoryNeed, available_bytes: int) -> None:
    """Raise MemoryShortError, with the numbers, when `need` exceeds what is available."""
    if need.total_bytes <= available_bytes:
        return
    raise MemoryShortError(
        f"This model needs about {_gb(need.total_bytes)}: weights {_gb(need.weight_bytes)}, context "
        f"of {grouped(need.context_tokens)} tokens {_gb(need.kv_bytes)}, state {_gb(need.state_bytes)}, "
        f"reading {_gb(need.transient_bytes)}, {_gb(FLOOR_BYTES)} left free. "
        f"{_gb(available_bytes)} are available.",
        kept="Nothing was read.",
        next_step=NEXT_STEP,
    )


def available_memory_bytes(cgroup_root: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that can be allocated now: the machine's estimate, or the container's limit if lower."""
    return min(free_memory_bytes(), _cgroup_available(cgroup_root))


def _cgroup_available(root: Path) -> int:
    """What a control group (version 2, then 1) leaves; page cache that can be dropped counts as free."""
    for limit_name, used_name, stat_name, cache_key in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
            "total_inactive_file",
        ),
    ):
        try:
            limit = (root / limit_name).read_text().strip()
            used = int((root / used_name).read_text())
            stat = dict(line.split() for line in (root / stat_name).read_text().splitlines())
            if limit == "max" or int(limit) >= _UNLIMITED:
                return _UNLIMITED
            return max(0, int(limit) - used + int(stat.get(cache_key, 0)))
        except (OSError, ValueError):
            continue
    return _UNLIMITED


def _gb(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB"
