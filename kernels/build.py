# SPDX-License-Identifier: MIT OR Apache-2.0
"""Compiles the native CPU kernels for the machine at hand, on first use, and caches the result."""

from __future__ import annotations

import ctypes
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kernels.build_cache import (
    NativeBuildError,
    cache_folder,
    digest,
    hash_text,
    locked,
    produce,
)

_ROOT = Path(__file__).parent
_COMPILE_JOBS = 2
# getauxval(AT_HWCAP) of 64-bit ARM Linux, and its bit HWCAP_ASIMDDP.
_AT_HWCAP, _DOT_PRODUCT = 16, 1 << 20
# arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) of x86-64 Linux.
_ARCH_PRCTL, _REQUEST_FEATURE, _MATRIX_DATA = 158, 0x1023, 18
_COMMON_FLAGS = (
    "-O3",
    "-std=c++17",
    "-fPIC",
    "-pthread",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-psabi",
)
_SANITIZE_FLAGS = (
    "-O1",
    "-g",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
)


@dataclass(frozen=True)
class IsaLevel:
    """One instruction-set level: compiler flags and the processor flags it needs."""

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str]


_AVX2 = frozenset({"avx2", "fma", "bmi2", "f16c"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_BF16 = _AVX512 | {"avx512_bf16", "avx512vbmi", "avx512_vnni"}
_BF16_FLAGS = ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vbmi", "-mavx512vnni")
# Fastest first.
ISA_LEVELS = (
    IsaLevel("amx", (*_BF16_FLAGS, "-mamx-tile", "-mamx-bf16"), _BF16 | {"amx_tile", "amx_bf16"}),
    IsaLevel("avx512bf16", _BF16_FLAGS, _BF16),
    IsaLevel("avx512vnni", ("-march=x86-64-v4", "-mavx512vnni"), _AVX512 | {"avx512_vnni"}),
    IsaLevel("avx512", ("-march=x86-64-v4",), _AVX512),
    IsaLevel("avxvnni", ("-march=x86-64-v3", "-mavxvnni"), _AVX2 | {"avx_vnni"}),
    IsaLevel("avx2", ("-march=x86-64-v3",), _AVX2),
    IsaLevel(
        "dotprod",
        ("-DRONDO_NEON", "-march=armv8.2-a+dotprod"),
        frozenset({"asimd", "asimddp"}),
    ),
    IsaLevel("neon", ("-DRONDO_NEON",), frozenset({"asimd"})),  # every 64-bit ARM has it
    IsaLevel("portable", (), frozenset()),
)


class NativeLibrary:
    """A loaded set of native kernels for one instruction-set level."""

    def __init__(self, path: Path, isa: str) -> None:
        self.path = path
        self.isa = isa
        self._operations: dict[str, tuple[int, int | None]] = {}
        try:
            self._cdll = ctypes.CDLL(str(path))
        except OSError as error:
            raise NativeBuildError(
                f"the compiled kernels {path} could not be loaded: {error}; delete that file and"
                " start again"
            ) from error

    @property
    def has_matrix_unit(self) -> bool:
        """Whether its products work on the matrix unit, whose tiles weights are packed for."""
        return self.has("rondo_nvfp4_linear_amx")

    def function(self, name: str) -> ctypes._CFuncPtr:
        """The C function `name`; ctypes releases the GIL while it runs.

        Raises:
            ValueError: the library has no such symbol.
        """
        try:
            return getattr(self._cdll, name)
        except AttributeError:
            raise ValueError(f"the native library has no function {name}") from None

    def operation(self, name: str) -> tuple[int, int | None]:
        """(address of the C function `name`, as a tape step stores it, bytes of the arguments it declares).

        Raises:
            ValueError: as `function`.
        """
        if name not in self._operations:
            address = ctypes.cast(self.function(name), ctypes.c_void_p).value or 0
            size = None
            if self.has(f"{name}_args_size"):
                declared = self.function(f"{name}_args_size")
                declared.restype = ctypes.c_int64
                size = declared()
            self._operations[name] = address, size
        return self._operations[name]

    def has(self, name: str) -> bool:
        """Whether the library exports `name`."""
        return hasattr(self._cdll, name)


def machine_isas() -> list[str]:
    """The levels this processor can run, fastest first."""
    flags = _processor_flags()
    return [level.name for level in ISA_LEVELS if level.needs <= flags]


def load_library(
    isa: str | None = None,
    *,
    sanitize: bool = False,
    sources: Sequence[Path] | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> NativeLibrary:
    """Build (or take from the cache) and load the native kernels.

    Args:
        isa: a level of ISA_LEVELS; None takes the fastest that this processor runs and the compiler knows.
        sanitize: address and undefined-behaviour checks; libasan must be preloaded.
        sources: C++ files; None takes every `kernels/*/*.cpp`.
        on_progress: called with one line per compiled file; never called on a cache hit.

    Raises:
        ValueError: unknown level, or one this processor cannot run.
        NativeBuildError: no compiler, a failed compilation, or an unusable cache folder.
    """
    levels = [_level(name) for name in (machine_isas() if isa is None else [isa])]
    compiler = find_compiler()
    files = sorted(_ROOT.glob("*/*.cpp")) if sources is None else sorted(sources)
    folder = cache_folder("native")
    shared = digest([*sorted(_ROOT.glob("*/*.h")), *sorted(_ROOT.glob("*/*.inc"))])
    start = " ".join([shared, _version(compiler), *compiler])
    tell = on_progress or (lambda line: None)
    for level in levels:
        flags = [*_COMMON_FLAGS, *level.flags, *(_SANITIZE_FLAGS if sanitize else ())]
        recipe = " ".join([start, *flags])
        keys = {file: hash_text(recipe + digest([file])) for file in files}
        name = f"rondo-{level.name}{'-sanitize' if sanitize else ''}"
        target = folder / f"{name}-{hash_text(recipe + ' '.join(keys.values()))}.so"
        if target.exists():
            break
        if level is levels[-1] or _knows(compiler, level.flags):
            with locked(folder / "build.lock"):
                if not target.exists():
                    _build([*compiler, *flags], keys, target, tell)
            break
        tell(f"{compiler[0]} is too old for {level.name}")
    return NativeLibrary(target, level.name)


def _level(isa: str) -> IsaLevel:
    available = machine_isas()
    known = {level.name: level for level in ISA_LEVELS}
    if isa not in known:
        raise ValueError(f"unknown instruction-set level {isa!r}; known: {', '.join(known)}")
    if isa not in available:
        missing = ", ".join(sorted(known[isa].needs - _processor_flags()))
        raise ValueError(
            f"this processor cannot run {isa} (it lacks {missing}); usable: {', '.join(available)}"
        )
    return known[isa]


def _processor_flags() -> frozenset[str]:
    if platform.machine() in ("aarch64", "arm64"):
        return frozenset({"asimd", "asimddp"} if _arm_has_dot_product() else {"asimd"})
    if platform.machine() not in ("x86_64", "AMD64"):
        return frozenset()
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        if line.startswith("flags"):
            flags = frozenset(line.partition(":")[2].split())
            return flags if _matrix_unit_allowed() else flags - {"amx_tile", "amx_bf16"}
    return frozenset()


def _arm_has_dot_product() -> bool:
    """Whether this ARM processor multiplies and adds bytes; a system that does not tell has none."""
    if sys.platform == "darwin":
        return True  # as all have from the M1 on
    try:
        ask = ctypes.CDLL(None).getauxval
    except (OSError, AttributeError):
        return False
    ask.argtypes, ask.restype = [ctypes.c_ulong], ctypes.c_ulong
    return bool(ask(_AT_HWCAP) & _DOT_PRODUCT)


def _matrix_unit_allowed() -> bool:
    """Ask Linux for the matrix registers of this process, which it gives on request alone."""
    try:
        return not ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_FEATURE, _MATRIX_DATA)
    except (OSError, AttributeError):
        return False


def find_compiler() -> list[str]:
    """The C++ compiler and the options that $CXX names behind it: that one, else g++, c++ or clang++.

    Raises:
        NativeBuildError: there is none.
    """
    named = shlex.split(os.environ.get("CXX", ""))
    for candidate in ([named] if named else []) + [["g++"], ["c++"], ["clang++"]]:
        if shutil.which(candidate[0]):
            return candidate
    raise NativeBuildError(
        "no C++ compiler was found (looked for $CXX, g++, c++ and clang++); install one, for"
        " example with `apt install g++`, `dnf install gcc-c++` or `xcode-select --install`"
    )


def _knows(compiler: list[str], flags: Sequence[str]) -> bool:
    """Whether the compiler has these options: newer instructions need a newer one."""
    command = [*compiler, *flags, "-fsyntax-only", "-x", "c++", os.devnull]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _version(compiler: list[str]) -> str:
    command = [*compiler, "--version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NativeBuildError(f"`{shlex.join(command)}` failed: {error}") from error
    return done.stdout


def _build(
    command: list[str],
    keys: dict[Path, str],
    target: Path,
    progress: Callable[[str], None],
) -> None:
    objects = target.parent / "objects"
    objects.mkdir(exist_ok=True)
    include = f"-I{_ROOT / 'cpu'}"

    def compile_one(file: Path) -> Path:
        built = objects / f"{keys[file]}.o"
        if not built.exists():
            progress(f"compiling {file.parent.name}/{file.name} ({target.name.split('-')[1]})")
            produce([*command, include, "-c", str(file)], built)
        return built

    with ThreadPoolExecutor(_COMPILE_JOBS) as jobs:
        built = list(jobs.map(compile_one, keys))
    produce([*command, "-shared", *map(str, built)], target)
