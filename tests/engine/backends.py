# SPDX-License-Identifier: MIT OR Apache-2.0
"""The backends under test, what each promises, and the random models they run."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from oracle import Case, make_oracle, save_folder
from torch import Tensor

from engine.knobs import KnobSet
from engine.load.checkpoint import read_checkpoint
from engine.load.stored import Dense, Nvfp4
from engine.load.weights import ModelWeights
from engine.model.backend import Backend
from engine.model.config import ModelConfig
from engine.model.dense import in_dtype
from engine.model.native import NativeBackend
from engine.model.reference import ReferenceBackend
from kernels.build import load_library
from kernels.nvfp4_linear.quantise import quantise
from kernels.tape import Pool

SEED = 7
CONTEXT_TOKENS = 512


@dataclass(frozen=True)
class Loaded:
    """A saved random model: the oracle, the folder as this engine reads it, the MTP tensors."""

    case: Case
    folder: Path
    oracle: torch.nn.Module
    config: ModelConfig
    weights: ModelWeights  # in float32 where the folder has float32
    mtp: dict[str, Tensor]


def load_case(case: Case, folder: Path) -> Loaded:
    """Draw a case, save it to the folder and read it back."""
    model = make_oracle(case, SEED)
    mtp = save_folder(case, model, SEED, folder)
    read = read_checkpoint(folder, context_tokens=CONTEXT_TOKENS, keep_float32=True)
    return Loaded(case, folder, model, read.config, read.weights, mtp)


@dataclass(frozen=True)
class BackendKind:
    """A backend to test and what it promises.

    `tolerance` bounds the difference, relative to the largest logit, between two ways to split a prompt; 0
    promises equal bits. Rows of a verify pass promise equal bits always. `make` leaves the weights usable.
    `snapshot` copies everything that is committed, by name, and changes nothing: "length"; "state N" and
    "tail N" of delta layers; "keys N" and "values N" of attention layers; "mtp keys" and "mtp values".
    """

    name: str
    tolerance: float
    make: Callable[[ModelConfig, ModelWeights, int], Backend]
    snapshot: Callable[[Backend], dict[str, Tensor]]

    def equal(self, got: Tensor, wanted: Tensor) -> bool:
        """Whether two results of differently split prompts agree as promised."""
        if self.tolerance == 0:
            return torch.equal(got, wanted)
        return bool((got - wanted).abs().max() <= self.tolerance * wanted.abs().max())


def _reference(dtype: torch.dtype) -> Callable[[ModelConfig, ModelWeights, int], Backend]:
    def make(config: ModelConfig, weights: ModelWeights, capacity: int) -> Backend:
        return ReferenceBackend(config, weights, capacity=capacity, dtype=dtype)

    return make


def _reference_snapshot(backend: Backend) -> dict[str, Tensor]:
    assert isinstance(backend, ReferenceBackend)
    parts = {"length": torch.tensor(backend.length)}
    for layer, recurrent in backend._recurrent.items():
        parts[f"state {layer}"] = recurrent.state
        parts[f"tail {layer}"] = recurrent.tail
    for layer, cache in backend._kv.items():
        parts[f"keys {layer}"] = cache.keys[: backend.length]
        parts[f"values {layer}"] = cache.values[: backend.length]
    pairs = backend._mtp_kv.length
    parts["mtp keys"] = backend._mtp_kv.keys[:pairs]
    parts["mtp values"] = backend._mtp_kv.values[:pairs]
    return {name: part.clone() for name, part in parts.items()}


def _in_nvfp4(record: Any) -> Any:
    """The same record of `in_dtype` with every linear in NVFP4."""
    if isinstance(record, Dense):
        return Nvfp4(*quantise(record.weight.float()))
    if isinstance(record, tuple):
        return tuple(map(_in_nvfp4, record))
    if not is_dataclass(record):
        return record
    parts = {field.name: _in_nvfp4(getattr(record, field.name)) for field in fields(record)}
    return replace(record, **parts)


def _native(
    *, nvfp4: bool = False, **environ: str
) -> Callable[[ModelConfig, ModelWeights, int], Backend]:
    def make(config: ModelConfig, weights: ModelWeights, capacity: int) -> Backend:
        # Packing frees what it is given, and the kernels read bf16.
        own = copy.deepcopy(in_dtype(weights, torch.bfloat16))
        own = _in_nvfp4(own) if nvfp4 else own
        knobs = KnobSet.resolve(environ=environ)
        pool = Pool(load_library(), 1)
        return NativeBackend(config, own, capacity=capacity, knobs=knobs, pool=pool)

    return make


def _native_snapshot(backend: Backend) -> dict[str, Tensor]:
    assert isinstance(backend, NativeBackend)
    return backend.committed_state()


KINDS = (
    BackendKind("reference float32", 1e-5, _reference(torch.float32), _reference_snapshot),
    BackendKind("reference bfloat16", 5e-2, _reference(torch.bfloat16), _reference_snapshot),
    BackendKind("native e4m3 cache", 0, _native(QWEN38_KV_FP8="1"), _native_snapshot),
    BackendKind(
        "native 8-bit inputs", 0, _native(nvfp4=True, QWEN38_NVFP4_INT8="1"), _native_snapshot
    ),
    BackendKind("native", 0, _native(), _native_snapshot),
)
