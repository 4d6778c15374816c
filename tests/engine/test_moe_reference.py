# SPDX-License-Identifier: MIT OR Apache-2.0
"""Routed experts on PyTorch operations: the rounding points of `transformers`, ties, rows, bytes of a pass."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from backends import Loaded
from oracle import MOE_STATE_CASE, token_ids
from torch import Tensor

from engine.load.stored import Dense
from engine.load.weights import ExpertWeights, LayerWeights, MoeWeights, parts_of
from engine.model.byte_model import ByteModel
from engine.model.moe_reference import mlp
from engine.model.reference import ReferenceBackend

pytestmark = pytest.mark.usefixtures("one_thread")

HIDDEN, SIZE, SHARED = 64, 32, 48


@pytest.fixture(scope="module")
def loaded(loaded_case) -> Loaded:
    return loaded_case(MOE_STATE_CASE)


def their_block(experts: int, per_token: int, dtype: torch.dtype) -> torch.nn.Module:
    """The block of `transformers` with random weights."""
    from transformers import Qwen3_5MoeTextConfig
    from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeSparseMoeBlock

    config = Qwen3_5MoeTextConfig(
        hidden_size=HIDDEN, num_experts=experts, num_experts_per_tok=per_token,
        moe_intermediate_size=SIZE, shared_expert_intermediate_size=SHARED,
    )  # fmt: skip
    config._experts_implementation = "eager"
    block = Qwen3_5MoeSparseMoeBlock(config).eval()
    torch.manual_seed(experts)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.copy_(2 * torch.randn(parameter.shape) * parameter.shape[-1] ** -0.5)
    return block.to(dtype)


def our_layer(block: torch.nn.Module, layer: LayerWeights) -> LayerWeights:
    """A layer whose MLP has the weights of their block."""
    tensors = {name: value.detach() for name, value in block.named_parameters()}
    both, down = tensors["experts.gate_up_proj"], tensors["experts.down_proj"]
    experts = tuple(
        ExpertWeights(Dense(pair[:SIZE]), Dense(pair[SIZE:]), Dense(last))
        for pair, last in zip(both, down, strict=True)
    )
    shared = {
        part: Dense(tensors[f"shared_expert.{part}_proj.weight"]) for part in ("gate", "up", "down")
    }
    router, gate = (Dense(tensors[f"{name}.weight"]) for name in ("gate", "shared_expert_gate"))
    return replace(layer, **shared, moe=MoeWeights(router, gate, experts))


@pytest.mark.parametrize(("experts", "per_token"), [(4, 1), (7, 3), (16, 8), (5, 5)])
def test_bf16_bits_are_those_of_transformers(loaded: Loaded, experts: int, per_token: int) -> None:
    block = their_block(experts, per_token, torch.bfloat16)
    layer = our_layer(block, loaded.weights.layers[0])
    x = torch.randn(24, HIDDEN).bfloat16()
    with torch.inference_mode():
        wanted = torch.cat([block(row[None])[0] for row in x.split(1)])
        assert torch.equal(mlp(layer, x, per_token), wanted)


def test_a_row_has_the_same_bits_in_any_pass(loaded: Loaded) -> None:
    layer = our_layer(their_block(7, 3, torch.bfloat16), loaded.weights.layers[0])
    x = torch.randn(9, HIDDEN).bfloat16()
    whole = mlp(layer, x, 3)
    for row in range(9):
        assert torch.equal(mlp(layer, x[row : row + 1], 3)[0], whole[row])
    order = torch.randperm(9)
    assert torch.equal(mlp(layer, x[order], 3), whole[order])


def test_a_row_of_nan_stays_alone(loaded: Loaded) -> None:
    layer = our_layer(their_block(7, 3, torch.bfloat16), loaded.weights.layers[0])
    x = torch.randn(4, HIDDEN).bfloat16()
    clean = mlp(layer, x, 3)
    x[2, 5] = torch.nan
    broken = mlp(layer, x, 3)
    assert bool(broken[2].isnan().all())
    others = [0, 1, 3]
    assert torch.equal(broken[others], clean[others])


def test_a_pass_reads_the_experts_that_its_rows_run(loaded: Loaded) -> None:
    backend = ReferenceBackend(loaded.config, loaded.weights, capacity=64, dtype=torch.bfloat16)
    model = ByteModel.of(loaded.config, loaded.weights)
    ids = token_ids(MOE_STATE_CASE, 24, seed=5)
    backend.prefill(ids[:8])
    rows = ids[8:13]
    backend.verify(rows)
    counted = len(backend._chosen)
    layers = loaded.config.layers
    assert layers * 2 < counted <= layers * 6, "five rows run more than one row's experts"
    assert backend.round_bytes(5, 0) == model.round_bytes(5, 0, 8, experts_read=counted)
    backend.verify([rows[0]] * 1)
    assert len(backend._chosen) == layers * 2
    assert backend.round_bytes(1, 0) == model.round_bytes(1, 0, 8)


def test_the_bytes_of_a_round_by_hand(loaded: Loaded) -> None:
    config, weights = loaded.config, loaded.weights
    model = ByteModel.of(config, weights)
    assert weights.layers[0].moe is not None
    assert weights.mtp is not None

    def nbytes(record: object) -> int:
        return sum(part.nbytes for part in parts_of(record))

    one = nbytes(weights.layers[0].moe.experts[0])
    rest = sum(nbytes(layer) for layer in weights.layers) - config.layers * 6 * one
    rest += weights.final_norm.nbytes + weights.head_linear.nbytes + config.recurrent_bytes
    for rows, experts in ((1, 2.0), (2, 6 * (1 - (2 / 3) ** 2)), (200, 6.0)):
        wanted = rest + config.layers * experts * one
        assert model.round_bytes(rows, 0, 0) == pytest.approx(wanted, abs=1)
    assert model.round_bytes(3, 0, 0, experts_read=9) == rest + 9 * one
    replayed = model.round_bytes(3, 0, 0, experts_read=9, replay=True)
    assert replayed == 2 * (rest + 9 * one) - weights.head_linear.nbytes
    draft = nbytes(weights.mtp) - 4 * one + weights.head_linear.nbytes
    assert model.draft_bytes(3, 0) == 3 * draft


def test_a_damaged_expert_is_named(loaded: Loaded) -> None:
    layer = loaded.weights.layers[1]
    assert layer.moe is not None
    experts = list(layer.moe.experts)
    bad: Tensor = experts[4].up.dequantise().clone()
    bad[0, 0] = torch.nan
    experts[4] = replace(experts[4], up=Dense(bad))
    damaged = replace(layer, moe=replace(layer.moe, experts=tuple(experts)))
    layers = (loaded.weights.layers[0], damaged, *loaded.weights.layers[2:])
    weights = replace(loaded.weights, layers=layers)
    backend = ReferenceBackend(loaded.config, weights, capacity=8, dtype=torch.bfloat16)
    assert backend.suspect_layer() == "layer 1, expert 4, weight up"
