# SPDX-License-Identifier: MIT OR Apache-2.0
"""The commands that reach the GPU kernels, on a machine without one and with a stand-in."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import torch

from engine.cli import FAILED, GATE, OK, USAGE, main
from engine.commands.doctor import _gpu, _gpu_kernels
from kernels.checks import expect
from kernels.cuda_build import target_named


@dataclass
class _Library:
    target = target_named("sm_121a")

    def __init__(self, **_: object) -> None:
        pass


@pytest.mark.parametrize(("holds", "code"), [(True, OK), (False, GATE)])
def test_check_runs_the_gpu_checks(
    holds: bool, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kernels.cuda_build.CudaLibrary", _Library)
    monkeypatch.setattr("kernels.cuda_registry.CUDA_CHECKS", {"head": "kernels.head.cuda_check"})
    result = expect("head", "sm_121a", holds, "off by one")
    monkeypatch.setattr("kernels.head.cuda_check.check", lambda library, *, seed: [result])
    assert main(["check", "--device", "cuda", "--json"]) == code
    values = json.loads(capsys.readouterr().out)
    assert [check["kernel"] for check in values["checks"]] == ["head"]
    assert values["failed"] == (0 if holds else 1)


def test_check_names_what_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.cuda_build.CudaLibrary", _Library)
    assert main(["check", "--device", "cuda", "--only", "no such kernel"]) == USAGE
    assert main(["check", "--device", "cuda", "--isa", "portable"]) == USAGE


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_the_check_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--device", "cuda"]) == FAILED
    assert "PyTorch sees no GPU number 0" in capsys.readouterr().err
    (finding,) = _gpu()
    assert finding.status == "note"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("suite", [["policies"], ["verify", "--write-tables"], ["verify"]])
def test_without_a_gpu_no_bench_measures_the_processor_instead(
    suite: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--device", "cuda", "--suite", *suite]) == FAILED
    assert "no GPU" in capsys.readouterr().err


def test_the_doctor_names_the_target_and_an_old_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (12, 1))
    monkeypatch.setattr("kernels.cuda_build.find_nvcc", lambda: "nvcc")
    monkeypatch.setattr("kernels.cuda_build.nvcc_version", lambda nvcc: (13, 0))
    assert _gpu_kernels().found == "for sm_121a, with nvcc 13.0"
    monkeypatch.setattr("kernels.cuda_build.nvcc_version", lambda nvcc: (12, 8))
    assert "sm_121a needs nvcc 12.9 or newer" in _gpu_kernels().advice
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    assert "7.0" in _gpu_kernels().advice
