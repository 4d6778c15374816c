# SPDX-License-Identifier: MIT OR Apache-2.0
"""The machine and the code behind a measurement, without names of hosts, users or folders."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

from engine.hardware import (
    available_cores,
    free_memory_bytes,
    physical_core_count,
    total_memory_bytes,
)
from kernels.build import NativeBuildError, find_compiler

_ROOT = Path(__file__).parents[2]
_CACHE = Path("/sys/devices/system/cpu/cpu0/cache")
_FREQUENCY = Path("/sys/devices/system/cpu/cpu0/cpufreq")
_CGROUP = Path("/sys/fs/cgroup")
# What the kernels may use; the full list is hundreds of names.
_ISA_FLAGS = (
    "sse4_2",
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512vbmi",
    "avx512_bf16",
    "avx512_fp16",
    "amx_bf16",
    "amx_int8",
    "amx_tile",
    "neon",
    "asimd",
    "asimddp",
    "asimdhp",
    "bf16",
    "i8mm",
    "sve",
    "sve2",
)
_CODE_FOLDERS = ("app", "engine", "kernels")
_CODE_SUFFIXES = (".py", ".cpp", ".h", ".inc", ".cu", ".cuh")


def machine_record() -> dict[str, Any]:
    """Hardware, limits, load and versions at this moment; None where the machine does not tell."""
    load = os.getloadavg() if hasattr(os, "getloadavg") else (None, None)
    return {
        "cpu_model": cpu_model(),
        "isa_flags": _isa_flags(),
        "cores": physical_core_count(),
        "threads": os.cpu_count(),
        "cores_available": available_cores(),
        "caches": _caches(),
        "memory_bytes": total_memory_bytes(),
        "memory_available_bytes": free_memory_bytes(),
        "cgroup_cpus": _cgroup_cpus(),
        "cgroup_memory_bytes": _cgroup_memory_bytes(),
        "clock_mhz": _number(_cpu_field("cpu MHz")),
        "governor": _read(_FREQUENCY / "scaling_governor"),
        "load_1min": load[0],
        "load_5min": load[1],
        "system": platform.system(),
        "kernel": platform.release(),
        "hypervisor": "hypervisor" in _all_flags(),
        "python_version": platform.python_version(),
        "torch_version": _version("torch"),
        "compiler": _compiler_version(),
        **code_record(_ROOT),
    }


def code_record(root: Path) -> dict[str, Any]:
    """Which code ran: git commit and whether the code differs from it, and a hash of the sources themselves.

    Files beside the code do not count: a table that was measured into the tree leaves the next one clean.
    `git_commit` and `git_dirty` are None where `root` is not a git work tree.
    """
    commit = _git(root, "rev-parse", "HEAD")
    status = _git(root, "status", "--porcelain", "--", *_CODE_FOLDERS) if commit else None
    return {
        "git_commit": commit,
        "git_dirty": None if status is None else bool(status),
        "code_sha256_12": _code_hash(root),
        "app_version": _version("rondo"),
    }


def cpu_model() -> str:
    """The processor's name."""
    return _cpu_field("model name") or platform.processor() or platform.machine()


def cpp_compiler() -> str | None:
    """Path of the C++ compiler that the kernels are built with; None where there is none."""
    try:
        return shutil.which(find_compiler()[0])
    except NativeBuildError:
        return None


def _caches() -> list[dict[str, Any]]:
    """Level, kind, bytes and number of sharing processors of each cache of the first processor."""
    found = []
    for folder in sorted(_CACHE.glob("index*")):
        size, level = _read(folder / "size"), _read(folder / "level")
        shared = _read(folder / "shared_cpu_list")
        if not size or not level or not size[:-1].isdigit():
            continue
        unit = {"K": 1 << 10, "M": 1 << 20}.get(size[-1])
        if unit is None:
            continue
        found.append(
            {
                "level": int(level),
                "kind": _read(folder / "type"),
                "bytes": int(size[:-1]) * unit,
                "shared_by": _list_length(shared),
            }
        )
    return found


def _list_length(text: str | None) -> int | None:
    """Number of processors in a list such as 0-3,8."""
    if not text:
        return None
    count = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count


def _cgroup_cpus() -> float | None:
    """Processors that the group's quota allows; None without a quota."""
    quota, _, period = (_read(_own_cgroup() / "cpu.max") or "").partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _cgroup_memory_bytes() -> int | None:
    limit = _read(_own_cgroup() / "memory.max") or ""
    return int(limit) if limit.isdigit() else None


def _own_cgroup() -> Path:
    for line in (_read(Path("/proc/self/cgroup")) or "").splitlines():
        if line.startswith("0::/"):
            return _CGROUP / line[4:]
    return _CGROUP


def _isa_flags() -> list[str]:
    present = _all_flags()
    return [flag for flag in _ISA_FLAGS if flag in present]


def _all_flags() -> frozenset[str]:
    return frozenset((_cpu_field("flags") or _cpu_field("Features") or "").split())


def _cpu_field(name: str) -> str | None:
    for line in (_read(Path("/proc/cpuinfo")) or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def _compiler_version() -> str | None:
    path = cpp_compiler()
    if path is None:
        return None
    version = _output([path, "-dumpfullversion", "-dumpversion"])
    return f"{Path(path).name} {version}" if version else Path(path).name


def _code_hash(root: Path) -> str:
    total = hashlib.sha256()
    for folder in _CODE_FOLDERS:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix in _CODE_SUFFIXES:
                total.update(file.relative_to(root).as_posix().encode() + b"\0")
                total.update(file.read_bytes())
    return total.hexdigest()[:12]


def _git(root: Path, *arguments: str) -> str | None:
    if not (root / ".git").exists() or shutil.which("git") is None:
        return None
    return _output(["git", "-C", str(root), *arguments])


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
