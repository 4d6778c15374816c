# SPDX-License-Identifier: MIT OR Apache-2.0
"""Packed weights and the recording of a matrix product, shared by every weight format."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from kernels.cpu.blocking import DEFAULT, Blocking
from kernels.cpu.buffers import aligned_empty, aligned_zeros, require_rows
from kernels.cpu.threads import side_by_side
from kernels.tape import Pool, StepModel, Tape

TILE_ROWS = 16
# Up to this many rows every worker repacks the activations itself; above, a step does it once.
PRIVATE_ROWS = 32
MAX_ROWS = 65536
# Of stored rows: what a packer makes of them stays in the cache of its thread.
_CHUNK_BYTES = 1 << 20


class LinearArgs(ctypes.Structure):
    """Mirror of rondo_linear_args (kernels/cpu/product.h)."""

    _fields_ = [
        ("weight", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("row_scale", ctypes.c_void_p),
        ("x", ctypes.c_void_p),
        ("packed", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("weight_stride", ctypes.c_int64),
        ("scale_stride", ctypes.c_int64),
        ("scratch_stride", ctypes.c_int64),
        ("x_stride", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
        ("rows", ctypes.c_int32),
        ("k", ctypes.c_int32),
        ("k_padded", ctypes.c_int32),
        ("tiles", ctypes.c_int32),
        ("columns", ctypes.c_int32),
        ("out_fp32", ctypes.c_int32),
        ("silu_mul", ctypes.c_int32),
        ("block_rows", ctypes.c_int32),
        ("chunk_tiles", ctypes.c_int32),
        ("step_inputs", ctypes.c_int32),
        ("ahead_bytes", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    ]


@dataclass(frozen=True)
class Part:
    """Where one weight of a fused group lies among the output columns."""

    offset: int
    size: int


@dataclass(frozen=True)
class PackedLinear:
    """Weights in 16-row tiles, ready for a native product.

    Attributes:
        function: the native product of this format; amx: its tiles are those of the matrix unit; int8: it reads
            its input rounded to 8 bits (`kernels.nvfp4_linear.reference.round_inputs_int8`).
        weight: uint8 tiles; scale: scales inside the sum (None without); row_scale: float32
            [tiles * 16] that multiplies finished sums (None without).
        k: inputs; k_padded: inputs stored; tiles: number of 16-row tiles.
        parts: column range of each fused weight in the output, pads excluded.
        scale_stride: bytes of `scale` a tile.
        interleaved: tiles alternate gate, up, and the product returns silu(gate) * up.
    """

    function: str
    weight: Tensor
    scale: Tensor | None
    row_scale: Tensor | None
    k: int
    k_padded: int
    tiles: int
    parts: tuple[Part, ...]
    interleaved: bool
    scale_stride: int = 0
    amx: bool = False
    int8: bool = False

    @property
    def entry(self) -> str:
        """The native entry point that takes these tiles."""
        return f"{self.function}{'_amx' * self.amx}{'_int8' * self.int8}"

    @property
    def takes_int8(self) -> bool:
        """Whether there is a product of these tiles that reads its input rounded to 8 bits."""
        return self.function == "rondo_nvfp4_linear" and not self.amx

    def reading_int8(self) -> PackedLinear:
        """The same tiles for that product; nothing is copied.

        Raises:
            ValueError: there is none.
        """
        if not self.takes_int8:
            raise ValueError(f"{self.entry} does not read its input as 8-bit integers")
        return replace(self, int8=True)

    @property
    def columns(self) -> int:
        """Columns of the output, pads of 16-row tiles included."""
        return self.tiles * TILE_ROWS // (2 if self.interleaved else 1)

    @property
    def weight_bytes(self) -> int:
        """Bytes one product reads of the weights, scales included."""
        held = [t for t in (self.weight, self.scale, self.row_scale) if t is not None]
        return sum(t.numel() * t.element_size() for t in held)


def place_parts(sizes: list[int], *, interleave: bool) -> tuple[tuple[Part, ...], int]:
    """Column ranges of fused weights with these output counts, and the number of tiles.

    Raises:
        ValueError: no part, an empty part, or interleaving other than two equal parts.
    """
    if not sizes or min(sizes) < 1:
        raise ValueError(f"a packed weight needs parts with at least one output, got {sizes}")
    if interleave:
        if len(sizes) != 2 or sizes[0] != sizes[1]:
            raise ValueError(f"interleaving takes two parts of equal size, got {sizes}")
        return (Part(0, sizes[0]),), 2 * _tiles(sizes[0])
    parts, offset = [], 0
    for size in sizes:
        parts.append(Part(offset, size))
        offset += _tiles(size) * TILE_ROWS
    return tuple(parts), offset // TILE_ROWS


class PairedTiles:
    """Storage for tiles of `units` units of `unit_bytes` bytes, in pairs whose units alternate.

    A pair is one stream of memory for the kernel that works on both, or with one unit a tile two streams.
    The neighbour of an odd last tile is zeros.
    """

    def __init__(self, tiles: int, units: int, unit_bytes: int) -> None:
        pairs = -(-tiles // 2)
        self.flat = aligned_empty(pairs * units * 2 * unit_bytes, torch.uint8)
        self._tiles = self.flat.view(pairs, units, 2, unit_bytes).transpose(1, 2)
        if tiles % 2:
            self._tiles[-1, 1] = 0

    def put(self, tiles: slice, values: Tensor) -> None:
        """Store `values` [n, units, ...], of any type and strides, as the n tiles of these numbers."""
        into = self._tiles.view(values.dtype).unflatten(-1, values.shape[2:])
        numbers = range(tiles.start, tiles.stop, tiles.step)
        for first in range(3 - tiles.step):  # neighbours lie in both places of a pair
            own = numbers[first :: 3 - tiles.step]
            if own:
                pair, place = divmod(own[0], 2)
                into[pair : pair + len(own), place].copy_(values[first :: 3 - tiles.step])


def fill_tiles(
    put: Callable[[slice, Tensor], None],
    sizes: list[int],
    tile_rows: Callable[[int, int, int], Tensor],
    *,
    row_bytes: int,
    interleave: bool,
) -> None:
    """Hand the tiles of every part to `put`, a bounded number of rows at a time, in any order and thread.

    Args:
        put: (n tile numbers, neighbours or every second one; their contents [n, ...]).
        tile_rows: (part, first row, end row) -> the tiles of these rows; the callee pads the last.
        row_bytes: of a stored row.
    """
    most = max(1, _CHUNK_BYTES // (TILE_ROWS * row_bytes))
    first = 0
    chunks = []
    for index, size in enumerate(sizes):
        count = _tiles(size)
        for begin in range(0, count, most):
            end = min(begin + most, count)
            if interleave:
                numbers = slice(2 * begin + index, 2 * end, 2)
            else:
                numbers = slice(first + begin, first + end, 1)
            chunks.append((numbers, index, begin * TILE_ROWS, min(end * TILE_ROWS, size)))
        first += count

    def fill(chunk: tuple[slice, int, int, int]) -> None:
        numbers, *rows = chunk
        put(numbers, tile_rows(*rows))

    side_by_side(fill, chunks)


def pad_to_tiles(matrix: Tensor, columns: int) -> Tensor:
    """`matrix` with zeros appended: rows up to a multiple of 16, columns up to `columns`."""
    rows, held = matrix.shape
    if held == columns and rows % TILE_ROWS == 0:
        return matrix
    return functional.pad(matrix, (0, columns - held, 0, -rows % TILE_ROWS))


def words_of(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """`matrix` with neighbours of a row read as one number of `dtype`; a copy where they do not lie so."""
    width = dtype.itemsize // matrix.itemsize
    lies = matrix.stride(1) == 1 and not (
        matrix.stride(0) % width or matrix.storage_offset() % width
    )
    return (matrix if lies else matrix.clone(memory_format=torch.contiguous_format)).view(dtype)


def place_row_scale(
    values: list[Tensor | float], sizes: list[int], tiles: int, *, interleave: bool
) -> Tensor:
    """float32 [tiles * 16] from one scale, or one per output, for each part; pads get zero."""
    scale = aligned_zeros((tiles, TILE_ROWS), torch.float32)

    def rows_of(part: int, begin: int, end: int) -> Tensor:
        value = values[part]
        if isinstance(value, Tensor) and value.dim():
            rows = value[begin:end].float()
        else:
            rows = torch.full((end - begin,), float(value), dtype=torch.float32)
        return pad_to_tiles(rows.unsqueeze(1), 1).view(-1, TILE_ROWS)

    fill_tiles(scale.__setitem__, sizes, rows_of, row_bytes=4, interleave=interleave)
    return scale.view(-1)


def linear(
    tape: Tape,
    packed: PackedLinear,
    x: Tensor,
    out: Tensor,
    *,
    rows: int,
    name: str = "linear",
    columns: int | None = None,
    barrier: bool = True,
    blocking: Blocking = DEFAULT,
) -> None:
    """Record out[:rows] = x[:rows] @ W^T (or silu(gate) * up for an interleaved weight).

    Sums are fp32 in an order that depends on K alone; the result is rounded once.

    Args:
        x: bf16 [>= rows, K], any row stride, on 4 bytes.
        out: bf16 or float32 [>= rows, columns], any row stride.
        columns: outputs to store; the default stores all, the pads of tiles as zeros.
        barrier: False when the next step neither reads `out` nor writes `x`.
        blocking: how weights and rows are walked; the bits do not depend on it.

    Raises:
        ValueError: an operand or a count does not fit.
    """
    width = packed.columns if columns is None else columns
    if not 1 <= width <= packed.columns:
        raise ValueError(f"columns must lie in 1..{packed.columns}, got {columns}")
    if not 1 <= rows <= MAX_ROWS:
        raise ValueError(f"rows must lie in 1..{MAX_ROWS}, got {rows}")
    if out.dtype not in (torch.bfloat16, torch.float32):
        raise ValueError(f"out must be torch.bfloat16 or torch.float32, got {out.dtype}")
    x_address, x_stride = require_rows("x", x, torch.bfloat16, rows, packed.k, alignment=4)
    out_address, out_stride = require_rows("out", out, out.dtype, rows, width)
    pool = tape.pool
    packed_bytes = rows * packed.k_padded * activation_bytes(pool)
    args = linear_args(
        packed,
        x=(x_address, x_stride),
        out=(out_address, out_stride),
        rows=rows,
        columns=width,
        out_fp32=out.dtype == torch.float32,
        blocking=blocking,
    )
    if rows > PRIVATE_ROWS:
        args.packed = pool.shared(packed_bytes)
        tape.append(
            StepModel(f"{name}.pack", bytes_read=2 * rows * packed.k),
            pack_step(packed, pool),
            args,
            (x,),
        )
        barrier = True
    else:
        args.scratch, args.scratch_stride = pool.scratch(packed_bytes)
    outputs = sum(part.size for part in packed.parts)
    tape.append(
        StepModel(
            name,
            bytes_read=packed.weight_bytes + 2 * rows * packed.k,
            flops=2 * rows * packed.k * outputs * (1 + packed.interleaved),
        ),
        packed.entry,
        args,
        (packed, x, out),
        barrier=barrier,
    )


def linear_args(
    packed: PackedLinear,
    *,
    x: tuple[int, int],
    out: tuple[int, int],
    rows: int,
    columns: int,
    out_fp32: bool,
    blocking: Blocking,
) -> LinearArgs:
    """The arguments of a product, without the memory for repacked rows.

    Args:
        x, out: address of the first row and the elements from a row to the next, checked by the caller.
    """
    return LinearArgs(
        weight=packed.weight.data_ptr(),
        scale=None if packed.scale is None else packed.scale.data_ptr(),
        row_scale=None if packed.row_scale is None else packed.row_scale.data_ptr(),
        x=x[0],
        out=out[0],
        weight_stride=_stride(packed.weight, packed.tiles),
        scale_stride=packed.scale_stride,
        x_stride=x[1],
        out_stride=out[1],
        rows=rows,
        k=packed.k,
        k_padded=packed.k_padded,
        tiles=packed.tiles,
        columns=columns,
        out_fp32=int(out_fp32),
        silu_mul=int(packed.interleaved),
        block_rows=blocking.rows,
        chunk_tiles=blocking.tiles,
        step_inputs=blocking.inputs,
        ahead_bytes=blocking.ahead_bytes,
    )


def pack_step(packed: PackedLinear, pool: Pool) -> str:
    """The operation that repacks rows for this product: a format may do so in its own way."""
    own = f"{packed.entry}_pack"
    return own if pool.library.has(own) else "rondo_pack_rows"


def activation_bytes(pool: Pool) -> int:
    """The most bytes that one repacked activation takes."""
    size = pool.library.function("rondo_activation_bytes")
    size.restype = ctypes.c_int64
    return size()


def _stride(weight: Tensor, tiles: int) -> int:
    """Bytes of one tile in storage that holds an even number of them."""
    return weight.numel() // (-(-tiles // 2) * 2)


def _tiles(size: int) -> int:
    return -(-size // TILE_ROWS)
