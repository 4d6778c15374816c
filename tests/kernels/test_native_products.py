# SPDX-License-Identifier: MIT OR Apache-2.0
"""The native products: every check on every level, and random shapes."""

from __future__ import annotations

import importlib

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels import build
from kernels.bf16_linear.pack import pack_bf16
from kernels.build import NativeLibrary, load_library, machine_isas
from kernels.checks import compare, same_bits
from kernels.cpu.buffers import aligned_empty
from kernels.cpu.product import PackedLinear, linear
from kernels.cpu.product_check import INPUT_KINDS, bound_of, inputs, run_product
from kernels.fp8_linear.check import random_codes, random_scales
from kernels.fp8_linear.pack import pack_fp8_blocks, pack_fp8_rows
from kernels.nvfp4_linear.check import (
    activations_read,
    exact_weight,
    nvfp4_case,
    random_weight,
)
from kernels.nvfp4_linear.pack import pack_nvfp4
from kernels.nvfp4_linear.reference import dequantise_nvfp4, round_inputs
from kernels.nvfp4_linear.reference import linear as nvfp4_reference
from kernels.tape import Pool, Tape


@pytest.mark.parametrize("name", ["nvfp4_linear", "fp8_linear", "bf16_linear"])
def test_checks_pass(library: NativeLibrary, name: str) -> None:
    results = importlib.import_module(f"kernels.{name}.check").check(library)
    assert len(results) > 60
    assert [result.reason for result in results if not result.ok] == []


def test_levels_without_a_bf16_dot_product_have_the_same_bits() -> None:
    levels = [isa for isa in machine_isas() if isa in ("avx512vnni", "avx512", "avxvnni", "avx2")]
    if len(levels) < 2:
        pytest.skip("needs AVX-512")
    outputs, k = 75, 1040
    codes = random_codes(outputs, k, 1)
    products = {
        "nvfp4": pack_nvfp4([random_weight(outputs, k, 2)]),
        "fp8": pack_fp8_blocks([(codes, random_scales(outputs, k, 3))]),
        "bf16": pack_bf16(
            [torch.randn(outputs, k, generator=torch.Generator().manual_seed(4)).bfloat16()]
        ),
    }
    cases = {kind: inputs(kind, 21, k, 5) for kind in INPUT_KINDS}
    # Group sums of 21 bits and more, odd ones: times a scale they no longer fit a float32.
    codes, scales, _ = random_weight(outputs, k, 6)
    products["nvfp4 of one sign"] = pack_nvfp4([(codes & 0x77 | 0x60, scales, 1.0)])
    cases["large sums"] = inputs("gaussian", 21, k, 7).abs() + 1
    cases["large sums"][:, ::4] *= 2.0**-7
    for kind, x in cases.items():
        for name, packed in products.items():
            results = []
            for isa in levels:
                with Pool(load_library(isa), 1) as pool:
                    results.append(run_product(pool, packed, x, torch.float32))
            for isa, result in zip(levels, results, strict=True):
                assert same_bits(result, results[-1]), (name, kind, isa)


def test_avx_vnni_has_the_bits_of_avx2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no processor has its encoding, in that of AVX-512, which says the same."""
    flags = build._processor_flags()
    if "avx_vnni" not in flags:
        if "avx512_vnni" not in flags:
            pytest.skip("needs VNNI")
        known = {level.name: level for level in build.ISA_LEVELS}
        wide = (*known["avx2"].flags, "-D__AVXVNNI__=1", '-DRONDO_VEX=""')
        known["avxvnni"] = build.IsaLevel("avxvnni", wide, frozenset())
        monkeypatch.setattr(build, "ISA_LEVELS", tuple(known.values()))
    folder = build._ROOT
    sources = [folder / "cpu" / "pool.cpp", folder / "cpu" / "product.cpp"]
    sources += sorted((folder / "nvfp4_linear").glob("*.cpp"))
    library = load_library("avxvnni", sources=sources)
    packed = pack_nvfp4([random_weight(75, 1040, 2)])
    for each in (packed, packed.reading_int8()):
        for kind in INPUT_KINDS:
            x = inputs(kind, 21, 1040, 5)
            results = []
            for one in (library, load_library("avx2")):
                with Pool(one, 1) as pool:
                    results += [
                        run_product(pool, each, x[:rows], torch.float32) for rows in (1, 5, 21)
                    ]
            assert all(map(same_bits, results[:3], results[3:])), (each.entry, kind)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(1, 50),
    outputs=st.integers(1, 70),
    groups=st.integers(1, 90),
    kind=st.sampled_from(INPUT_KINDS),
    workers=st.integers(1, 2),
    seed=st.integers(0, 99),
)
def test_any_nvfp4_shape(
    fastest: NativeLibrary,
    rows: int,
    outputs: int,
    groups: int,
    kind: str,
    workers: int,
    seed: int,
) -> None:
    case = nvfp4_case(outputs, groups * 16, seed, amx=fastest.has_matrix_unit)
    x = inputs(kind, rows, groups * 16, seed)
    with Pool(fastest, workers) as pool:
        got = run_product(pool, case.packed, x, torch.bfloat16)
        row = seed % rows
        alone = run_product(pool, case.packed, x[row : row + 1], torch.bfloat16)
    assert same_bits(got[row : row + 1], alone)
    for part, weight in zip(case.packed.parts, case.weights, strict=True):
        exact, bound = case.bound(fastest, x, weight, torch.bfloat16)
        columns = got[:, part.offset : part.offset + part.size]
        assert compare("nvfp4_linear", "cpu", columns, exact, bound).reason == ""


def test_prefill_rows_have_the_bits_of_single_rows(fastest: NativeLibrary) -> None:
    packed = pack_nvfp4([random_weight(64, 1536, 3)], amx=fastest.has_matrix_unit)
    x = inputs("outliers", 301, 1536, 4)
    with Pool(fastest, 2) as pool:
        whole = run_product(pool, packed, x, torch.float32)
        for begin, end in ((0, 1), (7, 40), (40, 41), (200, 301)):
            part = run_product(pool, packed, x[begin:end], torch.float32)
            assert same_bits(part, whole[begin:end])


def test_levels_agree_within_their_bounds(library: NativeLibrary) -> None:
    """A whole weight against the readable twin, which sums in another order."""
    codes, scales, scale_2 = random_weight(96, 512, 1)
    x = inputs("gaussian", 9, 512, 2)
    with Pool(library, 1) as pool:
        got = run_product(
            pool,
            pack_nvfp4([(codes, scales, scale_2)], amx=library.has_matrix_unit),
            x,
            torch.bfloat16,
        )
    twin = nvfp4_reference(x, codes, scales, scale_2)
    exact = x.double() @ exact_weight(codes, scales, scale_2).T
    scale = x.double().abs() @ dequantise_nvfp4(codes, scales, scale_2).double().abs().T
    assert float(((got.double() - twin.double()).abs() / scale).max()) < 2.0**-8
    assert float(((got.double() - exact).abs() / scale).max()) < 2.0**-9


def test_one_scale_for_the_whole_tensor(fastest: NativeLibrary) -> None:
    codes = random_codes(40, 96, 1)
    x = inputs("gaussian", 3, 96, 2)
    with Pool(fastest, 1) as pool:
        for scale in (0.25, torch.tensor(0.25), torch.full((40, 1), 0.25)):
            got = run_product(
                pool, pack_fp8_rows([(codes, scale)], amx=fastest.has_matrix_unit), x, torch.float32
            )
            plain = run_product(
                pool, pack_fp8_rows([(codes, 1.0)], amx=fastest.has_matrix_unit), x, torch.float32
            )
            assert same_bits(got, plain * 0.25)


def test_a_nan_weight_spoils_its_output_alone(library: NativeLibrary) -> None:
    codes = random_codes(40, 300, 1)
    codes.view(torch.uint8)[7, 290] = 0xFF
    x = inputs("gaussian", 6, 300, 2)
    with Pool(library, 1) as pool:
        for packed in (
            pack_fp8_blocks([(codes, random_scales(40, 300, 1))], amx=library.has_matrix_unit),
            pack_fp8_rows([(codes, torch.ones(40))], amx=library.has_matrix_unit),
        ):
            got = run_product(pool, packed, x, torch.bfloat16)
            assert got.isnan().any(0).nonzero().tolist() == [[7]]
            assert bool(got[:, 7].isnan().all())


def test_inputs_that_are_no_numbers_reach_every_output(library: NativeLibrary) -> None:
    parts = [random_weight(40, 96, 3)]
    with Pool(library, 1) as pool:
        for value in (torch.nan, torch.inf, -torch.inf):
            x = inputs("gaussian", 6, 96, 2)
            x[2, 50] = value
            got = run_product(
                pool, pack_nvfp4(parts, amx=library.has_matrix_unit), x, torch.float32
            )[:, :40]
            assert not bool(got[2].isfinite().any())
            assert bool(got[[0, 1, 3, 4, 5]].isfinite().all())


def test_the_largest_inputs_do_not_overflow_early(library: NativeLibrary) -> None:
    """Sums and factors far beyond float32 where only the result is within it."""
    codes, scales, _ = random_weight(32, 64, 1)
    packed = pack_nvfp4([(codes, scales, 2.0**-20)], amx=library.has_matrix_unit)
    weight = exact_weight(codes, scales, 2.0**-20)
    for exponent in (110, -112, -126):
        x = (inputs("gaussian", 3, 64, 2).double() * 2.0**exponent).bfloat16()
        with Pool(library, 1) as pool:
            got = run_product(pool, packed, x, torch.float32)[:, :32]
        exact, bound = bound_of(x, weight, 24, torch.float32, activations_read(library, x))
        assert compare("nvfp4_linear", library.isa, got, exact, bound).reason == ""


def test_rounded_inputs_stay_close() -> None:
    """The declared step: half of 2^-14 of the largest input of a group at most, exact near it."""
    for kind in INPUT_KINDS:
        x = inputs(kind, 5, 96, 3)
        read = round_inputs(x).view(5, -1, 16)
        value = x.double().view(5, -1, 16)
        largest = value.abs().amax(-1, keepdim=True)
        off = (read - value).abs()
        assert bool((off <= largest * 2.0**-15 + 2.0**-127).all())
        near = (value.abs() >= largest * 2.0**-7) & (largest > 2.0**-112)
        assert bool((off[near] == 0).all())


def test_a_cut_head_leaves_its_padding_alone(fastest: NativeLibrary) -> None:
    packed = pack_bf16([torch.randn(37, 64).bfloat16()], amx=fastest.has_matrix_unit)
    x = inputs("gaussian", 4, 64, 2)
    with Pool(fastest, 2) as pool:
        full = run_product(pool, packed, x, torch.float32)
        out = torch.full((4, 40), float("nan"))
        tape = Tape(pool)
        linear(tape, packed, x, out[:, :37], rows=4, columns=37)
        tape.run()
    assert same_bits(out[:, :37].contiguous(), full[:, :37].contiguous())
    assert bool(out[:, 37:].isnan().all())
    assert packed.columns == 48
    assert packed.parts[0].size == 37


def _refuse(pool: Pool, packed: PackedLinear, message: str, **changes: object) -> None:
    operands = {
        "x": aligned_empty((4, 64), torch.bfloat16),
        "out": aligned_empty((4, 48), torch.bfloat16),
        "rows": 4,
    } | changes
    with pytest.raises(ValueError, match=message):
        linear(Tape(pool), packed, operands.pop("x"), operands.pop("out"), **operands)


def test_operands_that_do_not_fit_are_refused(fastest: NativeLibrary) -> None:
    packed = pack_bf16([torch.randn(37, 64).bfloat16()])
    with Pool(fastest, 1) as pool:
        _refuse(pool, packed, "rows", rows=0)
        _refuse(pool, packed, "x must have shape", rows=5)
        _refuse(pool, packed, "x must be torch.bfloat16", x=torch.zeros(4, 64))
        _refuse(pool, packed, r"x must have shape .*got \[4, 63\]", x=torch.zeros(4, 63).bfloat16())
        _refuse(pool, packed, "out must be", out=torch.zeros(4, 48).half())
        _refuse(pool, packed, "unit column stride", out=torch.zeros(48, 4).bfloat16().T)
        _refuse(pool, packed, "columns", columns=49)


def test_weights_that_do_not_fit_are_refused() -> None:
    codes, scales, scale_2 = random_weight(32, 64, 1)
    with pytest.raises(ValueError, match="multiples of 16"):
        pack_nvfp4([(codes[:, :20], scales, scale_2)])
    with pytest.raises(ValueError, match="scales must have shape"):
        pack_nvfp4([(codes, scales[:, :3], scale_2)])
    with pytest.raises(ValueError, match="float8_e4m3fn"):
        pack_nvfp4([(codes, scales.view(torch.uint8), scale_2)])
    with pytest.raises(ValueError, match="not negative"):
        pack_nvfp4([(codes, (scales.view(torch.uint8) | 0x81).view(scales.dtype), scale_2)])
    with pytest.raises(ValueError, match="equal size"):
        pack_nvfp4([(codes, scales, 1.0), (codes[:16], scales[:16], 1.0)], interleave=True)
    with pytest.raises(ValueError, match="block scales"):
        pack_fp8_blocks([(random_codes(32, 64, 1), random_scales(32, 300, 1))])
    with pytest.raises(ValueError, match="row scales"):
        pack_fp8_rows([(random_codes(32, 64, 1), torch.ones(31))])
    with pytest.raises(ValueError, match="64 inputs"):
        pack_bf16([torch.zeros(4, 64).bfloat16(), torch.zeros(4, 65).bfloat16()])
    with pytest.raises(ValueError, match="at least one"):
        pack_bf16([])
