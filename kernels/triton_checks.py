# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the checks of the Triton kernels share: their results, random operands, rows alone against rows in a
batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.checks import CheckResult, compare, expect, half_ulp_bf16, poison, same_bits
from kernels.tree_paths.reference import MAX_NODES, tree_paths

if TYPE_CHECKING:
    from kernels.cuda_build import CudaLibrary

BATCHES = (1, 2, 7, 8, 9, 16, 17, 31, 32)
MOST_OTHER = 0.01  # of elements whose rounding may fall another way
# Two roots, two branches that leave a path at different depths, and a chain to the end.
PARENTS = (-1, 0, 1, 2, 1, 4, 0, -1, 7, 8, 7, 10)


@dataclass(frozen=True)
class Bench:
    """A kernel's name and the device that its check runs on.

    `library` needs only `device` and `target`.
    """

    kernel: str
    library: CudaLibrary
    seed: int

    @property
    def device(self) -> torch.device:
        """Where the operands have to be."""
        return self.library.device

    def random(self, *shape: int, dtype: torch.dtype = torch.bfloat16, salt: int = 0) -> Tensor:
        """Normal numbers, the same on every device."""
        generator = torch.Generator().manual_seed(1000 * self.seed + salt + sum(shape))
        return torch.randn(*shape, generator=generator).to(dtype).to(self.device)

    def empty(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """A poisoned buffer."""
        return poison(torch.empty(*shape, dtype=dtype, device=self.device))

    def ints(self, *values: int) -> Tensor:
        """int32 numbers on the device."""
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def placed(self, result: CheckResult) -> CheckResult:
        """The result under this kernel's name and device."""
        name = self.library.target.name
        return replace(result, kernel=self.kernel, implementation=name, device="cuda")

    def near(
        self, what: str, got: Tensor, exact: Tensor, *, ulps: float = 1.0, slack: float = 0.0
    ) -> CheckResult:
        """`got` in bf16 within so many units of the last place of the float64 value, plus an absolute slack."""
        exact = exact.double().cpu().reshape(got.shape)
        bound = 2 * ulps * half_ulp_bf16(exact) + slack
        return self.placed(compare(self.kernel, "", got.cpu(), exact, bound, what=what))

    def close(self, what: str, got: Tensor, exact: Tensor, *, relative: float) -> CheckResult:
        """`got` within a part of the largest magnitude of the exact values."""
        exact = exact.double().cpu().reshape(got.shape)
        bound = torch.full_like(exact, relative * float(exact.abs().max()))
        return self.placed(compare(self.kernel, "", got.cpu(), exact, bound, what=what))

    def same(self, what: str, left: Tensor, right: Tensor, *, rows: bool = False) -> CheckResult:
        """Equal bits; `rows` says that this is a comparison of row counts."""
        holds = same_bits(left.cpu(), right.cpu())
        result = self.placed(expect(self.kernel, "", holds, f"{what}: the bits differ"))
        return replace(result, row_invariant=holds) if rows else result

    def mostly(self, what: str, got: Tensor, twin: Tensor) -> CheckResult:
        """Nearly every element has the twin's bits, both bf16.

        A rounding point that is left out keeps within a unit of the last place; it shows in how many elements
        differ, where another exponential or root changes one in thousands.
        """
        other = float((got.cpu() != twin.cpu().reshape(got.shape)).double().mean())
        return self.holds(
            f"{what}: {100 * other:.1f} % of the elements differ", other <= MOST_OTHER
        )

    def holds(self, what: str, condition: bool) -> CheckResult:
        """A yes-or-no check."""
        return self.placed(expect(self.kernel, "", bool(condition), what))

    def unnoticed(self, fault: str, result: CheckResult) -> CheckResult:
        """Passes when `result`, made with a fault, did not."""
        return self.holds(f"the fault '{fault}' goes unnoticed", not result.ok)

    def paths(self, parents: tuple[int, ...] | None = None) -> tuple[Tensor, Tensor]:
        """Paths and depths of a tree, or of a chain."""
        listed = list(parents or range(-1, MAX_NODES - 1))
        listed += range(len(listed) - 1, MAX_NODES - 1)
        paths, depths = tree_paths(torch.tensor(listed, dtype=torch.int32))
        return paths.to(self.device), depths.to(self.device)


def path_of(paths: Tensor, node: int) -> list[int]:
    """The nodes from a node's root to itself."""
    return [int(n) for n in paths[node].tolist() if n >= 0]


def batched_like_alone(
    bench: Bench, what: str, run: Callable[[list[int]], Tensor], batches: tuple[int, ...] = BATCHES
) -> CheckResult:
    """Every batch's last row and first row against the row alone; run(rows) gives one result a row."""
    alone = {row: run([row]) for row in {0, *(size - 1 for size in batches)}}
    for size in batches:
        together = run(list(range(size)))
        for row in sorted({0, size - 1}):
            if not same_bits(together[row : row + 1].cpu(), alone[row].cpu()):
                reason = f"{what}: row {row} of {size} differs from the row alone"
                return replace(bench.holds(reason, False), row_invariant=False)
    return replace(bench.holds(what, True), row_invariant=True)
