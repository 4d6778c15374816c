# SPDX-License-Identifier: MIT OR Apache-2.0
"""A short sweep for tests of `rondo tune`: one small product, no flush, and times by the setting alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from engine.measure import tune as tuning
from engine.measure import tune_case
from engine.measure.shapes import Shape
from engine.model.projection import Packing
from kernels.cpu.blocking import Blocking
from kernels.cpu.buffers import aligned_zeros
from kernels.cpu.product import PackedLinear
from kernels.fp8_linear.pack import pack_fp8_rows
from kernels.nvfp4_linear.pack import pack_nvfp4
from kernels.probe import CacheFlush
from kernels.tape import Pool

FASTER = Blocking(rows=1, inputs=256)


def make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short sweep over few copies of one product, so that it takes moments."""
    monkeypatch.setattr(tune_case, "_RUN_BYTES", 1 << 16)
    monkeypatch.setattr(tuning, "CacheFlush", no_flush)
    monkeypatch.setattr(tuning, "SWEEP", (("rows", (1, 4)), ("inputs", (256,))))
    monkeypatch.setattr(tuning, "products", given_products)


def no_flush(pool: Pool) -> CacheFlush:
    flush = CacheFlush.__new__(CacheFlush)
    flush.nbytes, flush._data = 8192, aligned_zeros(8192, torch.uint8)
    flush._sink = aligned_zeros((pool.threads, 16), torch.float32)
    return flush


def given_products(
    shapes: list[Shape], weight_format: str, packing: Packing, *, seed: int
) -> Iterator[PackedLinear]:
    return iter([one(weight_format)])


def one(weight_format: str) -> PackedLinear:
    draw = torch.Generator().manual_seed(1)
    if weight_format == "fp8":
        codes = torch.randn(48, 512, generator=draw).to(torch.float8_e4m3fn)
        return pack_fp8_rows([(codes, 0.5)])
    codes = torch.randint(0, 256, (48, 256), generator=draw).to(torch.uint8)
    scales = torch.rand(48, 32, generator=draw).to(torch.float8_e4m3fn)
    return pack_nvfp4([(codes, scales, 0.5)])


def make_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times by the setting alone: each size of FASTER takes a tenth off."""

    def run(case: tune_case.Case, rows: int, setting: Blocking) -> float:
        hits = (setting.rows == FASTER.rows) + (setting.inputs == FASTER.inputs)
        case.timed_ms += rows
        return rows * (1.0 - 0.1 * hits)

    monkeypatch.setattr(tune_case.Case, "_run", run)


def wrong_bits(monkeypatch: pytest.MonkeyPatch, *, inputs: int) -> list[tuple[int, Blocking]]:
    """Settings of these inputs give other bits at 31 rows; the list fills with what was computed."""
    computed = []
    result = tune_case.Case._result

    def wrong(case: tune_case.Case, rows: int, setting: Blocking) -> torch.Tensor:
        computed.append((rows, setting))
        out = result(case, rows, setting)
        return out + 1 if setting.inputs == inputs and rows == 31 else out

    monkeypatch.setattr(tune_case.Case, "_result", wrong)
    return computed
