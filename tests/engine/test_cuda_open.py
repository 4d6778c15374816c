# SPDX-License-Identifier: MIT OR Apache-2.0
"""Who computes: the GPU where it proves itself, else the processor with the reason; memory is asked first."""

from __future__ import annotations

from pathlib import Path
from subprocess import CalledProcessError
from types import SimpleNamespace

import pytest
import torch
from checkpoints import MOE, make_checkpoint
from test_native import CONFIG

import engine.model.choose_cuda as choose_cuda
import engine.model.cuda_ready as cuda_ready
from engine import Engine
from engine.cli import FAILED, main
from engine.commands.doctor import _gpu
from engine.errors import MemoryShortError, RondoError, UsageError
from engine.load import checkpoint
from engine.load.synthetic import synthetic_weights
from engine.model.cuda_memory import give_back_memory
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


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (MOE, "mixture-of-experts layers run on the processor only"),
        ({"hidden_size": 72}, "hidden_size must be a multiple of 16"),
    ],
)
def test_a_model_that_no_gpu_takes_is_refused_before_its_weights_are_read(
    changes: dict, why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def read(*_: object) -> None:
        raise AssertionError("a weight was read")

    make_checkpoint(tmp_path, **changes)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(checkpoint, "TensorReader", read)
    with pytest.raises(RondoError, match=f"The GPU cannot compute.*{why}"):
        Engine.open(tmp_path, device="cuda")


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


@pytest.mark.parametrize("failing", ["build", "check", "smoke", "launcher", "kernel", "outside"])
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
        if failing == "outside":
            raise AssertionError("the product wrote outside its result")
        if failing == "kernel":
            raise pytest.importorskip("triton.errors").TritonError("out of resource: shared memory")
        return "logits are off" if failing == "smoke" else ""

    monkeypatch.setattr(cuda_ready, "smoke", played)
    reason = {
        "build": "no nvcc",
        "check": "head on sm_90a fails: 44x640",
        "smoke": "logits are off",
        "launcher": "gcc.*launcher.c.* returned non-zero exit status 1.*python3-dev",
        "kernel": "out of resource: shared memory",
        "outside": "wrote outside its result",
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


def test_in_a_shared_memory_the_page_cache_counts_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the driver's free bytes are those that nobody uses at all: reading a checkpoint uses them up."""
    given_back: list[bool] = []
    monkeypatch.setattr(cuda_ready, "give_back_memory", lambda: given_back.append(True))
    monkeypatch.setattr(cuda_ready, "available_memory_bytes", lambda: 100 * GB)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 * GB, 128 * GB))
    for integrated, free in ((True, 100 * GB - (2 << 30)), (False, 3 * GB)):
        own = SimpleNamespace(is_integrated=integrated)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, own=own: own)
        memory = DeviceMemory.of(torch.device("cuda", 0))
        assert memory == DeviceMemory(free, unified=integrated)
    assert len(given_back) == 2


def test_freed_memory_goes_back_where_a_gpu_was_used_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[bool] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    give_back_memory()
    assert not emptied
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    give_back_memory()
    assert emptied == [True]

    def broken() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "empty_cache", broken)
    give_back_memory()


@pytest.mark.parametrize("device", ["auto", "cuda"])
@pytest.mark.parametrize(
    ("error", "kind", "cause"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a"),
            MemoryShortError,
            "not enough memory for this model and its context on the GPU; 2.15 GB at once",
        ),
        (RuntimeError("CUDA error: an illegal memory access"), RondoError, "illegal memory access"),
    ],
)
def test_what_fails_once_weights_are_placed_is_no_reason_to_compute_without_them(
    device: str,
    error: RuntimeError,
    kind: type[RondoError],
    cause: str,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    plenty = DeviceMemory(1000 * GB, unified=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(choose_cuda, "unsupported_shape", lambda config: "")
    monkeypatch.setattr(
        choose_cuda, "ready_library", lambda *_: SimpleNamespace(device=torch.device("cpu"))
    )
    monkeypatch.setattr(choose_cuda.DeviceMemory, "of", lambda device: plenty)
    monkeypatch.setattr(choose_cuda, "CudaBackend", fails)
    with pytest.raises(kind, match=cause) as caught:
        Engine.open(model, device=device)
    assert caught.value.kept == "Nothing stays loaded."
    assert "--device cpu" in caught.value.next_step


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
