# SPDX-License-Identifier: MIT OR Apache-2.0
"""Kernel checks under the address and undefined-behaviour sanitizers, in a process of their own."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.build import find_compiler, machine_isas
from kernels.registry import operation

PROGRAM = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from kernels.build import load_library
from kernels.registry import operation
import importlib
from kernels.cpu import product_check
from kernels.moe import check as moe_check
# Every size that a block of rows may have, 16 at most, alone; then whole blocks with and without a rest.
for module in (product_check, moe_check):
    assert set(rows := (*range(1, 18), 32, 33, 70)) < set(module.BATCHES)
    module.BATCHES = rows
isa, *names = sys.argv[1:]
folder = Path("kernels")
files = [folder / name / file for name in names for file in ("cpu.cpp", "int8.cpp")]
sources = [*folder.glob("cpu/*.cpp"), *(file for file in files if file.exists())]
library = load_library(isa, sanitize=True, sources=sources)
for module in dict.fromkeys(operation(name).check for name in names):
    results = importlib.import_module(module).check(library)
    bad = [result.reason for result in results if not result.ok]
    assert results and not bad, bad
    print(module, len(results), "ok")
"""
ROOT = Path(__file__).parents[2]
PRODUCTS = ("nvfp4_linear", "fp8_linear", "bf16_linear", "e2m1", "moe")
LAYERS = (
    "embedding", "rms_norm", "causal_conv", "gated_delta", "rope", "attention", "block_attention",
    "block_conv", "elementwise", "head",
)  # fmt: skip


def _runtime(name: str) -> str | None:
    found = subprocess.run(
        ["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return found if os.path.isabs(found) and Path(found).exists() else None


def _run(isa: str, names: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    preload = _runtime("libasan.so")
    if preload is None:
        pytest.skip("this compiler has no libasan to preload")
    environment = os.environ | {
        # A report needs lines alone; variables, and well chosen registers, are half of the compiler's time.
        "CXX": shlex.join([*find_compiler(), "-fno-var-tracking", "-fira-region=one"]),
        "LD_PRELOAD": preload,
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=99",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, isa, *names],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("isa", [machine_isas()[0], "portable"])
def test_products_are_clean(isa: str) -> None:
    done = _run(isa, PRODUCTS)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("ok") == len(PRODUCTS)


def test_layer_kernels_are_clean() -> None:
    done = _run(machine_isas()[0], LAYERS)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("ok") == len({operation(name).check for name in LAYERS})


def test_the_sanitizer_sees_a_fault(tmp_path: Path) -> None:
    """The set-up itself works: a write past a buffer ends the process with its report."""
    source = tmp_path / "fault.cpp"
    source.write_text(
        '#include "rondo.h"\n#include <stdlib.h>\n'
        "RONDO_API int32_t rondo_fault(int32_t at) {\n"
        "  volatile size_t size = 8;\n"
        "  volatile char* p = static_cast<char*>(malloc(size));\n"
        "  p[at] = 1;\n  const int32_t read = p[at];\n"
        "  free(const_cast<char*>(p));\n  return read;\n}\n"
    )
    preload = _runtime("libasan.so")
    if preload is None:
        pytest.skip("this compiler has no libasan to preload")
    program = (
        "from pathlib import Path; from kernels.build import load_library\n"
        f"f = load_library('portable', sanitize=True, sources=[Path({str(source)!r})])"
        ".function('rondo_fault')\nassert f(7) == 1\nf(8)"
    )
    environment = os.environ | {"LD_PRELOAD": preload, "PYTHONPATH": str(ROOT)}
    environment["ASAN_OPTIONS"] = "detect_leaks=0:exitcode=99"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 99
    assert "heap-buffer-overflow" in done.stderr
