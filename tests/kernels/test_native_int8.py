# SPDX-License-Identifier: MIT OR Apache-2.0
"""The NVFP4 product with 8-bit inputs: the same bits everywhere, the rounding of its twin, the extremes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.bf16_linear.pack import pack_bf16
from kernels.build import NativeLibrary, load_library, machine_isas
from kernels.checks import compare, same_bits
from kernels.cpu.buffers import aligned_empty
from kernels.cpu.product import PackedLinear, linear
from kernels.cpu.product_check import INPUT_KINDS, bound_of, inputs, run_product
from kernels.nvfp4_linear.check import exact_weight, nvfp4_case, random_weight
from kernels.nvfp4_linear.pack import pack_nvfp4
from kernels.nvfp4_linear.reference import round_inputs_int8
from kernels.probe import Probe
from kernels.tape import Pool, Tape

_LARGEST, _LEAST = 448.0, 2.0**-9  # of the scales of e4m3


def packed_of(codes: Tensor, scale: float | Tensor, scale_2: float = 1.0) -> PackedLinear:
    """Codes [N, K/2] under one scale, or those of every group."""
    scales = torch.as_tensor(scale).expand(codes.shape[0], codes.shape[1] // 8)
    return pack_nvfp4([(codes, scales.to(torch.float8_e4m3fn), scale_2)]).reading_int8()


def identity(k: int) -> PackedLinear:
    """Output n is input n as it is read."""
    codes = torch.zeros(k, k // 2, dtype=torch.uint8)
    for n in range(k):
        codes[n, n // 2] = 0x20 if n % 2 else 0x02  # 1.0
    return packed_of(codes, 1.0)


def product(
    library: NativeLibrary,
    packed: PackedLinear,
    x: Tensor,
    threads: int = 1,
    *,
    eager: bool = False,
) -> Tensor:
    with Pool(library, threads) as pool:
        return run_product(pool, packed, x, torch.float32, eager=eager)


def test_all_levels_have_the_same_bits() -> None:
    outputs, k = 75, 1040
    codes, scales, _ = random_weight(outputs, k, 6)
    products = {
        "any": pack_nvfp4([random_weight(outputs, k, 2)]),
        "the largest of either sign": pack_nvfp4([(codes & 0x88 | 0x77, scales, 1.0)]),
        # With inputs of one sign, too, the largest sums: without VNNI they are of int16.
        "the largest": pack_nvfp4([(torch.full_like(codes, 0x77), scales, 1.0)]),
    }
    cases = {kind: inputs(kind, 21, k, 5) for kind in INPUT_KINDS}
    cases["full range"] = torch.full((9, k), 1.984375).bfloat16()
    cases["full range, negative"] = -cases["full range"]
    cases["prompt"] = inputs("outliers", 70, k, 8)
    for name, packed in products.items():
        for kind, x in cases.items():
            results = {
                isa: product(load_library(isa), packed.reading_int8(), x) for isa in machine_isas()
            }
            wanted = results["portable"]
            assert wanted.isfinite().all()
            for isa, result in results.items():
                assert same_bits(result, wanted), (name, kind, isa)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(1, 70),
    outputs=st.integers(1, 70),
    groups=st.integers(1, 90),
    kind=st.sampled_from(INPUT_KINDS),
    workers=st.integers(1, 3),
    isa=st.sampled_from(machine_isas()),
    eager=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_shape(
    own_home: object,
    rows: int,
    outputs: int,
    groups: int,
    kind: str,
    workers: int,
    isa: str,
    eager: bool,
    seed: int,
) -> None:
    library = load_library(isa)
    case = nvfp4_case(outputs, groups * 16, seed, int8=True)
    x = inputs(kind, rows, groups * 16, seed)
    got = product(library, case.packed, x, workers, eager=eager)
    row = seed % rows
    alone = product(load_library("portable"), case.packed, x[row : row + 1])
    assert same_bits(got[row : row + 1], alone)
    for part, weight in zip(case.packed.parts, case.weights, strict=True):
        exact, bound = case.bound(library, x, weight, torch.float32)
        columns = got[:, part.offset : part.offset + part.size]
        assert compare("nvfp4_linear", isa, columns, exact, bound).reason == ""


def test_inputs_are_rounded_as_the_twin_says(library: NativeLibrary) -> None:
    """Every bf16 number of every sign as the largest of its group, beside neighbours of any size."""
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    fits = every[every.double().abs() < 2.0**127]
    generator = torch.Generator().manual_seed(1)
    # From twice the largest down to where everything is lost: ties and clamps are among them.
    parts = torch.randint(-260, 261, (len(fits), 16), generator=generator).double() / 256
    x = (fits.double().unsqueeze(1) * parts).bfloat16()
    at = torch.arange(len(fits)) % 16
    x[torch.arange(len(fits)), at] = fits
    x = torch.cat([x.flatten(), torch.zeros(-x.numel() % 512).bfloat16()]).view(-1, 512)
    x = x[x.double().abs().amax(-1) < 2.0**127]
    assert len(x) > 2000
    got = product(library, identity(512), x)
    wanted = round_inputs_int8(x)
    assert torch.equal(got.double(), wanted)
    assert not bool(
        torch.signbit(got[got == 0]).any()
    )  # no -0, whose sign would tell the order of a sum
    assert bool(((wanted - x.double()).abs() <= largest_of(x) * 2.0**-7 + 2.0**-117).all())


def largest_of(x: Tensor) -> Tensor:
    """float64 [rows, K], of each input the largest magnitude of its group."""
    return x.double().unflatten(-1, (-1, 16)).abs().amax(-1).repeat_interleave(16, -1)


def test_ties_go_to_even_and_127_steps_are_the_most(library: NativeLibrary) -> None:
    x = torch.zeros(2, 32, dtype=torch.bfloat16)
    steps = torch.tensor([64.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 3.25])
    x[0, :8] = steps.bfloat16()
    x[0, 16:18] = torch.tensor([127.5, -127.5])  # halves away from 128 steps, which there are not
    x[1, :8] = (steps * 2.0**-30).bfloat16()
    got = product(library, identity(32), x)
    wanted = torch.tensor([64.0, 0.0, 2.0, 2.0, 0.0, -2.0, -2.0, 3.0])
    assert got[0, :8].tolist() == wanted.tolist()
    assert got[0, 16:18].tolist() == [127.0, -127.0]
    assert got[1, :8].tolist() == (wanted * 2.0**-30).tolist()


@pytest.mark.parametrize(
    "value", [torch.nan, -torch.nan, torch.inf, -torch.inf, 2.0**127, -(2.0**127)]
)
def test_a_row_beyond_the_range_is_nan_and_harms_no_other(
    library: NativeLibrary, value: float
) -> None:
    packed = pack_nvfp4([random_weight(40, 288, 3)]).reading_int8()
    for rows, broken in ((1, 0), (6, 2), (17, 16), (40, 33)):
        for place in (0, 150, 287):
            x = inputs("gaussian", rows, 288, 2)
            clean = product(library, packed, x)
            x[broken, place] = value
            got = product(library, packed, x, 2)
            assert bool(got[broken, :40].isnan().all())
            others = [row for row in range(rows) if row != broken]
            assert same_bits(got[others], clean[others])


@pytest.mark.parametrize("scale", [_LARGEST, _LEAST, 0.0])
@pytest.mark.parametrize("exponent", [126, 104, -100, -113, -116, -118, -126])
def test_the_extremes_of_scales_and_inputs_meet(
    library: NativeLibrary, exponent: int, scale: float
) -> None:
    """The exponents of a step and a scale, added up, neither run over nor out."""
    codes, _, _ = random_weight(32, 64, 1)
    codes[5] = 0
    if exponent == 126 and scale == _LARGEST:
        codes[:] = 0  # any other sum is beyond fp32
    x = inputs("gaussian", 3, 64, 2).double().clamp(-1.9, 1.9)
    x = (x * 2.0**exponent).bfloat16()
    x[1, :32] = 0
    got = product(library, packed_of(codes, scale, 2.0**-20), x)
    weight = exact_weight(codes, torch.full((32, 4), scale).to(torch.float8_e4m3fn), 2.0**-20)
    exact, bound = bound_of(x, weight, 24, torch.float32, round_inputs_int8(x))
    assert compare("nvfp4_linear", library.isa, got, exact, bound).reason == ""
    if exponent < -112:
        # So few bits that nothing is rounded, and no factor on the way is subnormal.
        sums = product(library, packed_of(codes, scale), x).double()
        assert torch.equal(sums, exact * 2.0**20)


def test_a_head_of_another_format_has_no_such_product() -> None:
    packed = pack_nvfp4([random_weight(16, 64, 1)])
    assert packed.takes_int8
    assert packed.reading_int8().entry == "rondo_nvfp4_linear_int8"
    assert packed.reading_int8().weight is packed.weight
    for other in (
        pack_nvfp4([random_weight(16, 64, 1)], amx=True),
        pack_bf16([torch.ones(16, 64).bfloat16()]),
    ):
        assert not other.takes_int8
        with pytest.raises(ValueError, match=f"{other.entry} does not read its input as 8-bit"):
            other.reading_int8()


@pytest.mark.parametrize("rows", [8, 33])
def test_a_tape_keeps_its_bits_over_replays(library: NativeLibrary, rows: int) -> None:
    """Other rows in the same buffers: nothing of the last ones stays in what was repacked."""
    packed = pack_nvfp4([random_weight(40, 288, 3)]).reading_int8()
    x, out = aligned_empty((rows, 288), torch.bfloat16), aligned_empty((rows, 48), torch.float32)
    with Pool(library, 2) as pool:
        tape = Tape(pool)
        linear(tape, packed, x, out, rows=rows)
        for seed in range(3):
            x.copy_(inputs("gaussian", rows, 288, seed))
            x[0, seed] = torch.nan if seed == 1 else 1.0
            tape.run()
            assert same_bits(out[1:], run_product(pool, packed, x, torch.float32)[1:])
            assert bool(out[0, :40].isnan().all()) == (seed == 1)


def test_the_peak_of_bytes_is_counted_where_products_multiply_bytes(
    library: NativeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Pool(library, 1) as pool:
        plain = Probe(pool, working_set_bytes=1 << 20)
        bytes_too = Probe(pool, working_set_bytes=1 << 20, int8=True)
        if library.isa.startswith("avx"):
            assert bytes_too._dot_flops == 2 * plain._dot_flops
        assert bytes_too._dot_flops >= plain._dot_flops
        assert bytes_too.dot_gflops() > 0
        monkeypatch.setattr(NativeLibrary, "has_matrix_unit", True)
        assert Probe(pool, working_set_bytes=1 << 20, int8=True)._dot == plain._dot
