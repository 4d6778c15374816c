# SPDX-License-Identifier: MIT OR Apache-2.0
"""A folder of random weights: it opens, answers, and holds the synthetic tensors bit for bit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine import Engine
from engine.api import GenerateRequest, Message
from engine.load.checkpoint import read_checkpoint
from engine.load.stored import Dense, Fp8Row, Nvfp4
from engine.load.synthetic import synthetic_weights
from engine.load.weights import parts_of
from engine.measure.shapes import named_shape
from engine.model.config import ModelConfig
from ops import slice_model
from ops.slice_model import main, published_config, write_slice


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first four layers of the demo model's shape and its MTP layer, in several files."""
    target = tmp_path_factory.mktemp("slice") / "model"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slice_model, "_SHARD_BYTES", 1_000_000)
        assert (
            main(["--shape", "demo:4", "--vocab", "5000", "--seed", "3", "--out", str(target)]) == 0
        )
    return target


def _bytes(part: Tensor | Dense | Nvfp4 | Fp8Row) -> list[Tensor]:
    """What a part consists of, as bytes that NaN and -0 do not blur."""
    if isinstance(part, Nvfp4):
        tensors = [part.codes, part.scales, torch.tensor(part.scale_2, dtype=torch.float32)]
    elif isinstance(part, Fp8Row):
        tensors = [part.codes, part.scale]
    else:
        tensors = [part.weight if isinstance(part, Dense) else part]
    return [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in tensors]


def test_the_tensors_are_the_synthetic_ones_bit_for_bit(folder: Path) -> None:
    config = named_shape("demo:4", vocab=5000, mtp=True).config
    wanted = list(parts_of(synthetic_weights(config, "nvfp4", seed=3)))
    checkpoint = read_checkpoint(folder, context_tokens=64)
    assert checkpoint.config == replace(config, tied=False)
    assert checkpoint.weight_format == "NVFP4 + FP8 head"
    assert not checkpoint.is_demo
    found = list(parts_of(checkpoint.weights))
    assert [type(part) for part in found] == [type(part) for part in wanted]
    for got, want in zip(found, wanted, strict=True):
        assert got.shape == want.shape
        assert all(torch.equal(a, b) for a, b in zip(_bytes(got), _bytes(want), strict=True))
    assert len(list(folder.glob("*.safetensors"))) > 1
    layers = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert layers["quantized_layers"]["lm_head"] == {"quant_algo": "FP8"}
    assert "model.language_model.layers.3.self_attn.q_proj" in layers["quantized_layers"]
    assert "model.language_model.layers.0.linear_attn.in_proj_a" not in layers["quantized_layers"]


def test_it_answers_with_its_mtp_layer_drafting(folder: Path) -> None:
    request = GenerateRequest(
        messages=(Message("user", "x"),), max_tokens=6, ignore_stop_tokens=True
    )
    changes = {"QWEN38_LEN_SWITCH": "0", "QWEN38_LOOKUP": "0", "QWEN38_MTP_DEPTH": "2"}
    with Engine.open(folder, threads=1, context_tokens=128, knobs=changes) as engine:
        answer = engine.generate(request)
    assert len(answer.token_ids) == 6
    assert answer.drafted_tokens > 0


@pytest.mark.parametrize("name", ["qwen3.8-27b:4", "qwen3.5-0.8b:8", "demo", "qwen3.5-35b-a3b:4"])
def test_the_config_reads_back_as_the_shape(name: str) -> None:
    config = named_shape(name, mtp=True).config
    assert ModelConfig.from_dict(published_config(config)) == config


def test_experts_are_the_synthetic_ones_bit_for_bit(tmp_path: Path) -> None:
    config = named_shape("demo:4", vocab=5000, mtp=True).config
    config = replace(config, tied=False, experts=6, experts_per_token=2, expert_size=64)
    write_slice(config, tmp_path / "model", seed=3)
    checkpoint = read_checkpoint(tmp_path / "model", context_tokens=64)
    assert checkpoint.config == config
    wanted = list(parts_of(synthetic_weights(config, "nvfp4", seed=3)))
    found = list(parts_of(checkpoint.weights))
    assert [type(part) for part in found] == [type(part) for part in wanted]
    for got, want in zip(found, wanted, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(_bytes(got), _bytes(want), strict=True))


def test_a_folder_that_holds_something_is_refused_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.txt").write_text("mine")
    assert main(["--shape", "demo:4", "--out", str(tmp_path)]) == 1
    assert "exists and is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["own.txt"]
    assert (tmp_path / "own.txt").read_text() == "mine"


def test_a_vocabulary_below_the_tokenizers_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--shape", "demo:4", "--vocab", "4000", "--out", str(tmp_path / "new")]) == 1
    assert "smaller than the tokenizer's" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_seed_below_zero_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--shape", "demo:4", "--seed", "-1", "--out", str(tmp_path / "new")]) == 1
    assert "-1 is no seed" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
