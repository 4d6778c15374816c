# SPDX-License-Identifier: MIT OR Apache-2.0
"""No product reads past its weights, scales and activations: behind these lies memory that nobody may read.

In a process of their own, because such a read ends it. What is only asked for ahead is no read.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.build import NativeLibrary

ROOT = Path(__file__).parents[2]
PROGRAM = """
import ctypes, mmap, sys
from dataclasses import replace
import torch
from kernels.bf16_linear.pack import pack_bf16
from kernels.build import load_library
from kernels.cpu.blocking import Blocking
from kernels.cpu.product import linear
from kernels.fp8_linear.check import random_codes, random_scales
from kernels.fp8_linear.pack import pack_fp8_blocks, pack_fp8_rows
from kernels.nvfp4_linear.check import random_weight
from kernels.nvfp4_linear.pack import pack_nvfp4
from kernels.tape import Pool, Tape

torch.set_num_threads(1)
isa, fault = sys.argv[1:]
library = load_library(isa)
amx = library.has_matrix_unit
mprotect = ctypes.CDLL(None).mprotect
mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
held = []

def at_the_end(tensor, alignment):
    # A copy whose last byte is the last that may be read, as near as `alignment` allows.
    if tensor is None:
        return None
    size = tensor.numel() * tensor.element_size()
    pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, pages + mmap.PAGESIZE)
    held.append(memory)
    raw = torch.frombuffer(memory, dtype=torch.uint8)
    if mprotect(raw.data_ptr() + pages, mmap.PAGESIZE, 0):
        sys.exit("mprotect failed")
    begin = (pages - size) // alignment * alignment
    return raw[begin : begin + size].view(tensor.dtype).view(tensor.shape).copy_(tensor)

def weights(tiles, k):
    outputs = 16 * tiles - 3
    codes = random_codes(outputs, k, 1)
    yield pack_fp8_blocks([(codes, random_scales(outputs, k, 1))], amx=amx)
    yield pack_fp8_rows([(codes, torch.ones(outputs))], amx=amx)
    yield pack_bf16([torch.ones(outputs, k).bfloat16()], amx=amx)
    if k % 16 == 0:
        yield pack_nvfp4([random_weight(outputs, k, 1)], amx=amx)
        yield pack_nvfp4([random_weight(outputs, k, 1)]).reading_int8()

with Pool(library, 1) as pool:
    for tiles in (1, 2, 3):
        for k in (16, 37, 144, 368):
            for packed in weights(tiles, k):
                packed = replace(
                    packed,
                    weight=at_the_end(packed.weight, 64),
                    scale=at_the_end(packed.scale, 4),
                    row_scale=at_the_end(packed.row_scale, 4),
                )
                if fault == "fault":
                    held.append(packed)
                    packed = replace(packed, weight=packed.weight[64:])
                for rows in (*range(1, 18), 33):
                    x = at_the_end(torch.ones(rows, k).bfloat16(), 4)
                    out = torch.empty(rows, packed.columns, dtype=torch.float32)
                    for blocking in (Blocking(), Blocking(inputs=128, ahead_bytes=64)):
                        tape = Tape(pool)
                        linear(tape, packed, x, out, rows=rows, blocking=blocking)
                        tape.run()
print("clean")
"""


def _run(library: NativeLibrary, fault: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, library.isa, fault],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="protects pages as Linux does")
def test_nothing_behind_the_operands_is_read(library: NativeLibrary) -> None:
    done = _run(library, "")
    assert done.stdout == "clean\n", (done.returncode, done.stderr[-2000:])


@pytest.mark.skipif(sys.platform != "linux", reason="protects pages as Linux does")
def test_a_read_behind_the_weights_would_show(fastest: NativeLibrary) -> None:
    assert _run(fastest, "fault").returncode == -signal.SIGSEGV
