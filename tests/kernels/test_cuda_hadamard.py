# SPDX-License-Identifier: MIT OR Apache-2.0
"""The rotation of head vectors: the twin is the transform, and the CUDA source has its bits on the CPU."""

from __future__ import annotations

import pytest
import torch
from simt.library import HostLibrary

from kernels.hadamard import cuda_check, reference
from kernels.hadamard.cuda import DIMS, plan_launch, rotate

SIZE = 64


@pytest.mark.parametrize("size", [2, 64, 128])
def test_the_twin_is_the_transform(size: int) -> None:
    """H[i, j] = (-1)^(number of ones in i & j) / sqrt(size), in float64."""
    index = torch.arange(size)
    ones = (index[:, None] & index[None, :]).apply_(lambda value: value.bit_count())
    matrix = (1.0 - 2.0 * (ones % 2)).double() / size**0.5
    assert torch.allclose(matrix @ matrix, torch.eye(size, dtype=torch.float64))
    x = torch.randn(3, size, generator=torch.Generator().manual_seed(1))
    first, second = reference.signs(size, 1), reference.signs(size, 2)
    exact = (x.double() * first) @ matrix * second
    assert torch.allclose(reference.rotate(x, first, second).double(), exact, atol=1e-6)
    assert torch.allclose(reference.rotate(exact.float(), second, first), x, atol=1e-5)
    assert set(first.tolist()) == {-1.0, 1.0} if size > 2 else True


def test_a_rotated_outlier_lies_in_every_element() -> None:
    x = torch.zeros(1, SIZE)
    x[0, 5] = 8.0
    rotated = reference.rotate(x, reference.signs(SIZE, 1), reference.signs(SIZE, 2))
    assert torch.equal(rotated.abs(), torch.ones(1, SIZE))


def test_the_kernel_has_the_bits_of_the_twin() -> None:
    """Every size, and a last block that is not full."""
    library = HostLibrary()
    results = list(cuda_check.check(library))
    assert [result.reason for result in results if not result.ok] == []
    assert set(library.launched) == {f"rondo_hadamard_d{dim}" for dim in DIMS}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("other - v[i]", "v[i] - other"),
        ("mask < 32", "mask < 16"),
        ("stride < kOwn", "stride < kOwn / 2"),
        ("pair << 16", "pair & 0xFFFF0000u"),
        ("(float_of_bits(load_u32(second + lane * kOwn + i)) * unit)", "unit"),
    ],
)
def test_a_fault_is_seen(old: str, new: str) -> None:
    results = list(cuda_check.check(HostLibrary(edits=[("wht.cu", old, new)]), dims=(SIZE,)))
    assert [result for result in results if not result.ok]


def test_operands_that_do_not_fit_are_refused() -> None:
    x, ones = torch.zeros(2, SIZE).bfloat16(), torch.ones(SIZE)
    with pytest.raises(ValueError, match="vectors of 64, 128, 256, 512, got 96"):
        plan_launch(vectors=1, dim=96)
    with pytest.raises(ValueError, match="at least one vector"):
        plan_launch(vectors=0, dim=SIZE)
    with pytest.raises(ValueError, match="first must be"):
        rotate(HostLibrary(), x, ones.double(), ones, x)
    with pytest.raises(ValueError, match="power of two"):
        reference.transform(torch.zeros(12))
