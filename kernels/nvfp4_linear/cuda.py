# SPDX-License-Identifier: MIT OR Apache-2.0
"""The NVFP4 product on a GPU: the skinny kernel for 1 to 32 rows, expanded weights for very many.

The weights stay in their stored form: nothing is repacked, both products read the same bytes.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.nvfp4_linear.reference import GROUP
from kernels.nvfp4_linear.tiles import STEP, SkinnyTile, fitted

if TYPE_CHECKING:
    from kernels.cuda_build import CudaLibrary

SOURCE = "nvfp4_linear/skinny.cu"
EXPAND_SOURCE = "nvfp4_linear/expand.cu"
MAX_ROWS = 32
_EXPAND_ENTRY = "rondo_nvfp4_expand"
_EXPAND_THREADS = 256
_TILES = tuple((nt, pf) for pf in (0, 1) for nt in (1, 2, 4))
_MOST_ELEMENTS = 1 << 31


def entry_name(tile: SkinnyTile, rows: int) -> str:
    """The kernel that a setting takes for so many rows."""
    width = 8 if rows <= 8 else 16 if rows <= 16 else 32
    return f"rondo_nvfp4_skinny_t{tile.nt}_r{width}_a{tile.pf}"


def entries() -> dict[str, tuple[str, ...]]:
    """Every kernel this module can launch, by source."""
    tiles = [(SkinnyTile(nt, 1, pf), rows) for nt, pf in _TILES for rows in (8, 16, 32)]
    found = {entry_name(fitted(tile, 8 * tile.nt, rows), rows) for tile, rows in tiles}
    found |= {_logits_entry(entry_name(tile, rows)) for tile, rows in tiles if _takes_logits(tile)}
    return {SOURCE: tuple(sorted(found)), EXPAND_SOURCE: (_EXPAND_ENTRY,)}


def logits_tile(tile: SkinnyTile, outputs: int) -> SkinnyTile:
    """The setting with this one's order of the sum that there is an entry for float32 results of."""
    return SkinnyTile(4 if outputs >= 32 else 1, tile.wk, 0, tile.il)


def _takes_logits(tile: SkinnyTile) -> bool:
    return tile.nt != 2 and tile.pf == 0


def _logits_entry(skinny: str) -> str:
    return skinny.replace("skinny", "logits").removesuffix("_a0")


@dataclass(frozen=True)
class SkinnyLaunch:
    """Which kernel, over how many blocks, with how much shared memory for the warps' sums."""

    entry: str
    grid: int
    threads: int
    shared_bytes: int


def plan_launch(tile: SkinnyTile, *, rows: int, outputs: int) -> SkinnyLaunch:
    """The launch of a product with a setting that fits it.

    Raises:
        ValueError: rows outside 1..32, or a setting that does not fit (tiles.fitted).
    """
    if not 1 <= rows <= MAX_ROWS:
        raise ValueError(f"the skinny product takes 1 to {MAX_ROWS} rows, got {rows}")
    if fitted(tile, outputs, rows) != tile:
        raise ValueError(f"{tile} does not fit {rows} rows of {outputs} outputs")
    pitch = 8 * tile.nt + (0 if tile.nt == 1 else 8)  # as skinny.cuh has it
    return SkinnyLaunch(
        entry=entry_name(tile, rows),
        grid=-(-outputs // (8 * tile.nt)),
        threads=32 * tile.wk,
        shared_bytes=tile.wk * 16 * pitch * 4,
    )


@dataclass(frozen=True)
class DeviceNvfp4:
    """NVFP4 weights on a device, in their stored form; parts that share their input lie one after another.

    Attributes:
        codes: uint8 [N, K/2]; scales: float8_e4m3fn [N, K/16]; scale_2: float32 [N].
        sizes: outputs of each part.
    """

    codes: Tensor
    scales: Tensor
    scale_2: Tensor
    sizes: tuple[int, ...]

    @property
    def outputs(self) -> int:
        """N."""
        return self.codes.shape[0]

    @property
    def inputs(self) -> int:
        """K."""
        return 2 * self.codes.shape[1]


def place_nvfp4(
    parts: list[tuple[Tensor, Tensor, Tensor | float]], device: torch.device | str
) -> DeviceNvfp4:
    """Stored weights (codes, scales, scale_2) with a common input, put on a device as one product.

    Raises:
        ValueError: shapes or dtypes are not those of NVFP4, K is no multiple of 128, there are fewer
            than 8 outputs, a scale is negative or NaN, or a scale_2 is not finite.
    """
    if not parts:
        raise ValueError("a product needs at least one weight")
    inputs = 2 * parts[0][0].shape[-1]
    if inputs % STEP or not inputs:
        raise ValueError(f"the CUDA product needs inputs in multiples of {STEP}, got {inputs}")
    second = []
    for codes, scales, scale_2 in parts:
        _require("codes", codes, torch.uint8, (codes.shape[0], inputs // 2))
        _require("scales", scales, torch.float8_e4m3fn, (codes.shape[0], inputs // GROUP))
        raw = scales.contiguous().view(torch.uint8)
        if bool(((raw > 0x80) | (raw == 0x7F)).any()):
            raise ValueError("NVFP4 scales must be numbers that are not negative")
        value = torch.as_tensor(scale_2, dtype=torch.float32).reshape(-1)
        if value.numel() != 1 or not bool(torch.isfinite(value * 256).all()):
            raise ValueError(f"scale_2 must be one finite number, got {scale_2}")
        second.append(value.cpu().expand(codes.shape[0]))
    sizes = tuple(part[0].shape[0] for part in parts)
    if sum(sizes) < 8:
        raise ValueError(f"the CUDA product needs at least 8 outputs, got {sum(sizes)}")
    return DeviceNvfp4(
        torch.cat([part[0] for part in parts]).to(device).contiguous(),
        torch.cat([part[1].view(torch.uint8) for part in parts])
        .to(device)
        .contiguous()
        .view(torch.float8_e4m3fn),
        torch.cat(second).to(device).contiguous(),
        sizes,
    )


def linear_skinny(
    library: CudaLibrary, weight: DeviceNvfp4, x: Tensor, out: Tensor, *, tile: SkinnyTile
) -> None:
    """out[r, n] = bf16(scale_2[n] * sum_k x[r, k] * w[n, k]) for 1 to 32 rows, on the current stream.

    A row's bits depend on its own inputs, the weight and (tile.wk, tile.il) alone.

    Args:
        x: bfloat16 [R, K]; out: bfloat16 [R, N]; unit column strides, rows may be further apart (x by
            multiples of 8), x aligned to 16 bytes, both on the library's device.

    Raises:
        ValueError: an operand differs from the above; nothing was launched.
    """
    plan = plan_launch(tile, rows=x.shape[0], outputs=weight.outputs)
    _launch(library, weight, x, out, tile, plan, plan.entry, torch.bfloat16)


def logits_skinny(
    library: CudaLibrary, weight: DeviceNvfp4, x: Tensor, out: Tensor, *, tile: SkinnyTile
) -> None:
    """What `linear_skinny` gives with this setting's order of the sum, before its rounding.

    Args:
        out: float32 [R, N], unit column stride; the rest is as in `linear_skinny`.

    Raises:
        ValueError: an operand differs from that; nothing was launched.
    """
    tile = logits_tile(tile, weight.outputs)
    plan = plan_launch(tile, rows=x.shape[0], outputs=weight.outputs)
    _launch(library, weight, x, out, tile, plan, _logits_entry(plan.entry), torch.float32)


def _launch(
    library: CudaLibrary,
    weight: DeviceNvfp4,
    x: Tensor,
    out: Tensor,
    tile: SkinnyTile,
    plan: SkinnyLaunch,
    entry: str,
    dtype: torch.dtype,
) -> None:
    rows = x.shape[0]
    _require("x", x, torch.bfloat16, (rows, weight.inputs))
    _require("out", out, dtype, (rows, weight.outputs))
    for name, tensor in (("x", x), ("out", out), ("the weight", weight.codes)):
        if tensor.device != library.device:
            raise ValueError(f"{name} is on {tensor.device}, the kernels are on {library.device}")
    ldx, ldo = _row_stride("x", x), _row_stride("out", out)
    if ldx % 8 or x.data_ptr() % 16:
        raise ValueError(f"x must start at 16 bytes and have rows of 16 bytes, row stride {ldx}")
    if rows * ldx >= _MOST_ELEMENTS:
        raise ValueError(f"x spans {rows * ldx} elements, the kernel counts to {_MOST_ELEMENTS}")
    pointers = (out, x, weight.codes, weight.scales, weight.scale_2)
    numbers = (rows, weight.outputs, weight.inputs, ldx, ldo, tile.il)
    library.launch(
        library.function(SOURCE, entry),
        grid=plan.grid,
        threads=plan.threads,
        shared_bytes=plan.shared_bytes,
        arguments=[
            *(ctypes.c_void_p(tensor.data_ptr()) for tensor in pointers),
            *(ctypes.c_int32(number) for number in numbers),
        ],
    )


def expand(library: CudaLibrary, weight: DeviceNvfp4, out: Tensor) -> None:
    """out = the exact bfloat16 [N, K] of code times group scale; scale_2 is left to the sum.

    Raises:
        ValueError: `out` is not a contiguous bfloat16 [N, K] on the library's device.
    """
    _require("out", out, torch.bfloat16, (weight.outputs, weight.inputs))
    if out.device != library.device or not out.is_contiguous():
        raise ValueError(f"out must be contiguous and on {library.device}, got {out.device}")
    words = weight.codes.numel() // 4
    library.launch(
        library.function(EXPAND_SOURCE, _EXPAND_ENTRY),
        grid=-(-words // _EXPAND_THREADS),
        threads=_EXPAND_THREADS,
        shared_bytes=0,
        arguments=[
            *(ctypes.c_void_p(t.data_ptr()) for t in (out, weight.codes, weight.scales)),
            ctypes.c_int64(words),
        ],
    )


def _require(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if tensor.dtype != dtype or tuple(tensor.shape) != shape:
        raise ValueError(
            f"{name} must be {dtype} {list(shape)}, got {tensor.dtype} {list(tensor.shape)}"
        )


def _row_stride(name: str, tensor: Tensor) -> int:
    if tensor.stride(1) != 1 or (tensor.shape[0] > 1 and tensor.stride(0) < tensor.shape[1]):
        raise ValueError(f"{name} must have a unit column stride and rows that do not overlap")
    return tensor.stride(0) if tensor.shape[0] > 1 else tensor.shape[1]
