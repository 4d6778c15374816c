# SPDX-License-Identifier: MIT OR Apache-2.0
"""Loading and launching through the CUDA driver, with a stand-in for the driver."""

from __future__ import annotations

import ctypes
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from kernels import cuda_build
from kernels.build_cache import NativeBuildError, produce
from kernels.cuda_build import CudaError, CudaLibrary
from kernels.nvfp4_linear.check import random_weight
from kernels.nvfp4_linear.cuda import SOURCE, linear_skinny, place_nvfp4
from kernels.nvfp4_linear.tiles import SkinnyTile

DRIVER = Path(__file__).parent / "fixtures" / "driver.cpp"
STREAM = 0x57E3A


@dataclass(frozen=True)
class _Stream:
    cuda_stream: int = STREAM


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL:
    """A driver of its own, and a PyTorch that believes in a GPU."""
    if not shutil.which("g++"):
        pytest.skip("the stand-in needs g++")
    target = tmp_path / "libcuda.so"
    produce(["g++", "-shared", "-fPIC", str(DRIVER)], target)
    loaded = ctypes.CDLL(str(target))
    loaded.last_launch.restype = ctypes.c_char_p
    cubin = tmp_path / "image.cubin"
    cubin.write_bytes(b"\x7fELF\0\0rest")
    monkeypatch.setattr(cuda_build, "_driver", lambda: loaded)
    monkeypatch.setattr(cuda_build, "cubin_path", lambda source, target, on_progress: cubin)
    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "get_device_capability": lambda device: (12, 1),
        "init": lambda: None,
        "current_stream": lambda device: _Stream(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return loaded


def test_a_product_reaches_the_driver_as_the_kernel_declares_it(driver: ctypes.CDLL) -> None:
    library = CudaLibrary()
    assert library.target.name == "sm_121a"
    library.device = torch.device("cpu")  # where this test's tensors are
    weight = place_nvfp4([random_weight(44, 256, 1)], "cpu")
    x = torch.zeros(3, 264).bfloat16()[:, :256]
    out = torch.zeros(3, 44).bfloat16()
    for _ in range(2):
        linear_skinny(library, weight, x, out, tile=SkinnyTile(2, 4, 1, 1))
    pointers = [out, x, weight.codes, weight.scales, weight.scale_2]
    assert driver.last_launch().decode() == " ".join(
        [
            "rondo_nvfp4_skinny_t2_r8_a1 3.1.1 128.1.1",
            str(4 * 16 * 24 * 4),
            f"{STREAM:x}",
            *(str(tensor.data_ptr()) for tensor in pointers),
            "3 44 256 264 44 1",
        ]
    )
    assert driver.module_count() == 1  # loaded once


def test_another_thread_gets_the_context(driver: ctypes.CDLL) -> None:
    library = CudaLibrary()
    arguments = [ctypes.c_void_p(1)] * 5 + [ctypes.c_int32(2)] * 6
    driver.forget_context()
    function = library.function(SOURCE, "any")  # loads the module
    driver.forget_context()
    library.launch(function, grid=1, threads=32, shared_bytes=0, arguments=arguments)
    assert driver.last_launch().startswith(b"any 1.1.1 32.1.1 0")


def test_what_the_driver_refuses_is_named(driver: ctypes.CDLL, tmp_path: Path) -> None:
    library = CudaLibrary()
    with pytest.raises(CudaError, match="cuModuleGetFunction failed on cuda:0: error 500, as told"):
        library.function(SOURCE, "missing")
    function = library.function(SOURCE, "any")
    ctypes.c_int.in_dll(driver, "fail_launch_with").value = 701
    with pytest.raises(CudaError, match=r"cuLaunchKernel failed .* error 701"):
        library.launch(function, grid=1, threads=32, shared_bytes=0, arguments=[])
    for grid, threads, shared, message in (
        (0, 32, 0, "0 blocks"),
        (1, 1024, 0, "1024 threads"),
        (1, 32, 1 << 20, "shared memory"),
    ):
        with pytest.raises(ValueError, match=message):
            library.launch(function, grid=grid, threads=threads, shared_bytes=shared, arguments=[])
    (tmp_path / "image.cubin").write_bytes(b"text")
    with pytest.raises(CudaError, match="cuModuleLoadData failed"):
        library.function("nvfp4_linear/expand.cu", "any")


def test_a_gpu_without_kernels_is_named(
    driver: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (6, 1))
    with pytest.raises(NativeBuildError, match=r"compute capability 6\.1; known: 8\.0"):
        CudaLibrary()
    with pytest.raises(NativeBuildError, match="no GPU number 1"):
        CudaLibrary(1)
