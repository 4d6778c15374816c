# SPDX-License-Identifier: MIT OR Apache-2.0
"""Rows of the cache in e4m3: the kernels' codes and scales are the twin's, and so is what they read."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest
import torch

from kernels.attention.check_layer import AttentionLayer, AttentionShape, random_inputs
from kernels.attention.native import attention
from kernels.block_attention.native import block_attention
from kernels.build import NativeLibrary
from kernels.checks import same_bits
from kernels.kv_cache.native import KvCache
from kernels.kv_cache.reference import dequantise, quantise
from kernels.tape import Pool, Tape

SHAPE = AttentionShape(2, 1, 64, 16)


@pytest.mark.parametrize("order", ["sorted", "shuffled"])
def test_every_bf16_number_becomes_the_twins_code(library: NativeLibrary, order: str) -> None:
    """Sorted, the numbers of a row are of one size; shuffled, most of a row are far below its largest."""
    bits = torch.arange(1 << 16)
    if order == "shuffled":
        bits = bits[torch.randperm(1 << 16, generator=torch.Generator().manual_seed(0))]
    numbers = bits.to(torch.uint16).view(torch.bfloat16).view(-1, SHAPE.dim)
    rows = len(numbers)
    inputs = replace(random_inputs(SHAPE, rows, 1), v=numbers)
    with closing(AttentionLayer(library, SHAPE, inputs, rows, scaled=True)) as layer:
        layer.run(list(range(rows)))
        _, codes, _, scales = layer.cache.stored(torch.arange(rows))
    wanted, wanted_scales = quantise(numbers[:, None])
    assert same_bits(codes, wanted)
    assert torch.equal(scales.isnan(), wanted_scales.isnan())
    finite = ~scales.isnan()
    assert finite.any()
    assert not finite.all()
    assert same_bits(scales[finite], wanted_scales[finite])


def test_every_code_is_read_as_its_number(library: NativeLibrary) -> None:
    """One position has all the weight, so what comes out is its value."""
    cache = KvCache.zeros(32, 1, 256, scaled=True)
    cache.poison()
    codes = torch.arange(256, dtype=torch.uint8)
    cache.values.view(torch.uint8)[0, 0] = codes
    cache.keys.view(torch.uint8)[0, 0, :, 0] = 0
    assert cache.key_scales is not None
    assert cache.value_scales is not None
    cache.key_scales[0, 0], cache.value_scales[0, 0] = 0.5, 0.125
    q, out = torch.zeros(1, 1, 256, dtype=torch.bfloat16), torch.zeros(1, 256, dtype=torch.bfloat16)
    with Pool(library, 1) as pool:
        tape = Tape(pool)
        start = torch.zeros(1, dtype=torch.int32)
        attention(tape, q=q, cache=cache, start=start, out=out, scale=1.0, rows=1)
        tape.run()
    number = codes.view(torch.float8_e4m3fn).float()
    finite = ~number.isnan()
    assert int(finite.sum()) == 254
    assert torch.equal(out[0][finite], (number[finite] * 0.125).bfloat16())


def test_a_row_of_zeros_and_one_with_no_number_have_their_scales() -> None:
    rows = torch.tensor([[0.0, -0.0], [1.0, torch.inf], [torch.nan, 1.0], [7.0, -448.0]])
    codes, scales = quantise(rows)
    assert scales[0] == 1
    assert scales[1:3].isnan().all()
    assert scales[3] == 1
    assert dequantise(codes, scales)[1:3].isnan().all()
    assert torch.equal(dequantise(codes, scales)[[0, 3]], rows[[0, 3]])


def test_the_error_is_half_a_step_of_the_code() -> None:
    rows = torch.randn(200, 128, generator=torch.Generator().manual_seed(2)).bfloat16()
    codes, scales = quantise(rows)
    error = (dequantise(codes, scales) - rows.float()).abs()
    step = torch.maximum(rows.float().abs() / 16, scales[:, None] / 1024)
    assert 0.9 < float((error / step).max()) < 1.01


def test_rows_move_as_they_are_stored() -> None:
    cache = KvCache.zeros(70, 3, 48, scaled=True)
    assert (cache.capacity, cache.scaled) == (96, True)
    k, v = torch.randn(2, 40, 3, 48).bfloat16()
    cache.write(25, k, v)
    held = cache.stored(torch.arange(25, 65))
    for got, wanted in zip(cache.read(65, 25), (k, v), strict=True):
        assert torch.equal(got, dequantise(*quantise(wanted)))
    cache.move(26, torch.tensor([27, 30, 64]))
    moved = cache.stored(torch.arange(26, 29))
    assert all(same_bits(a, b[[2, 5, 39]]) for a, b in zip(moved, held, strict=True))
    with pytest.raises(ValueError, match="beyond 96"):
        cache.move(95, torch.tensor([1, 2]))


def test_a_position_takes_little_more_than_half() -> None:
    assert KvCache.zeros(64, 4, 256).position_bytes == 4096
    assert KvCache.zeros(64, 4, 256, scaled=True).position_bytes == 2 * 4 * 260


def test_a_draft_block_takes_plain_rows_alone(fastest: NativeLibrary) -> None:
    with Pool(fastest, 1) as pool, pytest.raises(ValueError, match="in bf16"):
        block_attention(
            Tape(pool),
            q=torch.zeros(1, 1, 16, dtype=torch.bfloat16),
            cache=KvCache.zeros(32, 1, 16, scaled=True),
            start=torch.zeros(1, dtype=torch.int32),
            first=torch.zeros(1, dtype=torch.int32),
            out=torch.zeros(1, 16, dtype=torch.bfloat16),
            scale=1.0,
            window=8,
            rows=1,
        )
