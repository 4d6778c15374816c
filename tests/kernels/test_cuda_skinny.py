# SPDX-License-Identifier: MIT OR Apache-2.0
"""The skinny CUDA kernels' own sources, run lane by lane on the CPU against their twin, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from simt.host import KERNELS, HostKernels
from simt.twin import ordered_product
from torch import Tensor

from kernels.checks import poison, same_bits
from kernels.nvfp4_linear.check import random_weight
from kernels.nvfp4_linear.cuda import EXPAND_SOURCE, SOURCE, entries, plan_launch
from kernels.nvfp4_linear.reference import dequantise_nvfp4
from kernels.nvfp4_linear.tiles import STEP, SkinnyTile, fitted

ENTRY = "rondo_nvfp4_skinny_t1_r8_a0"
UNIT = 2.0**-8
ROWS = (1, 2, 7, 8, 9, 16, 17, 31, 32)
OUTPUTS, INPUTS = (
    44,
    640,
)  # no multiple of a block's outputs; five steps, so that warps' shares differ
DECODERS = pytest.mark.parametrize("fp4_convert", [True, False], ids=["fp4-convert", "bit-tricks"])


@pytest.fixture(params=[True, False], ids=["fp4-convert", "bit-tricks"])
def kernels(request: pytest.FixtureRequest) -> HostKernels:
    """The product with either decoder."""
    return HostKernels(SOURCE, ENTRY, fp4_convert=request.param)


def activations(rows: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, INPUTS, generator=generator)
    x[:, ::97] *= 3000
    return x.bfloat16()


class Weight:
    """Stored NVFP4 weights with a scale_2 of their own for every output."""

    def __init__(self, outputs: int = OUTPUTS, inputs: int = INPUTS, seed: int = 5) -> None:
        self.codes, self.scales, _ = random_weight(outputs, inputs, seed)
        self.scale_2 = torch.rand(outputs, generator=torch.Generator().manual_seed(seed)) / 1000

    def twin(self, x: Tensor, tile: SkinnyTile) -> Tensor:
        weight = dequantise_nvfp4(self.codes, self.scales, 1.0)
        sums = ordered_product(
            x, weight, self.scale_2, unit=UNIT, step=STEP, warps=tile.wk, interleave=bool(tile.il)
        )
        return sums.bfloat16()

    def run(self, kernels: HostKernels, x: Tensor, tile: SkinnyTile, row_pad: int = 8) -> Tensor:
        """The kernel's result, from and into poisoned buffers that are wider and longer."""
        rows, outputs, inputs = x.shape[0], self.codes.shape[0], x.shape[1]
        plan = plan_launch(tile, rows=rows, outputs=outputs)
        wide_x = poison(torch.empty(rows, inputs + row_pad, dtype=torch.bfloat16))
        wide_x[:, :inputs] = x
        wide_out = poison(torch.empty(rows + 2, outputs + 3, dtype=torch.bfloat16))
        held = wide_x[:, :inputs]
        kernels.launch(
            plan.entry,
            grid=plan.grid,
            threads=plan.threads,
            shared_bytes=plan.shared_bytes,
            arguments=[
                wide_out, wide_x, self.codes, self.scales, self.scale_2,
                rows, outputs, inputs, wide_x.stride(0), wide_out.stride(0), tile.il,
            ],
            readable=[held, self.codes, self.scales],
        )  # fmt: skip
        outside = torch.cat([wide_out[rows:].flatten(), wide_out[:rows, outputs:].flatten()])
        assert bool(outside.isnan().all())
        return wide_out[:rows, :outputs].contiguous()


def undone() -> tuple[Weight, Tensor]:
    """Operands for four warps: the second's sum undoes the first's, so that what is left tells the order."""
    weight, x = Weight(), activations(32)
    weight.codes[:, 128:256] = weight.codes[:, :128]
    raw = weight.scales.view(torch.uint8)
    raw[:, 16:32] = raw[:, :16]
    x[:, 256:512] = -x[:, :256]
    return weight, x


@DECODERS
def test_every_code_under_every_scale_is_exact(fp4_convert: bool) -> None:
    """All 16 codes times all 127 scales: the decoder against the table, no rounding anywhere."""
    kernels = HostKernels(EXPAND_SOURCE, "rondo_nvfp4_expand", fp4_convert=fp4_convert)
    codes = torch.arange(256, dtype=torch.uint8).view(-1, 8).repeat(127, 1)
    scales = torch.arange(127, dtype=torch.uint8).repeat_interleave(32)[:, None]
    scales = scales.view(torch.float8_e4m3fn)
    out = poison(torch.empty(len(codes), 16, dtype=torch.bfloat16))
    words = codes.numel() // 4
    kernels.launch(
        "rondo_nvfp4_expand",
        grid=-(-words // 256),
        threads=256,
        shared_bytes=0,
        arguments=[out, codes, scales, words],
        readable=[codes, scales],
    )
    assert same_bits(out, dequantise_nvfp4(codes, scales, 1.0).bfloat16())
    assert torch.equal(out.double(), dequantise_nvfp4(codes, scales, 1.0).double())


@pytest.mark.parametrize(
    "tile",
    [
        SkinnyTile(nt=1, wk=4, pf=0),
        SkinnyTile(nt=1, wk=2, pf=1, il=1),
        SkinnyTile(nt=2, wk=4, pf=1),
        SkinnyTile(nt=2, wk=8, pf=0, il=1),
        SkinnyTile(nt=4, wk=2, pf=0),
        SkinnyTile(nt=4, wk=4, pf=1, il=1),
    ],
    ids=lambda tile: f"t{tile.nt}w{tile.wk}a{tile.pf}i{tile.il}",
)
def test_every_row_count_has_the_bits_of_the_row_alone(
    kernels: HostKernels, tile: SkinnyTile
) -> None:
    weight, x = Weight(), activations(32)
    want = weight.twin(x, tile)
    for rows in ROWS:
        got = weight.run(kernels, x[:rows], fitted(tile, OUTPUTS, rows))
        assert same_bits(got, want[:rows]), f"{rows} rows"
    for row in (0, 5, 31):
        alone = weight.run(kernels, x[row : row + 1], tile)
        assert same_bits(alone, want[row : row + 1]), f"row {row} alone"


def test_every_entry_was_run() -> None:
    """The settings above, over the row counts above, reach every entry of the source."""
    (mark,) = (
        mark
        for mark in test_every_row_count_has_the_bits_of_the_row_alone.pytestmark
        if mark.name == "parametrize"
    )
    tiles = {(tile.nt, tile.pf) for tile in mark.args[1]}
    reached = {
        plan_launch(fitted(SkinnyTile(nt, 4, pf), OUTPUTS, rows), rows=rows, outputs=OUTPUTS).entry
        for nt, pf in tiles
        for rows in ROWS
    }
    assert reached == {entry for entry in entries()[SOURCE] if "skinny" in entry}


@pytest.mark.parametrize("power", [-120, -60, 0, 60, 110])
def test_activations_keep_the_range_of_bf16(kernels: HostKernels, power: int) -> None:
    """What FP16 operands would lose: huge and tiny rows beside ordinary ones."""
    weight, tile = Weight(seed=9), SkinnyTile(nt=2, wk=4, pf=1)
    x = activations(9, seed=3)
    x[3:6] = (x[3:6].double() * 2.0**power).bfloat16()
    x[7] = 0
    got = weight.run(kernels, x, tile)
    assert same_bits(got, weight.twin(x, tile))
    assert bool(torch.isfinite(got).all())


def test_an_infinite_row_stays_in_its_row(kernels: HostKernels) -> None:
    weight, tile, x = Weight(), SkinnyTile(nt=1, wk=2, pf=1), activations(17)
    clean = weight.run(kernels, x, tile)
    x[4, 10], x[16, 3] = float("inf"), float("nan")
    got = weight.run(kernels, x, tile)
    assert not bool(torch.isfinite(got[16]).any())
    others = [row for row in range(17) if row not in (4, 16)]
    assert same_bits(got[others], clean[others])


FAULTS = {
    "swapped nibbles": ("nvfp4.cuh", "<kSelector>(word << 4, word)", "<kSelector>(word, word << 4)"),
    "sign of a code lost": ("nvfp4.cuh", "(codes & 0x80008000u)", "(codes & 0x80000000u)"),
    "scale of the other half": ("skinny.cu", "if (chunk == 1)", "if (chunk == 0)"),
    "scales shifted by a group": ("skinny.cu", "(inputs / 16) + 2 * t,", "(inputs / 16) + 2 * (t ^ 1),"),
    "neighbouring weight row": ("skinny.cuh", "lane(first_output + g,", "lane(first_output + (g ^ 1),"),
    "B registers swapped": ("skinny.cuh", "b[0], b[1]);", "b[1], b[0]);"),
    "A registers swapped": ("skinny.cuh", "low.x, high.x, low.y, high.y", "low.x, low.y, high.x, high.y"),
    "sum at the wrong place": ("skinny.cuh", "kPitch + 2 * t;", "kPitch + 2 * (t ^ 1);"),
    "warps added from the last": ("skinny.cuh", "total += at[w * kPlane]", "total += at[(warps - w) * kPlane]"),
    "a step left out": ("skinny.cuh", "step + stride < end", "step + stride < end - 1"),
    "rows past sixteen lost": ("skinny.cuh", "g, shape.rows - 1)", "g, min(shape.rows, 16) - 1)"),
    "unit of the scales": ("nvfp4.cuh", "0x7B007B00u", "0x7A807B00u"),
}  # fmt: skip


@pytest.fixture(scope="module")
def one_entry() -> list[tuple[str, str, str]]:
    """Edits that leave one entry of the source, so that a faulty build takes less time."""
    lines = [
        line
        for line in (KERNELS / SOURCE).read_text().splitlines()
        if line.startswith(("SKINNY(", "LOGITS("))
    ]
    assert len(lines) == len(entries()[SOURCE])
    return [("skinny.cu", line, "") for line in lines if line != "SKINNY(2, 32, 1)"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen(fault: str, one_entry: list[tuple[str, str, str]]) -> None:
    """Each fault of an index, the decoding or the order changes the result."""
    tile = SkinnyTile(nt=2, wk=4, pf=1)
    weight, x = undone() if fault.startswith("warps added") else (Weight(), activations(32))
    kernels = HostKernels(
        SOURCE,
        "rondo_nvfp4_skinny_t2_r32_a1",
        fp4_convert=False,
        edits=[*one_entry, FAULTS[fault]],
    )
    assert not same_bits(weight.run(kernels, x, tile), weight.twin(x, tile))


@pytest.mark.parametrize(
    "make", [lambda: (Weight(), activations(32)), undone], ids=["plain", "undone"]
)
def test_no_edit_is_no_fault(
    make: Callable[[], tuple[Weight, Tensor]], one_entry: list[tuple[str, str, str]]
) -> None:
    """An ordinary sum hides another order of its parts behind the rounding to bf16; undone ones do not."""
    tile, (weight, x) = SkinnyTile(nt=2, wk=4, pf=1), make()
    kernels = HostKernels(
        SOURCE, "rondo_nvfp4_skinny_t2_r32_a1", fp4_convert=False, edits=one_entry
    )
    assert same_bits(weight.run(kernels, x, tile), weight.twin(x, tile))
