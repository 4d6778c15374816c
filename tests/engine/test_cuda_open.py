# SPDX-License-Identifier: MIT OR Apache-2.0
"""Who computes: the GPU where it proves itself, else the processor with the reason; memory is asked first."""

from __future__ import annotations

from pathlib import Path
from subprocess import CalledProcessError

import pytest
import torch
from checkpoints import make_checkpoint
from test_native import CONFIG

import engine.model.choose_cuda as choose_cuda
import engine.model.cuda_ready as cuda_ready
from engine import Engine
from engine.cli import FAILED, main
from engine.commands.doctor import _gpu
from engine.errors import MemoryShortError, RondoError, UsageError
from engine.load.synthetic import synthetic_weights
from engine.model.cuda_ready import (
    DeviceMemory,
    GpuNotUsable,
    check_device_memory,
    model_bytes,
    ready_library,
)
from engine.model.cuda_smoke import smoke
from kernels.build_cache import NativeBuildError
from kernels.checks import expect

GB = 10**9


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_checkpoint(folder, max_position_embeddings=1024)
    return folder


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_asked_for_and_is_not_there_is_an_error(model: Path) -> None:
    with pytest.raises(RondoError, match="PyTorch sees no GPU") as caught:
        Engine.open(model, device="cuda")
    assert "--device cpu" in caught.value.next_step
    with pytest.raises(UsageError, match="float32"):
        Engine.open(model, device="cuda", compute="float32")
    assert main(["bench", "--device", "cuda", "--shape", "demo", "--no-roof"]) == FAILED


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_auto_without_a_gpu_says_nothing(model: Path) -> None:
    with Engine.open(model, threads=1) as engine:
        assert engine.card.backend == "native"
        assert not [notice for notice in engine.card.notices if "GPU" in notice]


def test_auto_with_a_gpu_that_fails_its_checks_computes_on_the_processor(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise GpuNotUsable("a captured graph differs from the same pass issued eagerly")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(choose_cuda, "unsupported_shape", lambda config: "")
    monkeypatch.setattr(choose_cuda, "ready_library", fails)
    with Engine.open(model, threads=1) as engine:
        assert engine.card.backend == "native"
        (notice,) = [each for each in engine.card.notices if "GPU" in each]
    assert "a captured graph differs" in notice
    assert "the processor computes" in notice
    with pytest.raises(RondoError, match="a captured graph differs"):
        Engine.open(model, device="cuda")
    with Engine.open(model, threads=1, knobs={"QWEN38_CPU_ISA": "reference"}) as engine:
        assert not [each for each in engine.card.notices if "GPU" in each]


@pytest.mark.parametrize("failing", ["build", "check", "smoke", "launcher", "kernel"])
def test_the_reason_why_a_gpu_is_not_ready_is_named(
    failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Library:
        device = torch.device("cpu")

        def __init__(self, **_: object) -> None:
            if failing == "build":
                raise NativeBuildError("no nvcc was found")

    bad = expect("head", "sm_90a", failing != "check", "44x640: off by one")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda_ready, "CudaLibrary", Library)
    monkeypatch.setattr(cuda_ready, "run_short_checks", lambda library: [bad])

    def played(*_: object) -> str:
        if failing == "launcher":  # without Python's headers
            raise CalledProcessError(1, ["gcc", "launcher.c"])
        if failing == "kernel":
            raise pytest.importorskip("triton.errors").TritonError("out of resource: shared memory")
        return "logits are off" if failing == "smoke" else ""

    monkeypatch.setattr(cuda_ready, "smoke", played)
    reason = {
        "build": "no nvcc",
        "check": "head on sm_90a fails: 44x640",
        "smoke": "logits are off",
        "launcher": "gcc.*launcher.c.* returned non-zero exit status 1",
        "kernel": "out of resource: shared memory",
    }
    with pytest.raises(GpuNotUsable, match=reason[failing]):
        ready_library()


def test_a_model_that_does_not_fit_is_refused_with_the_numbers() -> None:
    weights = synthetic_weights(CONFIG, "nvfp4", seed=5)
    need = model_bytes(CONFIG, weights, 320)
    assert weights.nbytes < need
    check_device_memory(CONFIG, weights, 320, DeviceMemory(need + 2 * GB, unified=False))
    with pytest.raises(MemoryShortError, match="more on the GPU") as caught:
        check_device_memory(CONFIG, weights, 320, DeviceMemory(need, unified=False))
    assert caught.value.kept == "Nothing was placed."
    # In a shared memory the weights are there already.
    enough = DeviceMemory(need - weights.nbytes + (1 << 30) + (1 << 20), unified=True)
    check_device_memory(CONFIG, weights, 320, enough)


def test_the_small_model_tells_right_from_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.model import cuda_plain

    assert smoke(None, torch.device("cpu")) == ""
    kept = cuda_plain.gated_norm
    monkeypatch.setattr(
        cuda_plain, "gated_norm", lambda o, z, weight, eps, out: kept(o, z, 2 * weight, eps, out)
    )
    assert "deviations" in smoke(None, torch.device("cpu"))


def test_the_doctor_says_that_the_gpu_is_unproven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "NVIDIA GB10")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (12, 1))
    finding = _gpu()[0]
    assert finding.found == "NVIDIA GB10"
    assert "gpu_check.sh" in finding.advice
