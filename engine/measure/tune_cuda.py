# SPDX-License-Identifier: MIT OR Apache-2.0
"""Which launch settings make each quantised product of a shape fastest on this machine's GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from engine.load.synthetic import synthetic_weights
from engine.measure.shapes import Shape
from engine.measure.tune import NARROW_ROWS, WIDE_ROWS
from engine.measure.tune_case import stop_if
from engine.model.config import FULL, ModelConfig
from engine.model.cuda_forward import products_of
from engine.model.cuda_weights import CudaWeights, DeviceBlocks
from kernels.cuda_bench import cold_copies, nvfp4_weights
from kernels.cuda_build import CudaLibrary
from kernels.cuda_tiles import sweep_fp8, sweep_nvfp4
from kernels.fp8_linear.tiles import ROW_SHARES
from kernels.nvfp4_linear.cuda import DeviceNvfp4
from kernels.tile_sweep import Swept

_WEIGHTS = {"nvfp4": DeviceNvfp4, "fp8": DeviceBlocks}


@dataclass(frozen=True, slots=True)
class CudaTuneRow:
    """The best settings of one weight shape and what they bring, by the shares of its row counts."""

    key: str
    setting: dict[str, Any]  # the default where nothing beat it
    rows: tuple[int, ...]
    default_gbps: float  # bytes of weights over the time of one product
    tuned_gbps: float
    settings: int  # how many were timed
    refused: int  # how many changed a bit or found no room


def row_shares(weight_format: str, *, wide: bool) -> dict[int, float]:
    """Rows -> weight in the time that counts for a table."""
    if weight_format == "fp8":
        return dict(ROW_SHARES)
    rows = WIDE_ROWS if wide else NARROW_ROWS
    return {count: 1 / len(rows) for count in rows}


def tune_cuda(
    shapes: Sequence[Shape],
    *,
    weight_format: str,
    wide: bool,
    library: CudaLibrary,
    on_progress: Callable[[str], None] = lambda line: None,
    cancel: threading.Event | None = None,
) -> list[CudaTuneRow]:
    """Sweep every product of `shapes` in this format; one row for each distinct weight shape.

    Raises:
        Cancelled: `cancel` was set; looked at between shapes.
    """
    shares = row_shares(weight_format, wide=wide)
    found = []
    met = dict.fromkeys(
        pair
        for shape in shapes
        for pair in product_shapes(shape.config, weight_format, library.device)
    )
    for number, (outputs, inputs) in enumerate(met, 1):
        stop_if(cancel)
        on_progress(f"product {number} of {len(met)} ({outputs}x{inputs})")
        swept: Swept[Any]
        if weight_format == "fp8":
            weights = _fp8_weights(library, outputs, inputs)
            swept, nbytes = sweep_fp8(weights, shares=shares), sum(t.nbytes for t in weights[0])
        else:
            four_bit = nvfp4_weights(library, outputs, inputs)
            swept = sweep_nvfp4(library, four_bit, shares=shares)
            nbytes = four_bit[0].codes.nbytes + four_bit[0].scales.nbytes
        found.append(
            CudaTuneRow(
                f"{outputs}x{inputs}",
                asdict(swept.tile),
                tuple(shares),
                nbytes / swept.default_us / 1e3,
                nbytes / swept.us / 1e3,
                swept.tried,
                len(swept.refused),
            )
        )
    return found


def product_shapes(
    config: ModelConfig, weight_format: str, device: torch.device
) -> list[tuple[int, int]]:
    """(outputs, inputs) of each distinct product that a pass multiplies in this format, joined ones whole.

    Layers repeat, so the first ones of each kind stand for all.
    """
    kinds = config.layer_types
    layers = kinds.index(FULL) + 1 if FULL in kinds else 1
    short = replace(config, layers=layers, layer_types=kinds[:layers], vocab_size=16)
    placed = CudaWeights.place(
        short, synthetic_weights(short, weight_format), device=device, positions=1
    )
    return list(dict.fromkeys(_shapes(placed, weight_format)))


def gpu_record(library: CudaLibrary) -> dict[str, Any]:
    """The GPU behind a table, and what drives and compiles for it."""
    import triton

    own = torch.cuda.get_device_properties(library.device)
    return {
        "gpu": own.name,
        "target": library.target.name,
        "multiprocessors": own.multi_processor_count,
        "cuda_version": torch.version.cuda,
        "torch_version": torch.__version__,
        "triton_version": triton.__version__,
    }


def _shapes(placed: CudaWeights, weight_format: str) -> Iterator[tuple[int, int]]:
    for product in products_of(placed):
        if isinstance(product.weight, _WEIGHTS[weight_format]):
            yield product.outputs, product.inputs


def _fp8_weights(
    library: CudaLibrary, outputs: int, inputs: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    device = library.device
    scale = torch.full((-(-outputs // 128), -(-inputs // 128)), 0.001, device=device)
    found = []
    for _ in range(cold_copies(library, outputs * inputs)):
        codes = torch.randint(0x20, 0x40, (outputs, inputs), dtype=torch.uint8, device=device)
        found.append((codes.view(torch.float8_e4m3fn), scale.clone()))
    return found
