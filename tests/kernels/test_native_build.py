# SPDX-License-Identifier: MIT OR Apache-2.0
"""Building native code: the cache, its safety, and errors that say what to do."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernels import build
from kernels.build import NativeBuildError, load_library, machine_isas

SOURCE = """
#include "rondo.h"
RONDO_API int32_t rondo_answer(void) { return %d; }
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A one-function source and an empty cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "answer.cpp"
    file.write_text(SOURCE % 41)
    return file


def _answer(file: Path, **options: object) -> int:
    return load_library("portable", sources=[file], **options).function("rondo_answer")()


def test_compiles_once_and_again_only_after_a_change(source: Path) -> None:
    lines: list[str] = []
    assert _answer(source, on_progress=lines.append) == 41
    assert len(lines) == 1
    assert "answer.cpp" in lines[0]
    assert _answer(source, on_progress=lines.append) == 41
    assert len(lines) == 1
    source.write_text(SOURCE % 42)
    assert _answer(source, on_progress=lines.append) == 42
    assert len(lines) == 2


def test_two_processes_that_start_at_once_share_one_build(source: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from kernels.build import load_library\n"
        f"library = load_library('portable', sources=[Path({str(source)!r})], on_progress=print)\n"
        "assert library.function('rondo_answer')() == 41"
    )
    command = [sys.executable, "-c", program]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    printed = "".join(process.communicate(timeout=120)[0] for process in started)
    assert [process.returncode for process in started] == [0, 0, 0]
    assert printed.count("compiling") == 1


def test_a_failed_compilation_names_the_command_and_the_error(source: Path) -> None:
    source.write_text("int broken( { return 0; }\n")
    with pytest.raises(NativeBuildError) as caught:
        load_library("portable", sources=[source])
    text = str(caught.value)
    assert "-std=c++17" in text
    assert "answer.cpp" in text
    assert "error" in text
    assert not list(source.parent.rglob("*.so"))


def test_a_warning_is_an_error(source: Path) -> None:
    source.write_text("static int unused() { return 0; }\n")
    with pytest.raises(NativeBuildError, match="unused"):
        load_library("portable", sources=[source])


@pytest.mark.skipif(shutil.which("clang++") is None, reason="needs clang++")
@pytest.mark.parametrize("isa", machine_isas())
def test_clang_finds_nothing_to_warn_of(isa: str) -> None:
    """Where there is no GCC the kernels are compiled with clang++, with its own set of warnings."""
    flags = [*build._COMMON_FLAGS, *build._level(isa).flags, "-I", str(build._ROOT / "cpu")]
    for file in sorted(build._ROOT.glob("*/*.cpp")):
        subprocess.run(["clang++", *flags, "-fsyntax-only", str(file)], check=True, timeout=120)


ARM_COMPILER = shutil.which("aarch64-linux-gnu-g++") or shutil.which("aarch64-linux-gnu-g++-12")


@pytest.mark.skipif(ARM_COMPILER is None, reason="needs a cross compiler for 64-bit ARM")
@pytest.mark.parametrize("isa", ["dotprod", "neon", "portable"])
def test_the_kernels_compile_for_arm(isa: str) -> None:
    level = next(level for level in build.ISA_LEVELS if level.name == isa)
    flags = [*build._COMMON_FLAGS, *level.flags, "-I", str(build._ROOT / "cpu")]
    for file in sorted(build._ROOT.glob("*/*.cpp")):
        subprocess.run([ARM_COMPILER, *flags, "-fsyntax-only", str(file)], check=True, timeout=120)


@pytest.mark.parametrize(
    ("system", "capabilities", "levels"),
    [
        ("linux", 0, ["neon", "portable"]),
        ("linux", ~(1 << 20) & 0xFFFFFFFF, ["neon", "portable"]),
        ("linux", 1 << 20, ["dotprod", "neon", "portable"]),
        ("linux", None, ["neon", "portable"]),  # of a C library that does not tell
        ("darwin", None, ["dotprod", "neon", "portable"]),
    ],
)
def test_an_arm_processor_has_neon_and_maybe_the_dot_product(
    system: str, capabilities: int | None, levels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def getauxval(kind: int) -> int:
        asked.append(kind)
        return capabilities or 0

    functions = {} if capabilities is None else {"getauxval": getauxval}
    monkeypatch.setattr(build.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(build.sys, "platform", system)
    monkeypatch.setattr(build.ctypes, "CDLL", lambda name: SimpleNamespace(**functions))
    assert machine_isas() == levels
    assert set(asked) <= {16}
    usable = ", ".join(levels)
    with pytest.raises(ValueError, match=rf"cannot run avx2.*usable: {usable}\Z"):
        load_library("avx2")


def test_an_older_compiler_builds_for_a_lower_level(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_processor_flags", lambda: build._AVX512)
    assert machine_isas() == ["avx512", "avx2", "portable"]
    old = source.with_name("old-g++")
    old.write_text('#!/bin/sh\ncase "$*" in *-march=x86-64-v4*) exit 1;; esac\nexec g++ "$@"\n')
    old.chmod(0o755)
    monkeypatch.setenv("CXX", str(old))
    lines: list[str] = []
    library = load_library(sources=[source], on_progress=lines.append)
    assert library.isa == "avx2"
    assert lines[0] == f"{old} is too old for avx512"
    assert load_library(sources=[source]).path == library.path
    with pytest.raises(NativeBuildError, match="x86-64-v4"):
        load_library("avx512", sources=[source])


def test_no_compiler_says_how_to_get_one(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(source.parent))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(NativeBuildError, match="install one"):
        load_library("portable", sources=[source])


def test_an_unusable_cache_folder_is_named(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(source))
    with pytest.raises(NativeBuildError, match="XDG_CACHE_HOME"):
        load_library("portable", sources=[source])


def test_a_damaged_library_is_named(source: Path) -> None:
    library = load_library("portable", sources=[source])
    other = library.path.with_name("damaged.so")
    other.write_bytes(b"not a library")
    with pytest.raises(NativeBuildError, match=r"damaged\.so"):
        build.NativeLibrary(other, "portable")


def test_levels_are_checked_against_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="known: amx, avx512bf16"):
        load_library("sse9")
    monkeypatch.setattr(build, "_processor_flags", frozenset)
    assert machine_isas() == ["portable"]
    with pytest.raises(ValueError, match="cannot run avx2"):
        load_library("avx2")


def test_an_unknown_function_is_named(source: Path) -> None:
    library = load_library("portable", sources=[source])
    with pytest.raises(ValueError, match="rondo_nothing"):
        library.function("rondo_nothing")
    assert library.has("rondo_answer")
    assert not library.has("rondo_nothing")
    call = ctypes.CFUNCTYPE(ctypes.c_int32)(library.operation("rondo_answer")[0])
    assert call() == 41


def test_import_does_no_work() -> None:
    program = (
        "import subprocess, kernels.build, sys\n"
        "assert 'torch' not in sys.modules\n"
        "assert not hasattr(kernels.build, 'library')"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ}, timeout=60)
