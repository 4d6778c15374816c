# SPDX-License-Identifier: MIT OR Apache-2.0
"""The host stand-in itself: it refuses what a GPU would not forgive, and its twin is the right product."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from simt.host import HostKernels, SimtError
from simt.twin import instruction_inputs, ordered_product

FIXTURE = Path(__file__).parent / "fixtures" / "misled.cu"


@pytest.fixture
def misled() -> HostKernels:
    return HostKernels(FIXTURE, "misled_read")


def run(kernels: HostKernels, entry: str, past: int, shared_bytes: int = 0) -> torch.Tensor:
    x, out = torch.arange(128.0), torch.zeros(32)
    kernels.launch(
        entry,
        grid=1,
        threads=32,
        shared_bytes=shared_bytes,
        arguments=[out, x, past],
        readable=[x],
    )
    return out


def test_a_read_inside_the_operands_is_fine(misled: HostKernels) -> None:
    assert float(run(misled, "misled_read", 0)[1]) == float(torch.tensor(4.0).view(torch.int32))


@pytest.mark.parametrize(
    ("entry", "past", "message"),
    [
        ("misled_read", 1, "outside the operands in thread 31"),
        ("misled_read", -1, "outside the operands in thread 0"),
        ("misled_barrier", 0, "wait for each other"),
        ("misled_lanes", 0, "wait for each other"),
        ("misled_shared", 1, "behind the shared memory"),
    ],
)
def test_a_broken_rule_ends_the_launch(
    misled: HostKernels, entry: str, past: int, message: str
) -> None:
    with pytest.raises(SimtError, match=message):
        run(misled, entry, past, shared_bytes=128 if entry == "misled_shared" else 0)


def test_shared_memory_inside_the_launch_is_fine(misled: HostKernels) -> None:
    run(misled, "misled_shared", 0, shared_bytes=128)


@pytest.mark.parametrize(("step", "warps", "interleave"), [(128, 4, False), (64, 3, True)])
def test_the_twin_takes_every_input_once(step: int, warps: int, interleave: bool) -> None:
    slots = [
        k for first in range(0, 640, step) for i in instruction_inputs(640, step, first) for k in i
    ]
    assert sorted(slots) == list(range(640))
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(-8, 9, (5, 640), generator=generator).bfloat16()
    weight = torch.randint(-4, 5, (7, 640), generator=generator).float()
    scale = 2.0 ** torch.arange(-3, 4)
    got = ordered_product(
        x, weight, scale, unit=0.25, step=step, warps=warps, interleave=interleave
    )
    # Whole numbers: every order gives the exact product.
    assert torch.equal(got, (x.float() @ weight.T) * scale)
