# SPDX-License-Identifier: MIT OR Apache-2.0
"""Read rates of the GPU products over weights that no cache holds: `python -m kernels.cuda_bench`.

A ranking of kernels, not a promise about rounds. Distinct weights of a shape, three times the L2 cache and half
a gigabyte at least, are multiplied one after the other inside a captured graph, so that neither a cache nor the
launch from Python is measured; the first replay is not timed, the median of the others counts. Beside the rates
stands the roof: what PyTorch's sum over a large buffer reads in the same process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from kernels.build_cache import NativeBuildError
from kernels.cuda_build import CudaError, CudaLibrary
from kernels.head.cuda import head_logits
from kernels.nvfp4_linear.cuda import DeviceNvfp4, linear_skinny
from kernels.nvfp4_linear.tiles import SECTION, SkinnyTile, TileTables, fitted

# Products of Qwen3.8-27B: gate or up, down, in_qkv, in_z, out or o, q, k or v.
SHAPES = (
    (17408, 5120), (5120, 17408), (10240, 5120), (6144, 5120), (5120, 6144), (12288, 5120), (1024, 5120),
)  # fmt: skip
HEAD = (248320, 5120)
ROWS = (1, 8, 16, 24, 32)
_REPLAYS = 7
_LEAST_BYTES = 512 << 20
_ROOF_BYTES = 4 << 30
_SWEEP = tuple(
    SkinnyTile(nt, wk, pf, il)
    for wk in (4, 8, 16)
    for il in (0, 1)
    for nt in (1, 2, 4)
    for pf in (0, 1)
)


@dataclass(frozen=True)
class Rate:
    """One product measured: the bytes of its weights over its time; a setting that was read or swept."""

    kernel: str
    outputs: int
    inputs: int
    rows: int
    us: float
    read_gbps: float
    tile: str


def main(argv: list[str] | None = None) -> int:
    """Measure and print; with --sweep also print the tables of the fastest settings."""
    parser = argparse.ArgumentParser(prog="python -m kernels.cuda_bench")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--tiles", type=Path, help="table for 1 to 16 rows")
    parser.add_argument("--tiles-wide", type=Path, help="table for 17 to 32 rows")
    parser.add_argument("--sweep", action="store_true", help="try every setting of every shape")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    rows = tuple(int(part) for part in arguments.rows.split(","))
    try:
        tables = TileTables.read(arguments.tiles, arguments.tiles_wide)
        library = CudaLibrary(on_progress=lambda line: print(line, file=sys.stderr))
    except (NativeBuildError, CudaError, ValueError) as error:
        print(f"not available: {error}", file=sys.stderr)
        return 1
    name = torch.cuda.get_device_name(library.device)
    roof = read_roof_gbps(library)
    found: list[Rate] = []
    for outputs, inputs in SHAPES:
        print(f"{outputs}x{inputs}", file=sys.stderr)
        weights = nvfp4_weights(library, outputs, inputs)
        tiles = _SWEEP if arguments.sweep else ()
        for count in rows:
            own = [fitted(tile, outputs, count) for tile in tiles]
            own = own or [tables.tile(outputs, inputs, count)]
            found += [_nvfp4_rate(library, weights, count, tile) for tile in dict.fromkeys(own)]
    found += [_head_rate(library, count) for count in rows]
    values: dict[str, Any] = {"device": name, "target": library.target.name, "roof_gbps": roof}
    values["rates"] = [asdict(rate) for rate in found]
    if arguments.sweep:
        values["tables"] = best_tables(found)
    if arguments.json:
        print(json.dumps(values, indent=1))
    else:
        for line in _lines(name, roof, found):
            print(line)
    return 0


def read_roof_gbps(library: CudaLibrary) -> float:
    """What a sum over a buffer far larger than the caches reads."""
    buffer = torch.ones(_ROOF_BYTES // 4, device=library.device)
    out = torch.empty((), device=library.device)
    seconds = replay_seconds(lambda: torch.sum(buffer, dim=0, out=out))
    return buffer.numel() * 4 / seconds / 1e9


def best_tables(rates: list[Rate]) -> dict[str, Any]:
    """Tables for 1 to 16 rows and for 17 to 32: one order of the sum a shape, the fastest over all its rows.

    Within the order, each table takes the setting with the least time over its own rows.
    """
    base: dict[str, Any] = {}
    wide: dict[str, Any] = {}
    products = [rate for rate in rates if rate.kernel == "nvfp4_linear"]
    for shape in dict.fromkeys((rate.outputs, rate.inputs) for rate in products):
        own = [rate for rate in products if (rate.outputs, rate.inputs) == shape]
        tiles = {rate.tile: SkinnyTile(*map(int, rate.tile.split("/"))) for rate in own}
        best: tuple[float, SkinnyTile, SkinnyTile] | None = None
        for order in dict.fromkeys(tile.order for tile in tiles.values()):
            narrow = _fastest(
                [r for r in own if r.rows <= 16 and tiles[r.tile].order == order], tiles
            )
            broad = _fastest(
                [r for r in own if r.rows > 16 and tiles[r.tile].order == order], tiles
            )
            if narrow and broad and (best is None or narrow[0] + broad[0] < best[0]):
                best = (narrow[0] + broad[0], narrow[1], broad[1])
        if best:
            name = f"{shape[0]}x{shape[1]}"
            base[name], wide[name] = asdict(best[1]), asdict(best[2])
    return {"base": {SECTION: base}, "wide": {SECTION: wide}}


def _fastest(rates: list[Rate], tiles: dict[str, SkinnyTile]) -> tuple[float, SkinnyTile] | None:
    """(summed time, setting) of the setting that is fastest over all row counts it was measured with."""
    counts = {rate.rows for rate in rates}
    sums = {
        name: sum(rate.us for rate in rates if rate.tile == name)
        for name in {rate.tile for rate in rates}
        if {rate.rows for rate in rates if rate.tile == name} == counts
    }
    if not sums:
        return None
    name = min(sums, key=lambda each: (sums[each], each))
    return sums[name], tiles[name]


def cold_copies(library: CudaLibrary, each: int) -> int:
    """How many weights of so many bytes lie beyond every cache."""
    cache = torch.cuda.get_device_properties(library.device).L2_cache_size
    return max(2, -(-max(_LEAST_BYTES, 3 * cache) // each))


def nvfp4_weights(library: CudaLibrary, outputs: int, inputs: int) -> list[DeviceNvfp4]:
    """Random weights of one shape, more than any cache holds."""
    device = library.device
    found = []
    for _ in range(cold_copies(library, outputs * inputs * 9 // 16)):
        codes = torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8, device=device)
        raw = torch.randint(0x30, 0x40, (outputs, inputs // 16), dtype=torch.uint8, device=device)
        scale_2 = torch.full((outputs,), 0.001, device=device)
        found.append(DeviceNvfp4(codes, raw.view(torch.float8_e4m3fn), scale_2, (outputs,)))
    return found


def _nvfp4_rate(
    library: CudaLibrary, weights: list[DeviceNvfp4], rows: int, tile: SkinnyTile
) -> Rate:
    outputs, inputs = weights[0].outputs, weights[0].inputs
    x = torch.randn(rows, inputs, device=library.device).bfloat16()
    out = torch.empty(rows, outputs, dtype=torch.bfloat16, device=library.device)

    def work() -> None:
        for weight in weights:
            linear_skinny(library, weight, x, out, tile=tile)

    nbytes = outputs * inputs * 9 // 16 + 4 * outputs
    name = "/".join(str(value) for value in (tile.nt, tile.wk, tile.pf, tile.il))
    rate = Rate("nvfp4_linear", outputs, inputs, rows, 0.0, 0.0, name)
    return _timed(rate, work, len(weights), nbytes)


def _head_rate(library: CudaLibrary, rows: int) -> Rate:
    tokens, inputs = HEAD
    device = library.device
    codes = torch.randint(0x20, 0x40, HEAD, dtype=torch.uint8, device=device)
    scale = torch.full((tokens,), 0.001, device=device)
    x = torch.randn(rows, inputs, device=device).bfloat16()
    out = torch.empty(rows, tokens, device=device)
    weight = codes.view(torch.float8_e4m3fn)
    rate = Rate("head", tokens, inputs, rows, 0.0, 0.0, "")
    # One head is larger than any L2 cache, and a replay begins where the last one left nothing useful.
    return _timed(
        rate, lambda: head_logits(library, x, weight, scale, out), 1, tokens * (inputs + 4)
    )


def _timed(rate: Rate, work: Callable[[], None], calls: int, nbytes: int) -> Rate:
    seconds = replay_seconds(work) / calls
    return replace(rate, us=seconds * 1e6, read_gbps=nbytes / seconds / 1e9)


def replay_seconds(work: Callable[[], Any]) -> float:
    """Median time of one run of `work`, captured and replayed."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    times = []
    for _ in range(_REPLAYS + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times[1:])


def _lines(name: str, roof: float, rates: list[Rate]) -> Iterator[str]:
    yield f"{name}: a plain sum reads {roof:.0f} GB/s"
    yield f"{'kernel':14} {'shape':>14} {'rows':>4} {'nt/wk/pf/il':>12} {'us':>9} {'GB/s':>8} {'of roof':>8}"
    for rate in rates:
        shape = f"{rate.outputs}x{rate.inputs}"
        yield (
            f"{rate.kernel:14} {shape:>14} {rate.rows:4} {rate.tile:>12} {rate.us:9.1f}"
            f" {rate.read_gbps:8.0f} {100 * rate.read_gbps / roof:6.0f} %"
        )


if __name__ == "__main__":
    sys.exit(main())
