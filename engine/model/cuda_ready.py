# SPDX-License-Identifier: MIT OR Apache-2.0
"""Whether the GPU of this machine can run a model: kernels build and hold short checks, the model fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from subprocess import SubprocessError

import torch

from engine.errors import MemoryShortError
from engine.load.memory import available_memory_bytes
from engine.load.stored import Dense, Fp8Block, Fp8Row, Nvfp4, StoredLinear
from engine.load.weights import ModelWeights, parts_of
from engine.model.config import ModelConfig
from engine.model.cuda_arena import arena_bytes
from engine.model.cuda_memory import give_back_memory
from engine.model.cuda_smoke import smoke
from engine.model.cuda_weights import device_bytes, is_expanded
from engine.numbers import grouped
from kernels.build_cache import launch_errors
from kernels.cuda_build import CudaLibrary
from kernels.cuda_registry import run_short_checks

UNPROVEN = (
    "The GPU backend has been checked on CPUs alone: nothing of it had run on a GPU when this version was "
    "made. `bash ops/gpu_check.sh` proves it on this machine."
)
_CONTEXT_BYTES = 1 << 30  # what the driver, compiled kernels, captured graphs and the library take
_LAUNCHER_HINT = (
    " (Triton's launcher needs gcc and Python's headers; Debian: apt install gcc python3-dev)"
)
_HOST_FLOOR_BYTES = 2 << 30  # left to the system where host and device share one memory


class GpuNotUsable(Exception):
    """Why the GPU does not compute, in words."""


class PlacedMemoryShort(MemoryShortError):
    """The GPU's memory ran out while a model was placed: its weights are gone from the host, too."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes free for a model, and whether the host lives in the same memory."""

    free_bytes: int
    unified: bool

    @staticmethod
    def of(device: torch.device) -> DeviceMemory:
        """What the device has now; in a shared memory what the system can give, less what the host keeps.

        There the driver counts the page cache, which a checkpoint just read has filled, as used.
        """
        give_back_memory()
        if torch.cuda.get_device_properties(device).is_integrated:
            return DeviceMemory(max(0, available_memory_bytes() - _HOST_FLOOR_BYTES), unified=True)
        return DeviceMemory(torch.cuda.mem_get_info(device)[0], unified=False)


def require_gpu() -> None:
    """Raise GpuNotUsable where PyTorch sees no GPU."""
    if not torch.cuda.is_available():
        raise GpuNotUsable("PyTorch sees no GPU (`nvidia-smi` shows what the driver sees)")


def ready_library(on_progress: Callable[[str], None] | None = None) -> CudaLibrary:
    """The compiled kernels of the first GPU, after `rondo check --device cuda` in short and a small model.

    Raises:
        GpuNotUsable: PyTorch sees no GPU, something is missing, or a check does not hold.
    """
    require_gpu()
    try:
        from engine.model.cuda_kernels import KernelOps

        library = CudaLibrary(on_progress=on_progress)
        failed = [result for result in run_short_checks(library) if not result.ok]
        wrong = "" if failed else smoke(library, library.device, KernelOps)
    except (
        OSError,
        ImportError,
        RuntimeError,
        ValueError,
        AssertionError,
        *launch_errors(),
    ) as error:
        # An AssertionError is that of a check whose kernel wrote beside its result.
        hint = _LAUNCHER_HINT if isinstance(error, SubprocessError) else ""
        raise GpuNotUsable(f"{error}{hint}") from error
    if failed:
        first = failed[0]
        raise GpuNotUsable(
            f"the check of {first.kernel} on {first.implementation} fails: {first.reason}"
        )
    if wrong:
        raise GpuNotUsable(wrong)
    return library


def model_bytes(config: ModelConfig, weights: ModelWeights, capacity: int) -> int:
    """About what a model takes on the device: weights, arena, and the room for one expanded product."""
    linears = _linears(weights)
    placed = sum(device_bytes(each) for each in linears)
    small = sum(part.nbytes for part in parts_of(weights) if isinstance(part, torch.Tensor))
    widest = max(
        (2 * each.shape[0] * each.shape[1] for each in linears if isinstance(each, Nvfp4)),
        default=0,
    )
    # Two linears of one format may be one product.
    return placed + small + 2 * widest + arena_bytes(config, capacity)


def check_device_memory(
    config: ModelConfig, weights: ModelWeights, capacity: int, memory: DeviceMemory
) -> None:
    """Raise MemoryShortError, with the numbers, when a model does not fit; nothing has been placed then.

    In a shared memory the stored weights are there already and are freed as they are placed.
    """
    need = model_bytes(config, weights, capacity) + _CONTEXT_BYTES
    if memory.unified:
        largest = max((each.nbytes for each in _linears(weights)), default=0)
        need += largest - weights.nbytes
    if need <= memory.free_bytes:
        return
    raise MemoryShortError(
        f"This model needs about {need / 1e9:.2f} GB more on the GPU with a context of "
        f"{grouped(capacity)} tokens, and {memory.free_bytes / 1e9:.2f} GB are free there.",
        kept="Nothing was placed.",
        next_step="Close other programs that use the GPU, ask for a shorter context, or use --device cpu.",
    )


def expansion_notice(weights: ModelWeights) -> str:
    """What is kept wider on the device than it is stored, and why; empty for nothing."""
    linears = _linears(weights)
    wider = [each for each in linears if is_expanded(each)]
    if not wider:
        return ""
    formats = sorted({each.format_name for each in wider})
    return (
        f"{len(wider)} of {len(linears)} matrices are kept as BF16 on the GPU: no kernel there takes this form "
        f"or shape of {' and '.join(formats)}."
    )


def _linears(weights: ModelWeights) -> list[StoredLinear]:
    return [
        part for part in parts_of(weights) if isinstance(part, Dense | Nvfp4 | Fp8Block | Fp8Row)
    ]
