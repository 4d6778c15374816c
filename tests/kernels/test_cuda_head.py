# SPDX-License-Identifier: MIT OR Apache-2.0
"""The FP8 head's CUDA source, run lane by lane on the CPU against its twin, bit for bit."""

from __future__ import annotations

import pytest
import torch
from simt.host import HostKernels
from simt.twin import ordered_product
from torch import Tensor

from kernels.checks import poison, same_bits
from kernels.head import cuda

TOKENS, INPUTS, WARPS = 44, 640, 8


@pytest.fixture
def kernels() -> HostKernels:
    return HostKernels(cuda.SOURCE, "rondo_fp8_head_t1_r8")


def run(kernels: HostKernels, entry: str, x: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    rows, inputs = x.shape
    tokens, tiles = codes.shape[0], int(entry.split("_t")[1][0])
    out = poison(torch.empty(rows + 1, tokens + 3))
    kernels.launch(
        entry,
        grid=-(-tokens // (8 * tiles)),
        threads=32 * WARPS,
        shared_bytes=WARPS * 16 * (40 if tiles == 4 else 8) * 4,
        arguments=[out, x, codes, scale, rows, tokens, inputs, x.stride(0), out.stride(0), 0],
        readable=[x, codes],
    )
    assert bool(out[rows:].isnan().all())
    assert bool(out[:, tokens:].isnan().all())
    return out[:rows, :tokens].contiguous()


@pytest.mark.parametrize("tiles", [1, 4])
def test_every_row_count_has_the_bits_of_the_twin(kernels: HostKernels, tiles: int) -> None:
    """All 254 finite codes occur; one order of the sum for 1 row and for 32."""
    generator = torch.Generator().manual_seed(2)
    raw = torch.randint(0, 256, (TOKENS, INPUTS), dtype=torch.uint8, generator=generator)
    raw[(raw & 0x7F) == 0x7F] = 0
    raw[0, :254] = torch.tensor([c for c in range(256) if c & 0x7F != 0x7F], dtype=torch.uint8)
    codes = raw.view(torch.float8_e4m3fn)
    scale = torch.rand(TOKENS, generator=generator) / 100
    x = (torch.randn(32, INPUTS, generator=generator) * 3).bfloat16()
    want = ordered_product(
        x, codes.float(), scale, unit=1.0, step=cuda.STEP, warps=WARPS, interleave=False
    )
    for rows in (1, 2, 8, 9, 16, 17, 32):
        got = run(kernels, cuda.entry_name(tiles, rows), x[:rows], codes, scale)
        assert same_bits(got, want[:rows]), f"{rows} rows"


def test_the_launch_fits_the_vocabulary() -> None:
    plan = cuda.plan_launch(rows=3, vocabulary=248320)
    assert (plan.entry, plan.grid, plan.threads) == ("rondo_fp8_head_t4_r8", 7760, 256)
    assert plan.shared_bytes == 20480
    assert cuda.plan_launch(rows=17, vocabulary=44).entry == "rondo_fp8_head_t1_r32"
    with pytest.raises(ValueError, match="1 to 32 rows"):
        cuda.plan_launch(rows=33, vocabulary=44)
    with pytest.raises(ValueError, match="at least 8 tokens"):
        cuda.plan_launch(rows=1, vocabulary=7)
