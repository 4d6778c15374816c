# SPDX-License-Identifier: MIT OR Apache-2.0
"""The backends that a bench measures: the native one, the PyTorch operations, the GPU's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.commands.shared import tell
from engine.errors import RondoError
from engine.knobs import KnobSet

if TYPE_CHECKING:
    from engine.load.weights import ModelWeights
    from engine.measure.bench import BackendFactory
    from engine.model.backend import Backend
    from engine.model.config import ModelConfig


def factory_on(device: str, knobs: KnobSet) -> BackendFactory:
    """What opens a backend on a device, cpu or cuda."""
    return gpu_backend_factory(knobs) if device == "cuda" else backend_factory(knobs)


def backend_factory(knobs: KnobSet) -> BackendFactory:
    """What opens the native backend, or the PyTorch operations where the switch CPU_ISA says reference."""

    def open_backend(
        config: ModelConfig, weights: ModelWeights, *, capacity: int, threads: int
    ) -> Backend:
        if knobs.choice("CPU_ISA") == "reference":
            import torch

            from engine.model.reference import ReferenceBackend

            torch.set_num_threads(threads)
            return ReferenceBackend(config, weights, capacity=capacity, dtype=torch.bfloat16)
        from engine.model.native import NativeBackend
        from kernels.build import NativeBuildError, load_library
        from kernels.tape import Pool

        try:
            pool = Pool(load_library(knobs.choice("CPU_ISA") or None), threads)
        except (NativeBuildError, OSError) as error:
            raise RondoError(
                f"The native kernels cannot be used: {error}.",
                next_step="Measure the PyTorch operations: --knob QWEN38_CPU_ISA=reference.",
            ) from error
        return NativeBackend(config, weights, capacity=capacity, knobs=knobs, pool=pool)

    return open_backend


def require_device(device: str, knobs: KnobSet) -> None:
    """RondoError, before weights are made, for a GPU that is not there or a level the processor lacks."""
    if device == "cuda":
        _require_gpu()
    else:
        from engine.model.instructions import refuse_instructions

        refuse_instructions(knobs)


def _require_gpu() -> None:
    from engine.model import cuda_ready

    try:
        cuda_ready.require_gpu()
    except cuda_ready.GpuNotUsable as error:
        raise _refusal(error) from error


def gpu_backend_factory(knobs: KnobSet) -> BackendFactory:
    """What opens the GPU backend; its RondoError says why it cannot."""

    def open_backend(
        config: ModelConfig, weights: ModelWeights, *, capacity: int, threads: int
    ) -> Backend:
        from engine.model.choose_cuda import open_backend_on_gpu
        from engine.model.cuda_ready import GpuNotUsable

        try:
            return open_backend_on_gpu(
                config, weights, capacity=capacity, knobs=knobs, on_progress=tell
            )
        except GpuNotUsable as error:
            raise _refusal(error) from error

    return open_backend


def _refusal(error: Exception) -> RondoError:
    return RondoError(
        f"The GPU cannot compute: {error}.",
        next_step="`rondo doctor` says what is missing; --device cpu measures the processor.",
    )
