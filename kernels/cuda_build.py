# SPDX-License-Identifier: MIT OR Apache-2.0
"""Compiles the CUDA kernels with nvcc on first use, caches them by content, and launches them.

A `.cu` file becomes one cubin a target. The targets are a table here, never what a tool detects: auto-detection
drops the architecture-specific `a`, and with it the FP4 conversions. The cubin is loaded with the CUDA driver
through ctypes into the context that PyTorch uses, and launched on PyTorch's current stream, so a captured graph
records it like any other kernel.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from kernels.build_cache import (
    NativeBuildError,
    cache_folder,
    digest,
    hash_text,
    locked,
    produce,
)

ROOT = Path(__file__).parent
FLAGS = (
    "--cubin",
    "-O3",
    "-std=c++17",
    "--fmad=false",
    "-lineinfo",
    "-Werror",
    "all-warnings",
    # Only device code is made: of a host compiler newer than nvcc knows just the headers are read.
    "-allow-unsupported-compiler",
)
MAX_THREADS = 512
MAX_SHARED_BYTES = 48 * 1024  # what a launch gets without asking the driver for more
_INVALID_CONTEXT = 201


@dataclass(frozen=True)
class Target:
    """A name nvcc takes and the first nvcc that takes it."""

    name: str
    nvcc: tuple[int, int]


# Compute capability -> target. Devices of one capability share a target.
TARGETS = {
    (8, 0): Target("sm_80", (12, 0)),
    (8, 6): Target("sm_86", (12, 0)),
    (8, 7): Target("sm_87", (12, 0)),
    (8, 9): Target("sm_89", (12, 0)),
    (9, 0): Target("sm_90a", (12, 0)),
    (10, 0): Target("sm_100a", (12, 8)),
    (10, 3): Target("sm_103a", (12, 9)),
    (11, 0): Target("sm_110a", (13, 0)),
    (12, 0): Target("sm_120a", (12, 8)),
    (12, 1): Target("sm_121a", (12, 9)),
}


class CudaError(RuntimeError):
    """A call of the CUDA driver failed; the text names the call and the driver's reason."""


def target_of(capability: tuple[int, int]) -> Target:
    """The target of a device.

    Raises:
        NativeBuildError: no kernel is built for such a device.
    """
    if capability not in TARGETS:
        known = ", ".join(f"{major}.{minor}" for major, minor in TARGETS)
        raise NativeBuildError(
            f"there are no kernels for compute capability {capability[0]}.{capability[1]};"
            f" known: {known}"
        )
    return TARGETS[capability]


def target_named(name: str) -> Target:
    """The target called `name`; ValueError when there is none."""
    for target in TARGETS.values():
        if target.name == name:
            return target
    known = ", ".join(target.name for target in TARGETS.values())
    raise ValueError(f"unknown target {name!r}; known: {known}")


def find_nvcc() -> str:
    """The compiler: of CUDA_HOME or CUDA_PATH, on PATH, or where CUDA installs it.

    Raises:
        NativeBuildError: there is none.
    """
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    places = [str(Path(home) / "bin") for home in homes if home]
    for place in (*places, os.environ.get("PATH", ""), "/usr/local/cuda/bin"):
        if found := shutil.which("nvcc", path=place):
            return found
    raise NativeBuildError(
        "no nvcc was found (looked in $CUDA_HOME, $CUDA_PATH, $PATH and the usual folder); install"
        " the CUDA toolkit, 12.9 or newer for sm_121a, and name its folder in CUDA_HOME"
    )


def nvcc_version(nvcc: str) -> tuple[int, int]:
    """(major, minor) of a compiler.

    Raises:
        NativeBuildError: it does not run, or does not say.
    """
    try:
        done = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise NativeBuildError(f"{nvcc} could not run: {error}") from error
    found = re.search(r"release (\d+)\.(\d+)", done.stdout)
    if done.returncode or not found:
        raise NativeBuildError(f"`{nvcc} --version` gave no version; is it NVIDIA's compiler?")
    return int(found[1]), int(found[2])


def cubin_path(
    source: Path,
    target: Target,
    *,
    on_progress: Callable[[str], None] | None = None,
) -> Path:
    """The compiled form of one `.cu` file, from the cache or built now.

    Args:
        source: a CUDA file; it may include the headers of kernels/cuda.
        on_progress: called with one line when something is compiled; never on a cache hit.

    Raises:
        NativeBuildError: no nvcc, one too old for the target, a failed compilation, or an unusable
            cache folder; the text of a failure names the command.
    """
    nvcc = find_nvcc()
    version = nvcc_version(nvcc)
    if version < target.nvcc:
        raise NativeBuildError(
            f"{nvcc} is version {version[0]}.{version[1]}; {target.name} needs"
            f" {target.nvcc[0]}.{target.nvcc[1]} or newer"
        )
    include = ROOT / "cuda"
    command = [nvcc, *FLAGS, f"-arch={target.name}", f"-I{include}"]
    folder = cache_folder("cuda")
    content = digest([source, *sorted(include.glob("*.cuh"))])
    recipe = f"{version} {' '.join(FLAGS)} {content}"
    path = folder / f"{source.stem}-{target.name}-{hash_text(recipe)}.cubin"
    if not path.exists():
        with locked(folder / "build.lock"):
            if not path.exists():
                if on_progress:
                    on_progress(f"compiling {source.parent.name}/{source.name} ({target.name})")
                produce([*command, str(source)], path)
    return path


class CudaLibrary:
    """The CUDA kernels of one device, compiled and loaded as they are asked for.

    Every method is for the thread that computes; `launch` neither synchronises nor allocates.
    """

    def __init__(
        self, device: int = 0, *, on_progress: Callable[[str], None] | None = None
    ) -> None:
        """Raises NativeBuildError: PyTorch sees no such GPU, or no kernels are made for it."""
        if not torch.cuda.is_available() or device >= torch.cuda.device_count():
            raise NativeBuildError(
                f"PyTorch sees no GPU number {device}; the CUDA kernels need one (`nvidia-smi`"
                " shows what the driver sees)"
            )
        self.device = torch.device("cuda", device)
        self.target = target_of(torch.cuda.get_device_capability(device))
        self._progress = on_progress
        self._driver = _driver()
        self._modules: dict[str, ctypes.c_void_p] = {}
        self._functions: dict[tuple[str, str], ctypes.c_void_p] = {}
        # PyTorch's own context: the first call of each thread that launches makes it current there.
        torch.cuda.init()
        self._context = ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self._call("cuCtxSetCurrent", self._context)

    def function(self, source: str, entry: str) -> ctypes.c_void_p:
        """The handle of a kernel; the first call for a source compiles and loads it.

        Args:
            source: a file below kernels/, as "nvfp4_linear/skinny.cu".
            entry: the `extern "C"` name.

        Raises:
            NativeBuildError: the source cannot be compiled.
            CudaError: the driver refuses it, or it has no such entry.
        """
        key = (source, entry)
        if key not in self._functions:
            # A thread that nothing of PyTorch has run in has no context, and a module would find none to go to.
            self._call("cuCtxSetCurrent", self._context)
            handle = ctypes.c_void_p()
            module = self._module(source)
            self._call("cuModuleGetFunction", ctypes.byref(handle), module, entry.encode())
            self._functions[key] = handle
        return self._functions[key]

    def launch(
        self,
        function: ctypes.c_void_p,
        *,
        grid: int,
        threads: int,
        shared_bytes: int,
        arguments: Sequence[ctypes._SimpleCData],
    ) -> None:
        """Put one kernel on PyTorch's current stream.

        Raises:
            ValueError: a launch that no device takes.
            CudaError: the driver refuses it.
        """
        if not 1 <= grid < 1 << 31 or not 1 <= threads <= MAX_THREADS:
            raise ValueError(f"a grid of {grid} blocks of {threads} threads cannot be launched")
        if not 0 <= shared_bytes <= MAX_SHARED_BYTES:
            raise ValueError(f"{shared_bytes} bytes of shared memory are more than a block has")
        places = (ctypes.c_void_p * len(arguments))(
            *(ctypes.addressof(argument) for argument in arguments)
        )
        stream = ctypes.c_void_p(torch.cuda.current_stream(self.device).cuda_stream)
        launch = (function, grid, 1, 1, threads, 1, 1, shared_bytes, stream, places, None)
        code = self._driver.cuLaunchKernel(*launch)
        if code == _INVALID_CONTEXT:  # this thread's first call
            self._call("cuCtxSetCurrent", self._context)
            code = self._driver.cuLaunchKernel(*launch)
        self._require("cuLaunchKernel", code)

    def _module(self, source: str) -> ctypes.c_void_p:
        if source not in self._modules:
            path = cubin_path(ROOT / source, self.target, on_progress=self._progress)
            handle = ctypes.c_void_p()
            self._call("cuModuleLoadData", ctypes.byref(handle), path.read_bytes())
            self._modules[source] = handle
        return self._modules[source]

    def _call(self, name: str, *arguments: object) -> None:
        self._require(name, getattr(self._driver, name)(*arguments))

    def _require(self, name: str, code: int) -> None:
        if code:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(code, ctypes.byref(text))
            reason = (text.value or b"no reason given").decode()
            raise CudaError(f"{name} failed on {self.device}: error {code}, {reason}")


def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise NativeBuildError(f"the CUDA driver cannot be loaded: {error}") from error
