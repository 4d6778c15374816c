# SPDX-License-Identifier: MIT OR Apache-2.0
"""Which kernels run a loaded model, and why; the card says so."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from engine.allocation import allocating
from engine.api import LoadProgress, ModelCard
from engine.errors import Cancelled, MemoryShortError, RondoError, UsageError
from engine.hardware import available_cores
from engine.knobs import KnobSet
from engine.load.checkpoint import Checkpoint
from engine.load.memory import FLOOR_BYTES, available_memory_bytes
from engine.load.reader import KEPT
from engine.measure.roof import Roof, roof_of_rounds
from engine.model.attach_block import attach_block
from engine.model.backend import Backend
from engine.model.choose_cuda import open_gpu, refuse_gpu
from engine.model.config import ModelConfig
from engine.model.dense import unpacked_bytes
from engine.model.instructions import ISA_NAMES, refuse_instructions
from engine.model.native import NativeBackend
from engine.model.native_moe import unsupported_experts
from engine.model.native_weights import unsupported_shape
from engine.model.reference import ReferenceBackend
from engine.model.threads import choose_threads, physical_cores
from engine.numbers import grouped
from engine.spec.choose_drafter import speculation_words
from kernels.build import NativeBuildError, NativeLibrary, load_library
from kernels.tape import Pool


@dataclass(frozen=True, slots=True)
class OpenedBackend:
    """A backend and how to describe it."""

    backend: Backend
    arithmetic: str  # of the kernels, as in "AVX2"
    notices: tuple[str, ...]
    roof: Roof | None
    threads: int
    place: str = ""  # of a backend that is not on the processor

    def card(self, checkpoint: Checkpoint, *, knobs: KnobSet, load_s: float) -> ModelCard:
        """The card of the model that runs on this backend."""
        config = checkpoint.config
        native = isinstance(self.backend, NativeBackend)
        threads = self.backend.pool.threads if native else self.threads
        return ModelCard(
            name=checkpoint.name,
            path=str(checkpoint.path),
            is_demo=checkpoint.is_demo,
            weight_format=checkpoint.weight_format,
            parameters=config.parameters,
            layers=config.layers,
            context_tokens=self.backend.capacity,
            vocab_size=config.vocab_size,
            weight_bytes=checkpoint.weight_bytes,  # packing has emptied the records by now
            state_bytes=config.state_bytes,
            backend=self.backend.name,
            device=self.place or f"CPU, {_threads(threads)}, {self.arithmetic}",
            speculation=speculation_words(knobs, self.backend),
            thinks=checkpoint.template.has_thinking_switch,
            thinks_by_default=checkpoint.template.thinks_by_default,
            roof_gbps=self.roof.read_gbps if self.roof else None,
            roof_place=self.roof.place if self.roof else "memory",
            load_s=load_s,
            threads=threads,
            experts=_experts(config),
            notices=(*checkpoint.notices, *self.notices),
        )


def scaled_kv(knobs: KnobSet, *, device: str, float32: bool) -> bool:
    """Whether keys and values will be held in e4m3: the native kernels alone do that."""
    wanted = knobs.choice("CPU_ISA")
    gpu = device == "cuda" or (device == "auto" and not wanted and torch.cuda.is_available())
    return knobs.flag("KV_FP8") and not (float32 or gpu or wanted == "reference")


def refuse_device(
    config: ModelConfig, *, device: str, knobs: KnobSet, float32: bool = False
) -> None:
    """Raise RondoError where it is known before a weight is read that the model cannot run on `device`."""
    if device == "cuda" and float32:
        raise UsageError("float32 is computed on the processor.", next_step="Use --device cpu.")
    if device == "cuda":
        refuse_gpu(config)
    elif not float32:
        refuse_instructions(knobs)


def open_backend(
    checkpoint: Checkpoint,
    *,
    capacity: int,
    knobs: KnobSet,
    device: str,
    threads: int | None,
    float32: bool,
    on_progress: Callable[[LoadProgress], None] | None = None,
    cancel: threading.Event | None = None,
) -> OpenedBackend:
    """The fastest backend this machine and these switches allow.

    Raises MemoryShortError, among others, with the last step that was begun; nothing stays allocated then.
    """

    def attach(backend: Backend) -> tuple[str, ...]:
        return attach_block(backend, checkpoint, knobs, on_progress=on_progress, cancel=cancel)

    last = "the weights are read"

    def stage(text: str) -> None:
        nonlocal last
        if cancel and cancel.is_set():
            raise Cancelled("Opening the model was cancelled.")
        last = text
        if on_progress:
            on_progress(LoadProgress(text, 0, 0))

    def what() -> str:
        return f"{checkpoint.name} and a context of {grouped(capacity)} tokens (last step: {last})"

    with allocating(what, kept=KEPT):
        return _open(checkpoint, capacity, threads, knobs, device, attach, stage, float32=float32)


def _open(
    checkpoint: Checkpoint,
    capacity: int,
    threads: int | None,
    knobs: KnobSet,
    device: str,
    attach: Callable[[Backend], tuple[str, ...]],
    stage: Callable[[str], None],
    *,
    float32: bool,
) -> OpenedBackend:
    wanted = knobs.choice("CPU_ISA")
    why_no_gpu = ""
    # A switch that names the processor's instructions asks for the processor.
    if device == "cuda" or (device == "auto" and not wanted and not float32):
        asked = device == "cuda"
        gpu = open_gpu(checkpoint, capacity=capacity, knobs=knobs, asked=asked, stage=stage)
        if not isinstance(gpu, str):
            notices = (*gpu.notices, *attach(gpu.backend))
            return OpenedBackend(gpu.backend, "", notices, gpu.roof, 1, gpu.place)
        why_no_gpu = gpu
    opened = _on_processor(checkpoint, capacity, threads, knobs, attach, stage, float32=float32)
    return replace(opened, notices=(why_no_gpu, *opened.notices)) if why_no_gpu else opened


def _on_processor(
    checkpoint: Checkpoint,
    capacity: int,
    threads: int | None,
    knobs: KnobSet,
    attach: Callable[[Backend], tuple[str, ...]],
    stage: Callable[[str], None],
    *,
    float32: bool,
) -> OpenedBackend:
    wanted = knobs.choice("CPU_ISA")
    if float32 or wanted == "reference":
        dtype = torch.float32 if float32 else torch.bfloat16
        return _reference(checkpoint, capacity, threads, dtype, attach, ())
    config = checkpoint.config
    why_not = unsupported_shape(config) or unsupported_experts(config, checkpoint.weights)
    if why_not:
        notice = f"The native kernels do not take this shape ({why_not}); PyTorch operations run."
        return _reference(checkpoint, capacity, threads, torch.bfloat16, attach, (notice,))
    try:
        library = load_library(wanted or None, on_progress=stage)
    except (NativeBuildError, OSError) as error:  # the latter: a cache folder or disk that refuses
        notice = f"The native kernels are not built, PyTorch operations run instead: {error}"
        return _reference(checkpoint, capacity, threads, torch.bfloat16, attach, (notice,))
    return _native(checkpoint, capacity, threads, knobs, library, attach, stage)


def _native(
    checkpoint: Checkpoint,
    capacity: int,
    threads: int | None,
    knobs: KnobSet,
    library: NativeLibrary,
    attach: Callable[[Backend], tuple[str, ...]],
    stage: Callable[[str], None],
) -> OpenedBackend:
    layers = checkpoint.config.layers
    threads = knobs.number("CPU_THREADS") or threads
    # For packing: the model before may have left fewer.
    torch.set_num_threads(threads or physical_cores())
    with contextlib.ExitStack() as undo:
        pool = undo.enter_context(_pool(library, threads or 1))
        backend = NativeBackend(
            checkpoint.config,
            checkpoint.weights,
            capacity=capacity,
            knobs=knobs,
            pool=pool,
            tokens=checkpoint.tokenizer.vocab_size,
            on_layer=lambda index: stage(f"packing layer {index + 1} of {layers}"),
        )
        undo.callback(backend.close)
        notices = attach(backend)
        stage("timing a round")
        count = threads or choose_threads(backend, library)
        torch.set_num_threads(count)  # of the steps that a switch hands to PyTorch
        stage("recording rounds")
        backend.record_rounds(knobs.number("MTP_DEPTH"), 1 + knobs.number("MTP_TREE"))
        cores = available_cores()
        roof = None
        if count <= cores:
            roof = roof_of_rounds(backend.pool, backend.round_bytes(1, 0))
        else:
            notices += (
                f"{count} threads share {_cores(cores)}: rounds wait, and no read rate was measured.",
            )
        undo.pop_all()
    return OpenedBackend(backend, ISA_NAMES[library.isa], notices, roof, count)


def _experts(config: ModelConfig) -> str:
    chosen = grouped(config.experts_per_token)
    return f"{chosen} of {grouped(config.experts)} experts a token" if config.experts else ""


def _pool(library: NativeLibrary, threads: int) -> Pool:
    try:
        return Pool(library, threads)
    except NativeBuildError as error:
        raise RondoError(f"{error}.", next_step="Ask for fewer threads.") from error


def _reference(
    checkpoint: Checkpoint,
    capacity: int,
    threads: int | None,
    dtype: torch.dtype,
    attach: Callable[[Backend], tuple[str, ...]],
    notices: tuple[str, ...],
) -> OpenedBackend:
    threads = threads or physical_cores()
    need, free = unpacked_bytes(checkpoint.weights, dtype), available_memory_bytes()
    if need + FLOOR_BYTES > free:
        raise MemoryShortError(
            f"The PyTorch operations unpack these weights into {need / 1e9:.2f} GB more, and "
            f"{free / 1e9:.2f} GB are free. {' '.join(notices)}".strip(),
            kept="Nothing was unpacked.",
            next_step="Let the native kernels run (`rondo doctor` says what they need), or choose a smaller "
            "model.",
        )
    torch.set_num_threads(threads)
    backend = ReferenceBackend(
        checkpoint.config,
        checkpoint.weights,
        capacity=capacity,
        dtype=dtype,
        tokens=checkpoint.tokenizer.vocab_size,
    )
    kind = "float32" if dtype == torch.float32 else "bfloat16"
    return OpenedBackend(backend, f"PyTorch {kind}", notices + attach(backend), None, threads)


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"


def _threads(count: int) -> str:
    return f"{count} thread" if count == 1 else f"{count} threads"
