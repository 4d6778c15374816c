# SPDX-License-Identifier: MIT OR Apache-2.0
"""Opens a model on the GPU, or says why not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.allocation import memory_short
from engine.errors import MemoryShortError, RondoError
from engine.knobs import KnobSet
from engine.load.checkpoint import Checkpoint
from engine.load.weights import ModelWeights
from engine.measure.roof import Roof
from engine.model.config import ModelConfig
from engine.model.cuda import CudaBackend
from engine.model.cuda_memory import device_name, give_back_memory
from engine.model.cuda_ready import (
    UNPROVEN,
    DeviceMemory,
    GpuNotUsable,
    PlacedMemoryShort,
    check_device_memory,
    expansion_notice,
    ready_library,
    require_gpu,
)
from engine.model.cuda_weights import unsupported_shape
from kernels.build_cache import launch_errors
from kernels.cuda_build import CudaError

_ROOF_FREE_BYTES = 6 << 30  # the probe of the roof takes 4 GiB


@dataclass(frozen=True, slots=True)
class OpenedGpu:
    """A backend on the GPU and how to describe it."""

    backend: CudaBackend
    place: str  # "NVIDIA GB10, sm_121a"
    notices: tuple[str, ...]
    roof: Roof | None


def open_gpu(
    checkpoint: Checkpoint,
    *,
    capacity: int,
    knobs: KnobSet,
    asked: bool,
    stage: Callable[[str], None],
) -> OpenedGpu | str:
    """The model on the first GPU; a sentence where it does not run there.

    The sentence is empty where there is simply no GPU. With `asked` a reason is an error instead: RondoError,
    or MemoryShortError where the model does not fit. What fails after weights were placed is one always: they
    are gone from the host then.
    """
    if not asked and not torch.cuda.is_available():
        return ""
    notice = expansion_notice(checkpoint.weights)
    try:
        backend = _open(checkpoint, capacity, knobs, stage)
    except (GpuNotUsable, MemoryShortError) as error:
        if isinstance(error, PlacedMemoryShort) or (asked and isinstance(error, MemoryShortError)):
            raise
        cause = error.cause if isinstance(error, MemoryShortError) else f"{error}."
        if asked:
            raise _refusal(cause) from error
        return f"The GPU is not used, the processor computes: {cause}"
    name = device_name(backend.device)
    place = f"{name}, {backend.library.target.name}" if backend.library else name
    notices = (UNPROVEN, notice) if notice else (UNPROVEN,)
    return OpenedGpu(backend, place, notices, _roof(backend, stage))


def refuse_gpu(config: ModelConfig) -> None:
    """Raise RondoError where no GPU is there, or none computes a model of this shape."""
    try:
        require_gpu()
        _require_model(config)
    except GpuNotUsable as error:
        raise _refusal(f"{error}.") from error


def open_backend_on_gpu(
    config: ModelConfig,
    weights: ModelWeights,
    *,
    capacity: int,
    knobs: KnobSet,
    tokens: int | None = None,
    on_layer: Callable[[int], None] = lambda index: None,
    on_progress: Callable[[str], None] | None = None,
) -> CudaBackend:
    """Weights on the first GPU behind the kernels.

    Raises GpuNotUsable or MemoryShortError, with the stored weights as they were, and PlacedMemoryShort or
    another RondoError where the GPU fails later.
    """
    _require_model(config)
    library = ready_library(on_progress)
    check_device_memory(config, weights, capacity, DeviceMemory.of(library.device))
    from engine.model.cuda_kernels import KernelOps

    try:
        backend = CudaBackend(
            config,
            weights,
            capacity=capacity,
            knobs=knobs,
            device=library.device,
            library=library,
            tokens=tokens,
            on_layer=on_layer,
            make_ops=KernelOps,
        )
        backend.record_rounds(knobs.number("MTP_DEPTH"), 1 + knobs.number("MTP_TREE"))
    except (RuntimeError, ValueError, CudaError, *launch_errors()) as error:
        short = memory_short(error, "this model and its context on the GPU")
        if short is not None:
            raise PlacedMemoryShort(
                short.cause,
                kept="Nothing stays loaded.",
                next_step="Close other programs that use the GPU, ask for a shorter context, or use --device "
                "cpu.",
            ) from error
        raise RondoError(
            f"The GPU failed while the model was placed on it: {error}.",
            kept="Nothing stays loaded.",
            next_step="Use --device cpu; `bash ops/gpu_check.sh` finds what fails.",
        ) from error
    return backend


def _require_model(config: ModelConfig) -> None:
    if config.experts:
        raise GpuNotUsable("mixture-of-experts layers run on the processor only so far")
    why_not = unsupported_shape(config)
    if why_not:
        raise GpuNotUsable(f"the GPU kernels do not take this shape ({why_not})")


def _refusal(cause: str) -> RondoError:
    return RondoError(
        f"The GPU cannot compute: {cause}",
        next_step="`rondo doctor` says what is missing; --device cpu computes on the processor.",
    )


def _open(
    checkpoint: Checkpoint, capacity: int, knobs: KnobSet, stage: Callable[[str], None]
) -> CudaBackend:
    config, weights = checkpoint.config, checkpoint.weights
    return open_backend_on_gpu(
        config,
        weights,
        capacity=capacity,
        knobs=knobs,
        tokens=checkpoint.tokenizer.vocab_size,
        on_layer=lambda index: stage(f"placing layer {index + 1} of {config.layers}"),
        on_progress=stage,
    )


def _roof(backend: CudaBackend, stage: Callable[[str], None]) -> Roof | None:
    """The read rate of the device's memory, where there is room to measure it."""
    library = backend.library
    if library is None or DeviceMemory.of(backend.device).free_bytes < _ROOF_FREE_BYTES:
        return None
    from kernels.cuda_bench import read_roof_gbps

    stage("timing the memory")
    rate = read_roof_gbps(library)
    give_back_memory()
    return Roof(rate, "memory")
