# SPDX-License-Identifier: MIT OR Apache-2.0
"""Mixture-of-experts folders: every published layout gives one model, and a wrong one is refused by name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import MOE, TRUNK, edit_config, edit_tensors, make_checkpoint, values
from torch import Tensor

from engine.api import LoadProgress
from engine.errors import CheckpointError, UnsupportedModelError
from engine.load.checkpoint import inspect_checkpoint, memory_need, read_checkpoint
from engine.load.quantise import quantise_checkpoint
from engine.load.stored import Dense, Fp8Block, Fp8Row, Nvfp4
from engine.load.weights import LayerWeights, MoeWeights
from kernels.fp8_linear.quantise import quantise_rows
from kernels.nvfp4_linear.quantise import quantise

MLP = TRUNK + "layers.1.mlp."
Form = Callable[[Tensor], dict[str, Tensor]]


def moe(layer: LayerWeights) -> MoeWeights:
    assert layer.moe is not None
    return layer.moe


def test_every_tensor_lands_in_its_field(tmp_path: Path) -> None:
    stored = make_checkpoint(tmp_path, **MOE)
    opened = read_checkpoint(tmp_path)
    layer = opened.weights.layers[1]
    assert opened.weights.mtp is not None
    fields = {
        MLP + "gate.weight": moe(layer).router,
        MLP + "shared_expert_gate.weight": moe(layer).shared_gate,
        MLP + "shared_expert.gate_proj.weight": layer.gate,
        MLP + "shared_expert.up_proj.weight": layer.up,
        MLP + "shared_expert.down_proj.weight": layer.down,
        "mtp.layers.0.mlp.experts.3.up_proj.weight": moe(opened.weights.mtp.layer).experts[3].up,
    }
    for number, expert in enumerate(moe(layer).experts):
        for part in ("gate", "up", "down"):
            fields[f"{MLP}experts.{number}.{part}_proj.weight"] = getattr(expert, part)
    assert len(moe(layer).experts) == 5
    wrong = [n for n, linear in fields.items() if not torch.equal(linear.dequantise(), stored[n])]
    assert wrong == []
    assert (opened.weight_format, opened.weight_bytes) == (
        "BF16",
        sum(t.nbytes for t in stored.values()) + exact_bytes(stored),
    )


def exact_bytes(stored: dict[str, Tensor]) -> int:
    """What the tensors that are kept in float32 take beyond their stored bf16."""
    exact = [t for n, t in stored.items() if n.endswith(("A_log", "dt_bias", "attn.norm.weight"))]
    return sum(tensor.nbytes for tensor in exact)


@pytest.mark.parametrize(
    "layout",
    [
        {"stacked": "."},
        {"stacked": r"^mtp\."},
        {"stacked": ".", "shards": 3},
        {"stacked": ".", "prefix": "model.", "nested": False},
        {"stacked": ".", "mtp_prefix": "model.mtp."},
    ],
    ids=str,
)
def test_stacked_experts_give_the_same_model(layout: dict[str, Any], tmp_path: Path) -> None:
    stored = make_checkpoint(tmp_path / "single", **MOE)
    other = make_checkpoint(tmp_path / "stacked", **layout, **MOE)
    assert len(other) < len(stored)
    plain, stacked = (read_checkpoint(tmp_path / name) for name in ("single", "stacked"))
    assert plain.config == stacked.config
    pairs = zip(values(plain.weights), values(stacked.weights), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert plain.weight_bytes == stacked.weight_bytes


def fp8_blocks(matrix: Tensor) -> dict[str, Tensor]:
    blocks = -(-matrix.shape[0] // 128), -(-matrix.shape[1] // 128)
    scale = torch.full(blocks, float(matrix.abs().amax()) / 448)
    codes = (matrix / scale[0, 0]).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale_inv": scale.bfloat16()}


def fp8_rows(matrix: Tensor) -> dict[str, Tensor]:
    codes, scale = quantise_rows(matrix)
    return {"weight": codes, "weight_scale": scale[:, None].contiguous()}


def modelopt(matrix: Tensor) -> dict[str, Tensor]:
    codes, scales, scale_2 = quantise(matrix, "rtn")
    numbers = {"weight_scale_2": scale_2, "input_scale": 0.5}
    scalars = {name: torch.tensor(value) for name, value in numbers.items()}
    return {"weight": codes, "weight_scale": scales, **scalars}


@pytest.mark.parametrize(
    ("form", "record", "name"),
    [
        (fp8_blocks, Fp8Block, "FP8"),
        (fp8_rows, Fp8Row, "FP8"),
        (modelopt, Nvfp4, "NVFP4"),
    ],
)
def test_quantised_experts_keep_their_own_scales(
    form: Form, record: type, name: str, tmp_path: Path
) -> None:
    plain = make_checkpoint(tmp_path / "plain", **MOE)
    make_checkpoint(
        tmp_path / "coded", form=lambda module, m: form(m) if ".experts." in module else {}, **MOE
    )
    opened = read_checkpoint(tmp_path / "coded")
    for number, expert in enumerate(moe(opened.weights.layers[1]).experts):
        assert isinstance(expert.down, record)
        wanted = plain[f"{MLP}experts.{number}.down_proj.weight"].float()
        error = (expert.down.dequantise().float() - wanted).norm() / wanted.norm()
        assert error < 0.15
    assert isinstance(moe(opened.weights.layers[1]).router, Dense)
    assert name in opened.weight_format


def test_memory_and_progress_count_every_expert(tmp_path: Path) -> None:
    needs, totals = [], []
    for stacked in ("", "."):
        folder = tmp_path / f"stacked {stacked}"
        stored = make_checkpoint(folder, stacked=stacked, **MOE)
        seen: list[LoadProgress] = []
        opened = read_checkpoint(folder, on_progress=seen.append)
        assert seen[-1].done_bytes == seen[-1].total_bytes == sum(t.nbytes for t in stored.values())
        needs.append(memory_need(inspect_checkpoint(folder).plan).weight_bytes)
        totals.append(opened.weight_bytes)
    assert needs[0] == needs[1] == totals[0] == totals[1]


# Wrong folders


def refusal(folder: Path, pattern: str, kind: type[CheckpointError] = CheckpointError) -> None:
    with pytest.raises(kind, match=pattern) as raised:
        read_checkpoint(folder)
    assert raised.value.next_step


@pytest.mark.parametrize("part", ["gate", "up", "down"])
def test_a_missing_expert_is_named(part: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, **MOE)
    name = f"layers.1.mlp.experts.3.{part}_proj.weight"
    edit_tensors(tmp_path, lambda tensors: tensors.pop(TRUNK + name))
    refusal(tmp_path, rf"lack 1 tensor: {re.escape(name)}")


@pytest.mark.parametrize("name", ["gate", "shared_expert_gate", "shared_expert.up_proj"])
def test_a_missing_part_beside_the_experts_is_named(name: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, stacked=".", **MOE)
    edit_tensors(tmp_path, lambda tensors: tensors.pop(f"{MLP}{name}.weight"))
    refusal(tmp_path, rf"lack 1 tensor: layers\.1\.mlp\.{re.escape(name)}\.weight")


def test_an_expert_that_stands_in_a_stack_and_by_itself_is_named(tmp_path: Path) -> None:
    single = make_checkpoint(tmp_path / "single", **MOE)
    make_checkpoint(tmp_path / "both", stacked=".", **MOE)
    name = MLP + "experts.3.up_proj.weight"
    edit_tensors(tmp_path / "both", lambda tensors: tensors.update({name: single[name]}))
    refusal(tmp_path / "both", rf"two names: {name}.*experts\.gate_up_proj\[3\.up_proj\]")


def test_an_expert_under_two_prefixes_is_named(tmp_path: Path) -> None:
    single = make_checkpoint(tmp_path, **MOE)
    tail = "layers.1.mlp.experts.2.down_proj.weight"
    edit_tensors(tmp_path, lambda t: t.update({"model." + tail: single[TRUNK + tail].clone()}))
    refusal(tmp_path, rf"two names: .*{re.escape(tail)}.*{re.escape(tail)}")


def test_more_experts_than_the_config_says(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, **MOE)
    edit_config(tmp_path, num_experts=4)
    refusal(tmp_path, r"num_experts is 4, but .*experts\.4\.")


@pytest.mark.parametrize("count", [4, 6])
def test_a_stack_of_another_length(count: int, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, stacked=".", **MOE)
    edit_config(tmp_path, num_experts=count)
    refusal(tmp_path, rf"experts\.(gate_up|down)_proj has shape \[5, .*expected \[{count}, ")


def test_a_quantised_stack_is_refused(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, stacked=".", **MOE)
    name = MLP + "experts.down_proj"
    edit_tensors(tmp_path, lambda t: t.update({name: t[name].to(torch.float8_e4m3fn)}))
    refusal(tmp_path, r"experts\.down_proj is F8_E4M3.*in one tensor", UnsupportedModelError)


def test_an_expert_that_is_quantised_by_halves_is_named(tmp_path: Path) -> None:
    form = lambda module, m: modelopt(m) if ".experts." in module else {}  # noqa: E731
    make_checkpoint(tmp_path, form=form, **MOE)
    edit_tensors(tmp_path, lambda t: t.pop(MLP + "experts.4.up_proj.weight_scale_2"))
    refusal(tmp_path, r"layers\.1\.mlp\.experts\.4\.up_proj is incomplete.*weight_scale_2")


# Quantising


@pytest.mark.parametrize("stacked", ["", "."])
def test_experts_are_quantised_one_by_one(stacked: str, tmp_path: Path) -> None:
    sizes = MOE | {"hidden_size": 128, "moe_intermediate_size": 64}
    make_checkpoint(tmp_path / "source", stacked=stacked, **sizes)
    reports = quantise_checkpoint(tmp_path / "source", tmp_path / "copy")
    copy, original = (read_checkpoint(tmp_path / name) for name in ("copy", "source"))
    assert copy.weight_format == "NVFP4 + FP8 head"
    assert copy.weights.mtp is not None
    for layer, before in (
        *zip(copy.weights.layers, original.weights.layers, strict=True),
        (copy.weights.mtp.layer, original.weights.mtp.layer),
    ):
        assert isinstance(layer.up, Nvfp4)
        assert isinstance(moe(layer).router, Dense)
        assert isinstance(moe(layer).shared_gate, Dense)
        scales = set()
        for expert, wanted in zip(moe(layer).experts, moe(before).experts, strict=True):
            assert isinstance(expert.gate, Nvfp4)
            scales.add(expert.gate.scale_2)
            error = expert.gate.dequantise().float() - wanted.gate.dequantise().float()
            assert error.norm() / wanted.gate.dequantise().float().norm() < 0.12
        assert len(scales) > 1, "every expert has a scale of its own"
    assert sum(".mlp.experts." in report.module for report in reports) == 5 * 5 * 3
    config = json.loads((tmp_path / "copy" / "config.json").read_text())
    layers = config["quantization_config"]["quantized_layers"]
    assert layers[MLP + "experts"]["quant_algo"] == "W4A16_NVFP4"
    assert not any(".experts." in name or name.endswith("mlp.gate") for name in layers)
