# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks of the native E2M1 conversion: every code, every tie and its neighbours, special values."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.build import NativeLibrary
from kernels.checks import CheckResult, expect, poison
from kernels.cpu.buffers import aligned_empty
from kernels.e2m1 import native, reference
from kernels.tape import Pool, Tape


def nearest_code(values: Tensor) -> Tensor:
    """Codes by distance in float64, ties to the even code: independent of any threshold table."""
    table = torch.tensor(reference.VALUES, dtype=torch.float64)
    distance = (values.double().abs().clamp(max=99).unsqueeze(-1) - table).abs()
    best = distance.amin(-1, keepdim=True)
    tied = distance == best
    index = torch.arange(8)
    even = torch.where(tied & (index % 2 == 0), index, 8).amin(-1)
    lowest = torch.where(tied, index, 8).amin(-1)
    code = torch.where(tied.sum(-1) > 1, even, lowest).to(torch.uint8)
    return code | (torch.signbit(values).to(torch.uint8) << 3)


def test_values(seed: int) -> Tensor:
    """float32 values with every midpoint, its neighbours, zeros, subnormals and random bits."""
    generator = torch.Generator().manual_seed(seed)
    grid = torch.tensor([0.0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6, 7])
    around = [grid, torch.nextafter(grid, torch.tensor(9.0)), torch.nextafter(grid, -grid - 1)]
    dense = torch.linspace(0, 8, 1 << 16)
    random = torch.randint(-(2**31), 2**31 - 1, (1 << 16,), generator=generator, dtype=torch.int32)
    random = random.view(torch.float32)
    tiny = torch.tensor([1e-45, 1e-38, 3.4e38, float("inf")])
    positive = torch.cat([*around, dense, random[random.isfinite()], tiny])
    values = torch.cat([positive, -positive])
    return values[: values.numel() // 2 * 2]


def check(library: NativeLibrary, *, seed: int = 0) -> list[CheckResult]:
    """Native encode and decode against the nearest code and the value table, 1 and 2 workers."""
    values = test_values(seed)
    wanted = nearest_code(values)
    name = library.isa
    results = [
        expect(
            "e2m1.encode",
            "reference",
            bool(torch.equal(reference.encode(values), wanted)),
            "the reference differs from the nearest code",
        )
    ]
    for workers in (1, 2):
        with Pool(library, workers) as pool:
            for count in (values.numel(), 2, 14, 30):
                out = poison(aligned_empty(count // 2, torch.uint8))
                tape = Tape(pool)
                native.encode(tape, values[:count].clone(), out)
                tape.run()
                same = bool(torch.equal(reference.unpack(out), wanted[:count]))
                reason = f"{count} values, {workers} workers: a code is not the nearest"
                results.append(expect("e2m1.encode", name, same, reason))
            packed = torch.arange(256, dtype=torch.uint8)
            back = poison(aligned_empty(512, torch.float32))
            tape = Tape(pool)
            native.decode(tape, packed, back)
            tape.run()
            exact = torch.equal(
                back.view(torch.int32),
                reference.decode(reference.unpack(packed)).view(torch.int32),
            )
            results.append(expect("e2m1.decode", name, exact, "a decoded value differs"))
    nan = reference.encode(torch.tensor([float("nan")]))
    results.append(expect("e2m1.encode", "reference", int(nan) & 7 == 7, "NaN is not saturated"))
    rounded_up = reference.encode(torch.tensor([0.25, 1.25, 2.5, 5.0]))
    results.append(
        expect("e2m1.encode", "reference", rounded_up.tolist() == [0, 2, 4, 6], "ties go up")
    )
    return results
