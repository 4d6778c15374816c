# SPDX-License-Identifier: MIT OR Apache-2.0
"""The forward over calibration text shows every linear the inputs that it has in the readable backend."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import MOE, make_checkpoint
from torch import Tensor

from engine.errors import NumericsError
from engine.load.checkpoint import read_checkpoint
from engine.load.tensor_table import canonical_name
from engine.model import moe_reference, reference
from engine.model.calibration import CalibrationForward
from engine.model.config import ModelConfig
from engine.model.reference import ReferenceBackend
from kernels.bf16_linear.reference import linear

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = [list(range(20, 90)), [5, 300], list(range(400, 405))]  # of 70, 2 and 5 tokens
LENGTHS = [len(text) for text in TEXTS]


def stored(folder: Path, **changes: Any) -> dict[str, Tensor]:
    """The tensors of a new model folder by canonical name, float32."""
    tensors = make_checkpoint(folder, **changes)
    return {canonical_name(name) or "": tensor.float() for name, tensor in tensors.items()}


def forward_of(
    config: ModelConfig, tensors: dict[str, Tensor], settle: Any, texts: Sequence[Sequence[int]]
) -> CalibrationForward:
    rows = torch.tensor([token for text in texts for token in text])
    embedded = tensors["embed_tokens.weight"][rows]
    return CalibrationForward(config, tensors, embedded, [len(text) for text in texts], settle)


def fingerprint(weight: Tensor) -> bytes:
    return weight.float().contiguous().numpy().tobytes()


@pytest.mark.parametrize("changes", [{}, MOE], ids=["dense", "experts"])
def test_every_linear_reads_what_it_reads_in_the_backend(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = stored(tmp_path, **changes)
    checkpoint = read_checkpoint(tmp_path)
    config = checkpoint.config
    wanted: dict[bytes, list[Tensor]] = defaultdict(list)

    def watched(x: Tensor, weight: Tensor) -> Tensor:
        wanted[fingerprint(weight)].append(x)
        return linear(x, weight)

    monkeypatch.setattr(reference, "linear", watched)
    monkeypatch.setattr(moe_reference, "linear", watched)
    backend = ReferenceBackend(config, checkpoint.weights, capacity=100, dtype=torch.float32)
    for text in TEXTS:
        backend.reset(speculate=True)
        backend.all_logits(text)

    seen: dict[bytes, tuple[str, Tensor]] = {}

    def settle(modules: Sequence[str], x: Tensor) -> list[Tensor]:
        weights = [tensors[f"{module}.weight"] for module in modules]
        for module, weight in zip(modules, weights, strict=True):
            assert fingerprint(weight) not in seen, module
            seen[fingerprint(weight)] = module, x
        return weights

    forward = forward_of(config, tensors, settle, TEXTS)
    for index in range(config.layers):
        forward.layer(index)
    forward.mtp()
    linears = {name.removesuffix(".weight") for name, t in tensors.items() if t.dim() == 2}
    assert {module for module, _ in seen.values()} == linears - {"embed_tokens", "lm_head"}
    read = {key: (module, x) for key, (module, x) in seen.items() if len(x)}
    assert wanted.keys() == read.keys()
    for key, (module, x) in read.items():
        rows = torch.cat(wanted[key])
        assert x.shape == rows.shape, module
        assert torch.allclose(x, rows, atol=2e-5, rtol=1e-4), module


def test_a_settled_weight_is_what_the_following_linears_see(tmp_path: Path) -> None:
    """Were a layer's own linears not yet quantised for each other, halving one would not show in it."""
    tensors = stored(tmp_path)
    config = read_checkpoint(tmp_path).config
    inputs: dict[str, Tensor] = {}

    def settle(modules: Sequence[str], x: Tensor) -> list[Tensor]:
        inputs.update(dict.fromkeys(modules, x))
        half = {"layers.0.mlp.up_proj": 0.5}
        return [tensors[f"{module}.weight"] * half.get(module, 1.0) for module in modules]

    forward_of(config, tensors, settle, TEXTS).layer(0)
    x = inputs["layers.0.mlp.gate_proj"]
    gate, up = (x @ tensors[f"layers.0.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    silu = torch.nn.functional.silu(gate)
    assert torch.allclose(inputs["layers.0.mlp.down_proj"], 0.5 * silu * up, atol=1e-5)


def test_numbers_that_are_not_finite_are_told_with_their_linear(tmp_path: Path) -> None:
    tensors = stored(tmp_path)
    config = read_checkpoint(tmp_path).config
    tensors["layers.0.mlp.up_proj.weight"] *= 1e38
    tensors["layers.0.mlp.gate_proj.weight"] *= 1e38

    def settle(modules: Sequence[str], x: Tensor) -> list[Tensor]:
        return [tensors[f"{module}.weight"] for module in modules]

    with pytest.raises(NumericsError, match=r"inputs of layers\.0\.mlp\.down_proj .* NaN"):
        forward_of(config, tensors, settle, TEXTS).layer(0)
