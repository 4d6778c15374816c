# SPDX-License-Identifier: MIT OR Apache-2.0
"""However a product walks weights and rows, its bits are those of the default."""

from __future__ import annotations

import random

import pytest
import torch

from kernels.bf16_linear.pack import pack_bf16
from kernels.build import NativeLibrary
from kernels.cpu.blocking import DEFAULT, Blocking
from kernels.cpu.buffers import aligned_copy, aligned_zeros
from kernels.cpu.product import PackedLinear, linear
from kernels.fp8_linear.pack import pack_fp8_blocks, pack_fp8_rows
from kernels.nvfp4_linear.pack import pack_nvfp4
from kernels.tape import Pool, Tape

K = 1200  # not a whole number of steps, nor of FP8 blocks


def weights(name: str, amx: bool) -> PackedLinear:
    draw = torch.Generator().manual_seed(3)
    if name == "bf16":
        parts = [torch.randn(n, K, generator=draw).bfloat16() for n in (300, 37)]
        return pack_bf16(parts, amx=amx)
    if name.startswith("nvfp4"):
        parts = []
        for _ in range(2):
            codes = torch.randint(0, 256, (330, K // 2), generator=draw).to(torch.uint8)
            scales = torch.rand(330, K // 16, generator=draw).to(torch.float8_e4m3fn)
            parts.append((codes, scales, 0.5))
        if "8-bit" in name:
            return pack_nvfp4(parts, interleave=True).reading_int8()
        return pack_nvfp4(parts, interleave=True, amx=amx)
    codes = torch.randn(333, K, generator=draw).to(torch.float8_e4m3fn)
    if name == "fp8 rows":
        return pack_fp8_rows([(codes, torch.rand(333, generator=draw))], amx=amx)
    return pack_fp8_blocks([(codes, torch.rand(3, -(-K // 128), generator=draw))], amx=amx)


@pytest.fixture(params=["nvfp4", "nvfp4, 8-bit inputs", "fp8 blocks", "fp8 rows", "bf16"])
def packed(request: pytest.FixtureRequest, library: NativeLibrary) -> PackedLinear:
    return weights(request.param, library.has_matrix_unit)


X = torch.randn(70, K, generator=torch.Generator().manual_seed(4)).bfloat16()


def product(pool: Pool, packed: PackedLinear, rows: int, blocking: Blocking) -> torch.Tensor:
    out = aligned_zeros((rows, packed.columns), torch.float32)
    tape = Tape(pool, eager=True)
    linear(tape, packed, aligned_copy(X), out, rows=rows, blocking=blocking)
    return out


def any_blocking(draw: random.Random) -> Blocking:
    return Blocking(
        rows=draw.randint(0, 16),
        tiles=2 * draw.randint(1, 32),
        inputs=128 * draw.randint(0, 12),
        ahead_bytes=64 * draw.randint(0, 300),
    )


def test_no_size_changes_a_bit(library: NativeLibrary, packed: PackedLinear) -> None:
    draw = random.Random(7)
    with Pool(library, 1) as alone, Pool(library, 2) as two:
        for rows in (1, 2, 3, 7, 16, 17, 31, 32, 33, 70):
            wanted = product(alone, packed, rows, DEFAULT)
            assert torch.isfinite(wanted).all()
            for _ in range(3):
                blocking = any_blocking(draw)
                pool = draw.choice((alone, two))
                assert torch.equal(product(pool, packed, rows, blocking), wanted), blocking


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"rows": -1}, "rows must lie in 0..16"),
        ({"rows": 17}, "rows must lie in 0..16"),
        ({"tiles": 0}, "tiles must lie in 2..64"),
        ({"tiles": 5}, "in steps of 2, got 5"),
        ({"tiles": 66}, "tiles must lie in 2..64"),
        ({"inputs": 1 << 21}, "inputs must lie in"),
        ({"inputs": 64}, "change the order of the sum over K"),
        ({"ahead_bytes": 32}, "in steps of 64, got 32"),
    ],
)
def test_a_size_out_of_range_is_refused(sizes: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Blocking(**sizes)
