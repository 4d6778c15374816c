# SPDX-License-Identifier: MIT OR Apache-2.0
"""The wrappers and the checks of the GPU kernels, launched on the CPU; tile tables; refused operands."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from simt.library import HostLibrary

from kernels.build_cache import NativeBuildError
from kernels.checks import CheckResult, same_bits
from kernels.cuda_build import CudaLibrary
from kernels.cuda_registry import run_cuda_checks
from kernels.head import cuda_check as head_check
from kernels.head.cuda import head_logits
from kernels.nvfp4_linear import cuda_check
from kernels.nvfp4_linear.check import random_weight
from kernels.nvfp4_linear.cuda import (
    SOURCE,
    entries,
    linear_skinny,
    place_nvfp4,
)
from kernels.nvfp4_linear.tiles import SkinnyTile, TileTables, default_tile, fitted

TILE = SkinnyTile(nt=1, wk=2, pf=1)
SMALL = ((44, 256),)


@pytest.fixture
def library() -> HostLibrary:
    return HostLibrary()


def faults(results: list[CheckResult]) -> list[str]:
    return [result.reason for result in results if not result.ok]


def test_the_checks_hold(library: HostLibrary) -> None:
    results = list(cuda_check.check(library, shapes=SMALL, orders=((8, 1), (2, 0))))
    assert faults(results) == []
    assert any(result.row_invariant for result in results)
    assert {result.device for result in results} == {"cuda"}
    # Two orders, six settings, eleven batches, and the rows alone.
    assert len(library.launched) > 2 * (6 * 11 + 32)
    assert faults(list(cuda_check.check(library, shapes=((20, 256),), orders=((2, 0),)))) == []
    logits = {entry for entry in entries()[SOURCE] if "logits" in entry}
    assert logits == {entry for entry in library.launched if "logits" in entry}


REVERSED = "total += kRows > 8 ? at[(warps - w) * kPlane] : at[w * kPlane]"


@pytest.mark.parametrize(
    ("edit", "word"),
    [
        (("skinny.cuh", "b[0], b[1]);", "b[1], b[0]);"), "outside the bound"),
        (("skinny.cuh", "total += at[w * kPlane]", REVERSED), "differ from the rows alone"),
        (("skinny.cuh", "float value) { *at = value; }", "float value) { *at = 2 * value; }"),
         "are others than in bf16"),
    ],
    ids=["wrong fragment", "order that depends on the rows", "another store of logits"],
)  # fmt: skip
def test_the_checks_see_a_fault(edit: tuple[str, str, str], word: str) -> None:
    library = HostLibrary([edit])
    found = faults(list(cuda_check.check(library, shapes=((20, 640),), orders=((4, 0),))))
    assert any(word in reason for reason in found), found


def test_the_heads_check_holds_and_sees_a_fault(library: HostLibrary) -> None:
    assert faults(list(head_check.check(library, shapes=SMALL))) == []
    broken = HostLibrary([("gemv.cu", "0x07F007F0u", "0x07E007E0u")])
    assert "outside the bound" in faults(list(head_check.check(broken, shapes=SMALL)))[0]


def test_a_check_that_raises_is_a_failed_result(
    library: HostLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr("kernels.head.cuda_check.inputs", broken)
    (result,) = run_cuda_checks(library, names=("head",))
    assert result.reason == "the check stopped: RuntimeError: no memory"
    with pytest.raises(ValueError, match="no GPU kernel is called 'heads'"):
        next(run_cuda_checks(library, names=("heads",)))


def test_a_row_stride_and_one_row(library: HostLibrary) -> None:
    weight = place_nvfp4([random_weight(20, 256, 1)], "cpu")
    x = torch.randn(3, 512).bfloat16()[:, :256]
    out = torch.empty(3, 20, dtype=torch.bfloat16)
    linear_skinny(library, weight, x, out, tile=TILE)
    alone = torch.empty(1, 20, dtype=torch.bfloat16)
    linear_skinny(library, weight, x[1:2], alone, tile=TILE)
    assert same_bits(out[1:2], alone)


def _operands(**changes: Any) -> dict[str, Any]:
    values = {
        "weight": place_nvfp4([random_weight(20, 256, 1)], "cpu"),
        "x": torch.zeros(4, 256, dtype=torch.bfloat16),
        "out": torch.zeros(4, 20, dtype=torch.bfloat16),
        "tile": TILE,
    }
    return values | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": torch.zeros(33, 256).bfloat16()}, "1 to 32 rows, got 33"),
        ({"x": torch.zeros(0, 256).bfloat16()}, "1 to 32 rows, got 0"),
        ({"x": torch.zeros(4, 256)}, "x must be torch.bfloat16"),
        ({"x": torch.zeros(4, 255).bfloat16()}, r"x must be .*got torch.bfloat16 \[4, 255\]"),
        ({"x": torch.zeros(256, 4).bfloat16().T}, "unit column stride"),
        ({"x": torch.zeros(4, 260).bfloat16()[:, :256]}, "rows of 16 bytes, row stride 260"),
        ({"x": torch.zeros(1025).bfloat16()[1:].view(4, 256)}, "start at 16 bytes"),
        ({"out": torch.zeros(4, 21).bfloat16()}, "out must be"),
        ({"out": torch.zeros(4, 20)}, "out must be torch.bfloat16"),
        ({"x": torch.zeros(4, 256, dtype=torch.bfloat16, device="meta")}, "x is on meta"),
        ({"tile": SkinnyTile(nt=4, wk=2)}, "does not fit 4 rows of 20 outputs"),
    ],
)
def test_operands_that_do_not_fit_are_refused(
    library: HostLibrary, changes: dict[str, Any], message: str
) -> None:
    values = _operands(**changes)
    with pytest.raises(ValueError, match=message):
        linear_skinny(library, values["weight"], values["x"], values["out"], tile=values["tile"])
    assert library.launched == []


def test_weights_that_do_not_fit_are_refused() -> None:
    codes, scales, scale_2 = random_weight(32, 256, 1)
    raw = scales.view(torch.uint8)
    for parts, message in (
        ([], "at least one weight"),
        ([(codes[:, :40], scales[:, :5], scale_2)], "multiples of 128, got 80"),
        ([(codes, scales[:, :3], scale_2)], "scales must be"),
        ([(codes, raw, scale_2)], "float8_e4m3fn"),
        ([(codes, (raw | 0x81).view(scales.dtype), scale_2)], "not negative"),
        ([(codes, scales, float("nan"))], "finite"),
        ([(codes, scales, torch.ones(2))], "one finite number"),
        ([(codes[:5], scales[:5], scale_2)], "at least 8 outputs, got 5"),
        ([(codes, scales, 1.0), (codes[:, :64], scales[:, :8], 1.0)], "codes must be"),
    ):
        with pytest.raises(ValueError, match=message):
            place_nvfp4(parts, "cpu")


def test_a_head_that_does_not_fit_is_refused(library: HostLibrary) -> None:
    x, out = torch.zeros(2, 128).bfloat16(), torch.zeros(2, 40)
    codes, scale = torch.zeros(40, 128).to(torch.float8_e4m3fn), torch.ones(40)
    for change, message in (
        ({"x": x[:, :100]}, "multiples of 64, got 100"),
        ({"codes": codes.float()}, "codes must be"),
        ({"scale": scale[:39]}, "scale must be"),
        ({"out": out.bfloat16()}, "out must be"),
        ({"out": torch.zeros(40, 2).T}, "unit column strides"),
        ({"x": torch.zeros(2, 132).bfloat16()[:, :128]}, "row stride 132"),
    ):
        values = {"x": x, "codes": codes, "scale": scale, "out": out} | change
        with pytest.raises(ValueError, match=message):
            head_logits(library, values["x"], values["codes"], values["scale"], values["out"])
    assert library.launched == []


def test_without_a_gpu_the_library_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(NativeBuildError, match="PyTorch sees no GPU number 0"):
        CudaLibrary()


def _table(path: Path, entries: object) -> Path:
    path.write_text(json.dumps({"cuda": entries, "cpu": {"ignored": 1}}))
    return path


def test_tables_choose_by_shape_and_width(tmp_path: Path) -> None:
    base = _table(tmp_path / "base.json", {"5120x1024": {"nt": 2, "wk": 8, "gbps": 201.5}})
    wide = _table(tmp_path / "wide.json", {"5120x1024": {"nt": 4, "wk": 8, "pf": 0}})
    tables = TileTables.read(base, wide)
    assert tables.tile(5120, 1024, 16) == SkinnyTile(nt=2, wk=8, pf=1)
    assert tables.tile(5120, 1024, 17) == SkinnyTile(nt=4, wk=8, pf=0)
    assert tables.tile(64, 256, 17) == default_tile(64, 256)
    # The order of the sum never depends on the rows.
    for shape in ((5120, 1024), (17408, 5120), (44, 256), (1024, 5120)):
        assert len({tables.tile(*shape, rows).order for rows in range(1, 33)}) == 1


def test_a_wide_table_that_changes_the_order_is_refused(tmp_path: Path) -> None:
    base = _table(tmp_path / "base.json", {"5120x1024": {"nt": 2, "wk": 8}})
    for entry in ({"nt": 4, "wk": 4}, {"nt": 4, "wk": 8, "il": 1}):
        wide = _table(tmp_path / "wide.json", {"5120x1024": entry})
        with pytest.raises(
            ValueError, match=r"5120x1024 has wk .* up to 16 rows have wk 8 and il 0"
        ):
            TileTables.read(base, wide)
    # Against the rule where the base table has no entry.
    rule = default_tile(44, 256)
    fits = _table(tmp_path / "fits.json", {"44x256": {"nt": 1, "wk": rule.wk}})
    assert TileTables.read(None, fits).wide
    with pytest.raises(ValueError, match="44x256"):
        TileTables.read(None, _table(fits, {"44x256": {"nt": 1, "wk": 16}}))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"5120": {"nt": 1, "wk": 1}}, "no shape"),
        ({"5120x100": {"nt": 1, "wk": 1}}, "no shape"),
        ({"4x256": {"nt": 1, "wk": 1}}, "no shape"),
        ({"64x256": {"nt": 1}}, "nt and wk are needed"),
        ({"64x256": {"nt": 3, "wk": 1}}, r"nt must be one of \[1, 2, 4\]"),
        ({"64x256": {"nt": True, "wk": 1}}, "nt must be one of"),
        ({"64x256": {"nt": 1, "wk": 1, "minb": 1}}, "unknown setting 'minb'"),
        ({"64x256": 3}, "expected an object"),
        ([], "expected"),
    ],
)
def test_a_table_with_a_fault_is_refused(tmp_path: Path, entries: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TileTables.read(_table(tmp_path / "tiles.json", entries))


def test_an_unreadable_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "tiles.json").write_text("{")
    for name in ("tiles.json", "missing.json"):
        with pytest.raises(ValueError, match=f"{name}: cannot be read"):
            TileTables.read(tmp_path / name)


def test_the_rule_of_a_shape() -> None:
    assert default_tile(17408, 5120) == SkinnyTile(nt=2, wk=8, pf=1)
    assert default_tile(1024, 5120) == SkinnyTile(nt=1, wk=8, pf=1)
    assert default_tile(256, 256) == SkinnyTile(nt=1, wk=1, pf=1)
    tile = SkinnyTile(nt=4, wk=8, pf=1)
    assert fitted(tile, 5120, 32) == replace(tile, pf=0)
    assert fitted(tile, 20, 1) == replace(tile, nt=2)
