# SPDX-License-Identifier: MIT OR Apache-2.0
"""The compiled GPU kernels against their manifests, and a gate that can say no."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernels import cubin_gate
from kernels.build_cache import NativeBuildError
from kernels.cubin_gate import (
    MANIFESTS,
    Budget,
    Manifest,
    Module,
    budget_faults,
    facts_of,
    launch_faults,
    missing_tools,
    module_facts,
    module_faults,
    read_manifest,
    undeclared_sources,
    unused_kernels,
)
from kernels.cuda_build import (
    MAX_SHARED_BYTES,
    ROOT,
    TARGETS,
    Target,
    cubin_path,
    nvcc_version,
    target_named,
    target_of,
)
from kernels.nvfp4_linear.cuda import SOURCE, plan_launch
from kernels.nvfp4_linear.tiles import SkinnyTile, fitted

FIXTURES = Path(__file__).parent / "fixtures"
FILES = sorted(MANIFESTS.glob("*.toml"))
MODULES = [(path, module) for path in FILES for module in read_manifest(path).modules]
needs_tools = pytest.mark.skipif(bool(missing_tools()), reason=missing_tools() or "all there")


def manifest(name: str) -> Manifest:
    return read_manifest(MANIFESTS / f"{name}.toml")


@needs_tools
@pytest.mark.parametrize(
    ("path", "module"), MODULES, ids=[f"{path.stem}-{module.source}" for path, module in MODULES]
)
def test_a_module_keeps_its_budgets(own_home: Path, path: Path, module: Module) -> None:
    facts = module_facts(read_manifest(path), module)
    assert facts
    assert module_faults(module, facts) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_kernel_is_declared_and_used(path: Path) -> None:
    assert path.stem == read_manifest(path).target
    assert undeclared_sources(read_manifest(path)) == []
    assert unused_kernels(read_manifest(path)) == []


def test_a_module_of_triton_kernels_that_no_manifest_names_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cubin_gate, "ROOT", tmp_path)
    known = Module("old/triton.py", "", {})
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "triton.py").write_text(
            "@triton.jit\ndef _move(x): ...\ndef move(x): _move[(1,)](x)\n"
        )
    (tmp_path / "math.py").write_text("@triton.jit\ndef twice(x): return 2 * x\n")
    found = undeclared_sources(Manifest("sm_90a", 0, {}, (known,)))
    assert found == ["new/triton.py"]


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("", "", ""),
        ("_gated_rms_norm[grid](", "_rms_norm[grid](", "_gated_rms_norm has a compiled form and is never"),
        ("@triton.jit\ndef _rms_norm", "@triton.jit\ndef _idle(x): ...\n\n@triton.jit\ndef _rms_norm",
         "_idle is never used"),
        ("def _require_weight", "@triton.jit\ndef _more(x): ...\n\n_more[(1,)](0)\n\ndef _require_weight",
         "_more is launched and has no compiled form"),
    ],
    ids=["as it is", "not launched", "idle", "no form"],
)  # fmt: skip
def test_a_triton_kernel_is_launched_and_has_a_compiled_form(
    tmp_path: Path, old: str, new: str, fault: str
) -> None:
    """What the module declares of itself is not taken for granted: its launches are read."""
    text = (ROOT / "rms_norm/triton.py").read_text("utf-8")
    assert old in text
    path = tmp_path / "triton.py"
    path.write_text(text.replace(old, new, 1))
    found = launch_faults(path, {"_rms_norm", "_add_rms_norm", "_gated_rms_norm"})
    assert (fault in "\n".join(found)) if fault else found == []


@needs_tools
@pytest.mark.parametrize("name", ["sm_90a", "sm_121a"])
def test_the_product_has_the_instructions_it_was_designed_for(own_home: Path, name: str) -> None:
    """Matrix instructions and conversions a weight tile, and 16-byte loads, computed from the entry's name."""
    facts = facts_of(cubin_path(ROOT / SOURCE, target_named(name)))
    for entry, own in facts.items():
        tiles, rows, ahead = [*map(int, re.findall(r"_[tra](\d+)", entry)), 0][:3]
        blocks = 2 if rows == 32 else 1
        decoded = own.count("F2FP.F16.E2M1")  # one a pair of weights, 16 a tile and step
        if (tiles, rows) != (4, 32):  # that one goes word by word
            assert own.count("HMMA") == 8 * tiles * blocks, entry
            assert own.count("LDG.E.128") == 4 * rows // 8, entry
            assert decoded == (16 * tiles if name == "sm_121a" else 0), entry
        elif name == "sm_121a":
            assert own.count("HMMA") == decoded // 2 * blocks, entry
        assert own.count("LDG.E.NA.LTC128B.128") == tiles * (1 + ahead), entry


@needs_tools
def test_a_plain_target_compiles_the_decoder_of_bit_operations(own_home: Path) -> None:
    """Without the `a` there is no conversion from e2m1; asking by the architecture's number would break."""
    plain = Target("sm_121", (12, 9))
    (facts,) = facts_of(cubin_path(ROOT / "nvfp4_linear/expand.cu", plain)).values()
    assert facts.count("F2FP.F16.E2M1") == 0
    assert facts.count("LOP3") >= 4


@needs_tools
@pytest.mark.parametrize("name", ["sm_90a", "sm_121a"])
def test_the_gate_refuses_a_faulty_kernel(own_home: Path, name: str) -> None:
    facts = facts_of(cubin_path(FIXTURES / "faulty.cu", target_named(name)))
    counts = {"LDL": 0, "STL": 0, "REDG": 0, "RED": 0, "ATOMG": 0, "LDG.E.128": 1}
    module = Module(
        "faulty.cu", "", {"rondo_faulty": Budget(8, 0, counts), "rondo_gone": Budget(8, 0, {})}
    )
    found = "\n".join(module_faults(module, facts))
    for part in ("bytes of local memory", "times LDL", "times STL", "registers, the budget is 8",
                 "0 times LDG.E.128, expected 1", "rondo_gone does not exist"):  # fmt: skip
        assert part in found
    assert re.search(r"[1-9]\d* times (REDG|RED|ATOMG), expected 0", found)
    assert "is not declared" in "\n".join(module_faults(Module("faulty.cu", "", {}), facts))
    (own,) = facts.values()
    generous = Budget(255, 0, {})
    assert budget_faults("rondo_faulty", own, generous) == [
        f"rondo_faulty: {own.stack_bytes} bytes of local memory"
    ]


def test_a_launch_asks_for_no_more_shared_memory_than_its_budget() -> None:
    for path in FILES:
        budgets = {n: b for m in read_manifest(path).modules for n, b in m.kernels.items()}
        for nt in (1, 2, 4):
            for rows in (1, 9, 17):
                for ahead in (0, 1):
                    tile = fitted(SkinnyTile(nt, 16, ahead), 8 * nt, rows)
                    plan = plan_launch(tile, rows=rows, outputs=8 * nt)
                    assert plan.shared_bytes <= budgets[plan.entry].shared_bytes
                    assert plan.shared_bytes <= MAX_SHARED_BYTES


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[shadows]", '[shadows]\n"a.cu" = { by = "b.cu", reason = " " }'), "without a reason"),
        (('used_by = "kernels.nvfp4_linear.cuda"\n', ""), "used_by"),
        (("registers = 56", "registers = 56, spills = 3"), "unknown: spills"),
        (('target = "sm_', 'target = "zm_'), "unknown target"),
        (("shared_bytes = 101376", "shared_bytes = 1024"), "more shared memory"),
        (("shared_bytes = 101376", "shared_bytes = 101376\nsmem = 1"), "unknown: smem"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_manifest_with_a_fault_is_refused(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    text = (MANIFESTS / "sm_121a.toml").read_text("utf-8")
    assert change[0] in text
    file = tmp_path / "sm_121a.toml"
    file.write_text(text.replace(*change, 1))
    with pytest.raises(ValueError, match=message):
        read_manifest(file)


def test_the_targets_keep_their_suffix() -> None:
    assert target_of((12, 1)).name == "sm_121a"
    assert target_of((9, 0)).name == "sm_90a"
    assert all(t.name.endswith("a") for capability, t in TARGETS.items() if capability >= (9, 0))
    with pytest.raises(NativeBuildError, match=r"compute capability 7\.5"):
        target_of((7, 5))


def _stand_in(folder: Path, body: str, name: str = "nvcc") -> Path:
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    path = folder / "bin" / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_an_old_nvcc_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = _stand_in(tmp_path, 'echo "Cuda compilation tools, release 12.4, V12.4.131"')
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert nvcc_version(str(old)) == (12, 4)
    assert "nvcc 12.4 is older than 12.9" in missing_tools()
    with pytest.raises(NativeBuildError, match=r"version 12\.4; sm_121a needs 12\.9 or newer"):
        cubin_path(ROOT / SOURCE, target_named("sm_121a"))


def test_a_disassembler_that_does_not_read_a_target_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Triton 3.6 brings it: of CUDA 12.8, which does not know SM121."""
    old = _stand_in(tmp_path, "echo \"'SM90','SM100','SM120'.\"", "nvdisasm")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert f"{old} does not read sm_121a" in missing_tools()
    assert "does not read" not in missing_tools(["sm_90a"])
    assert cubin_gate.main([]) == 1
    assert "not available: " in capsys.readouterr().err


def test_a_failed_compilation_names_the_command_and_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """case $1 in --version) echo "release 13.0, V13.0.88"; exit;; esac
echo 'skinny.cu(3): error: identifier "x" is undefined' >&2; exit 2"""
    _stand_in(tmp_path, body)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(NativeBuildError, match=r"(?s)-arch=sm_121a.*identifier \"x\" is undefined"):
        cubin_path(ROOT / SOURCE, target_named("sm_121a"))


def test_a_machine_without_nvcc_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernels.cuda_build.shutil.which", lambda name, path: None)
    assert "no nvcc" in missing_tools()
    with pytest.raises(NativeBuildError, match="no nvcc was found"):
        cubin_path(ROOT / SOURCE, target_named("sm_90a"))


@needs_tools
def test_compiles_once_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = tmp_path / "small.cu"
    source.write_text('extern "C" __global__ void small(float* out) { out[threadIdx.x] = 1; }\n')
    lines: list[str] = []
    first = cubin_path(source, target_named("sm_90a"), on_progress=lines.append)
    assert cubin_path(source, target_named("sm_90a"), on_progress=lines.append) == first
    assert len(lines) == 1
    assert "small.cu" in lines[0]
    source.write_text(source.read_text() + "// changed\n")
    assert cubin_path(source, target_named("sm_90a"), on_progress=lines.append) != first


def test_a_target_without_manifest_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cubin_gate.main(["--target", "sm_99"])
    assert stopped.value.code == 2
    assert "sm_90a" in capsys.readouterr().err
