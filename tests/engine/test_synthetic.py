# SPDX-License-Identifier: MIT OR Apache-2.0
"""Synthetic weights: shapes, scales and bytes of the model they stand for."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from bench_world import VOCAB, tiny_shape

from engine.load.stored import Dense, Fp8Block, Fp8Row, Nvfp4, StoredLinear
from engine.load.synthetic import synthetic_weights
from engine.load.weights import parts_of
from engine.measure.shapes import Shape, named_shape
from engine.model.byte_model import ByteModel
from engine.model.reference import ReferenceBackend

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def shape() -> Shape:
    return tiny_shape()


@pytest.mark.parametrize(
    ("weight_format", "linear", "head"),
    [("nvfp4", Nvfp4, Fp8Row), ("fp8", Fp8Block, Fp8Row), ("bf16", Dense, Dense)],
)
def test_synthetic_weights_have_the_shapes_and_scales_of_the_model(
    shape: Shape, weight_format: str, linear: type, head: type
) -> None:
    config = shape.config
    weights = synthetic_weights(config, weight_format, seed=1)
    gdn, attention = weights.layers[0], weights.layers[3]
    assert isinstance(gdn.in_qkv, linear)
    assert isinstance(weights.head, head)
    assert gdn.in_qkv.shape == (config.qkv_rows, 64)
    assert gdn.out.shape == (64, config.value_width)
    assert attention.q.shape == (config.q_rows, 64)
    assert attention.down.shape == (64, 128)
    assert weights.embed.shape == weights.head.shape == (VOCAB, 64)
    values = _values(gdn.gate)
    assert values.std() == pytest.approx(64**-0.5, rel=0.05)
    assert abs(values.mean()) < 0.1 * values.std()
    again = synthetic_weights(config, weight_format, seed=1)
    other = synthetic_weights(config, weight_format, seed=2)
    assert torch.equal(_values(again.layers[0].gate), values)
    assert not torch.equal(_values(other.layers[0].gate), values)


@pytest.mark.parametrize("weight_format", ["nvfp4", "fp8", "bf16"])
def test_synthetic_matrices_are_no_views(shape: Shape, weight_format: str) -> None:
    """Packing empties a tensor to free its memory; a view's memory would stay with what it was cut from."""
    weights = synthetic_weights(shape.config, weight_format)
    linears = [part for part in parts_of(weights) if not isinstance(part, torch.Tensor)]
    tensors = [value for each in linears for value in _tensors(each)]
    assert len(tensors) > 20
    assert not any(value._is_view() for value in (weights.embed, *tensors))


def _tensors(linear: StoredLinear) -> list[torch.Tensor]:
    held = (getattr(linear, field.name) for field in fields(linear))
    return [value for value in held if isinstance(value, torch.Tensor)]


def _values(linear: Dense | Nvfp4 | Fp8Block) -> torch.Tensor:
    if isinstance(linear, Nvfp4):
        table = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
        table = torch.cat((table, -table))
        codes = torch.stack((linear.codes & 15, linear.codes >> 4), -1).flatten(1).long()
        scales = linear.scales.float().repeat_interleave(16, 1)
        return table[codes] * scales * linear.scale_2
    return linear.dequantise().float()


def test_synthetic_logits_are_of_order_one(shape: Shape) -> None:
    weights = synthetic_weights(shape.config, "bf16")
    backend = ReferenceBackend(shape.config, weights, capacity=64, dtype=torch.bfloat16)
    logits = backend.all_logits(list(range(48)))
    assert 0.5 < float(logits.std()) < 2.0
    # The layers matter: the same token at two positions gives different rows.
    backend.reset(speculate=False)
    same = backend.all_logits([7] * 8)
    assert float((same[1:] - same[:-1]).abs().max()) > 0.05


def test_tied_and_mtp_follow_the_config(shape: Shape) -> None:
    from dataclasses import replace

    config = replace(shape.config, tied=True, mtp_layers=1)
    weights = synthetic_weights(config, "bf16")
    assert weights.head is None
    assert weights.mtp.fc.shape == (64, 128)
    assert synthetic_weights(config, "nvfp4").head is not None
    assert synthetic_weights(shape.config).mtp is None


def test_a_slice_reads_the_bytes_of_its_stored_form() -> None:
    config = named_shape("qwen3.5-0.8b:4", vocab=256).config
    model = ByteModel.of(config, synthetic_weights(config))
    # Rows of every NVFP4 linear with 1,024 columns; those with 1,024 rows count their columns instead.
    mlp = 3 * 3584
    gdn = (4096 + 16 * 128) + 2 * 16 * 128
    attention = 2 * 8 * 256 + 2 * 2 * 256 + 8 * 256
    nvfp4 = 1024 * 0.5625 * (4 * mlp + 3 * gdn + attention)
    beta_and_decay = 3 * 2 * 16 * 1024 * 2
    assert model.trunk_bytes == pytest.approx(nvfp4 + beta_and_decay, rel=0.01)
    assert model.trunk_bytes > nvfp4 + beta_and_decay
    assert model.head_bytes == 256 * 1024 + 4 * 256
