# SPDX-License-Identifier: MIT OR Apache-2.0
"""Memory and cores of this machine: from psutil, or from Linux itself in a Python that has none.

A GPU machine often has PyTorch and nothing else, and nothing can be added to it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

try:
    import psutil
except ModuleNotFoundError:
    psutil = None

PROC = Path("/proc")
MOST_THREADS = 256  # of a native pool


def total_memory_bytes() -> int:
    """The machine's memory."""
    return psutil.virtual_memory().total if psutil else _meminfo_bytes("MemTotal")


def free_memory_bytes() -> int:
    """What the system estimates that a program can still have; containers may allow less."""
    return psutil.virtual_memory().available if psutil else _meminfo_bytes("MemAvailable")


def available_cores() -> int:
    """Processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def physical_core_count() -> int | None:
    """Cores of the machine, two threads of one counted once; None where it does not tell."""
    if psutil:
        return psutil.cpu_count(logical=False)
    cores = re.findall(
        r"^physical id\s*: (\d+)$.*?^core id\s*: (\d+)$", _read("cpuinfo"), re.MULTILINE | re.DOTALL
    )
    return len(set(cores)) or None


class OwnProcess:
    """The memory of this process, asked many times a second."""

    def __init__(self) -> None:
        self._process = psutil.Process() if psutil else None

    def resident_bytes(self) -> int:
        """Memory that is in RAM now."""
        if self._process is not None:
            return self._process.memory_info().rss
        return int(_read("self/statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _meminfo_bytes(name: str) -> int:
    found = re.search(rf"^{name}:\s*(\d+) kB$", _read("meminfo"), re.MULTILINE)
    if found is None:
        raise OSError(f"{PROC / 'meminfo'} has no {name}; psutil would tell, and is not installed")
    return int(found[1]) << 10


def _read(name: str) -> str:
    return (PROC / name).read_text(encoding="utf-8")
