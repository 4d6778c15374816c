# SPDX-License-Identifier: MIT OR Apache-2.0
"""Launch settings of the GPU's quantised products for one shape of weights, measured over cold copies.

Only settings with the default's bits at 1 to 32 rows are kept, so a table may be used, changed or dropped
between any two rounds. `python -m kernels.cuda_bench --sweep` also tries other orders of the sum, which are
other bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from triton.errors import TritonError

from kernels.cuda_bench import replay_seconds
from kernels.cuda_build import CudaError, CudaLibrary
from kernels.fp8_linear import tiles as fp8
from kernels.fp8_linear.triton import linear_blocks
from kernels.nvfp4_linear import tiles as nvfp4
from kernels.nvfp4_linear.cuda import DeviceNvfp4, linear_skinny
from kernels.tile_sweep import MOST_ROWS, Swept, sweep

Seconds = Callable[[Callable[[], None]], float]


def sweep_nvfp4(
    library: CudaLibrary,
    weights: list[DeviceNvfp4],
    *,
    shares: Mapping[int, float],
    seconds: Seconds = replay_seconds,
) -> Swept[nvfp4.SkinnyTile]:
    """Settings of the skinny kernel in the default order of the sum.

    Args:
        weights: copies of one shape, so many that no cache holds them.
        shares: rows -> its weight in the time that counts.
        seconds: how long a piece of work takes, once.
    """
    outputs, inputs = weights[0].outputs, weights[0].inputs
    x, out = _operands(library.device, outputs, inputs)

    def launch(weight: DeviceNvfp4, rows: int, tile: nvfp4.SkinnyTile) -> None:
        fits = nvfp4.fitted(tile, outputs, rows)
        linear_skinny(library, weight, x[:rows], out[:rows], tile=fits)

    def run(rows: int, tile: nvfp4.SkinnyTile) -> Tensor:
        launch(weights[0], rows, tile)
        return out[:rows].clone()

    def time_us(rows: int, tile: nvfp4.SkinnyTile) -> float:
        def work() -> None:
            for weight in weights:
                launch(weight, rows, tile)

        return seconds(work) / len(weights) * 1e6

    return sweep(
        run,
        time_us,
        default=nvfp4.default_tile(outputs, inputs),
        tiles=nvfp4.candidates(outputs, inputs),
        shares=shares,
        unlaunchable=(CudaError,),
    )


def sweep_fp8(
    weights: list[tuple[Tensor, Tensor]],
    *,
    shares: Mapping[int, float] = fp8.ROW_SHARES,
    seconds: Seconds = replay_seconds,
) -> Swept[fp8.Fp8Tile]:
    """The same of the FP8 product; weights: copies of (codes, scales of 128 x 128 blocks)."""
    codes, _ = weights[0]
    x, out = _operands(codes.device, *codes.shape)

    def run(rows: int, tile: fp8.Fp8Tile) -> Tensor:
        linear_blocks(x, *weights[0], out, rows=rows, tile=tile)
        return out[:rows].clone()

    def time_us(rows: int, tile: fp8.Fp8Tile) -> float:
        def work() -> None:
            for weight in weights:
                linear_blocks(x, *weight, out, rows=rows, tile=tile)

        return seconds(work) / len(weights) * 1e6

    return sweep(
        run,
        time_us,
        default=fp8.DEFAULT,
        tiles=fp8.candidates(),
        shares=shares,
        unlaunchable=(TritonError,),
    )


def _operands(device: torch.device, outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
    """Activations [32, inputs] whose halves undo each other, and room for the result.

    Only roundings are left of such sums, so every order of them shows.
    """
    x = torch.randn(MOST_ROWS, inputs, generator=torch.Generator().manual_seed(0)).bfloat16()
    half = inputs // 2
    x[:, half : 2 * half] = -x[:, :half]
    return x.to(device), torch.empty(MOST_ROWS, outputs, dtype=torch.bfloat16, device=device)
