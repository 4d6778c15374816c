# SPDX-License-Identifier: MIT OR Apache-2.0
"""The sweep of launch settings: what it keeps, and the skinny kernel's settings in the default's order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from simt.library import HostLibrary
from torch import Tensor

from kernels.nvfp4_linear.check import random_weight
from kernels.nvfp4_linear.cuda import place_nvfp4
from kernels.nvfp4_linear.tiles import SkinnyTile, candidates, default_tile
from kernels.tile_sweep import sweep

pytest.importorskip("triton")

from kernels.cuda_tiles import sweep_nvfp4


def test_the_default_stays_without_a_gain_in_two_comparisons() -> None:
    def swept(times: dict[str, Iterator[float]]) -> str:
        return sweep(
            lambda rows, tile: torch.zeros(rows),
            lambda rows, tile: next(times[tile]),
            default="default",
            tiles=("default", "other"),
            shares={1: 1.0},
        ).tile

    plain = [10.0] * 3
    assert swept({"default": iter(plain), "other": iter([9.0, 9.0, 9.0])}) == "other"
    assert swept({"default": iter(plain), "other": iter([9.0, 9.0, 9.95])}) == "default"
    # Faster at first, when the clock was still rising.
    assert swept({"default": iter([12.0, 10.0, 10.0]), "other": iter([11.0] * 3)}) == "default"


def test_a_setting_without_room_or_with_another_bit_is_refused() -> None:
    def run(rows: int, tile: str) -> Tensor:
        if tile == "large":
            raise MemoryError
        return torch.full((rows,), float(tile == "wrong" and rows == 31))

    found = sweep(
        run,
        lambda rows, tile: {"default": 10.0, "good": 5.0}[tile],
        default="default",
        tiles=("large", "wrong", "good"),
        shares={1: 0.5, 32: 0.5},
        unlaunchable=(MemoryError,),
    )
    assert (found.tile, found.us, found.default_us) == ("good", 5.0, 10.0)
    assert (found.tried, found.refused) == (2, ("large", "wrong"))


def test_every_candidate_of_the_skinny_kernel_has_the_defaults_bits() -> None:
    outputs, inputs = 44, 512
    weight = place_nvfp4([random_weight(outputs, inputs, 3)], "cpu")
    library = HostLibrary()
    fast = SkinnyTile(nt=4, wk=2, pf=0)
    assert fast.order == default_tile(outputs, inputs).order

    def seconds(work: Callable[[], None]) -> float:
        work()
        return 0.5 if "_t4_" in library.launched[-1] else 1.0

    swept = sweep_nvfp4(library, [weight, weight], shares={1: 1.0}, seconds=seconds)
    assert swept.refused == ()
    assert swept.tried == len(list(candidates(outputs, inputs)))
    assert swept.tile == fast
    assert swept.us == pytest.approx(0.25e6)
