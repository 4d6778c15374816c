# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tensors that are refused: missing, unknown, of a wrong shape or type."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import refusals
import torch
from checkpoints import (
    SINGLE,
    edit_config,
    edit_tensors,
    make_checkpoint,
)
from refusals import TRUNK, refusal

from engine.errors import CheckpointError, UnsupportedModelError
from engine.load.checkpoint import read_checkpoint

folder = refusals.folder


@pytest.mark.parametrize(
    "name",
    [
        TRUNK + "embed_tokens.weight",
        TRUNK + "norm.weight",
        TRUNK + "layers.2.linear_attn.A_log",
        TRUNK + "layers.3.self_attn.q_proj.weight",
        "lm_head.weight",
    ],
)
def test_a_missing_tensor(folder: Path, name: str) -> None:
    edit_tensors(folder, lambda tensors: tensors.pop(name))
    assert name.removeprefix(TRUNK) in refusal(folder, "lack 1 tensor: ").cause


def test_many_missing_tensors_are_counted(folder: Path) -> None:
    def only_embedding(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if "embed" not in name or "mtp" in name]:
            tensors.pop(name)

    edit_config(folder, mtp_num_hidden_layers=0)
    edit_tensors(folder, only_embedding)
    refusal(folder, r"lack 55 tensors: .* and 49 more")


def test_a_declared_mtp_layer_without_tensors(folder: Path) -> None:
    def drop(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if name.startswith("mtp.")]:
            tensors.pop(name)

    edit_tensors(folder, drop)
    error = refusal(folder, "mtp_num_hidden_layers.*none of its 15 tensors")
    assert "mtp_num_hidden_layers to 0" in error.next_step


@pytest.mark.parametrize("declared", [0, 1])
def test_an_incomplete_mtp_layer(folder: Path, declared: int) -> None:
    edit_config(folder, mtp_num_hidden_layers=declared)
    edit_tensors(folder, lambda tensors: tensors.pop("mtp.norm.weight"))
    error = refusal(folder, r"lack 1 tensor: mtp\.norm\.weight \[64\]")
    assert "mtp_num_hidden_layers to 0" in error.next_step


def test_a_second_mtp_layer(folder: Path) -> None:
    extra = {"mtp.layers.1.input_layernorm.weight": torch.zeros(64)}
    edit_tensors(folder, lambda tensors: tensors.update(extra))
    refusal(folder, "second MTP layer", UnsupportedModelError)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("norm.weight", torch.zeros(63), r"has shape \[63\], expected \[64\]"),
        ("norm.weight", torch.zeros(64, dtype=torch.int32), "is I32, expected BF16 or F16 or F32"),
        (
            "layers.0.linear_attn.conv1d.weight",
            torch.zeros(96, 4),
            r"\[96, 4\], expected \[96, 1, 4\]",
        ),
        ("layers.0.mlp.up_proj.weight", torch.zeros(64, 96), r"\[64, 96\], expected \[96, 64\]"),
        ("layers.3.self_attn.q_proj.weight", torch.zeros(128, 64), r"expected \[256, 64\]"),
        ("embed_tokens.weight", torch.zeros(600, 64), r"\[600, 64\], expected \[640, 64\]"),
    ],
)
def test_a_wrong_shape_or_dtype(folder: Path, name: str, wrong: torch.Tensor, message: str) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({TRUNK + name: wrong}))
    cause = refusal(folder, message).cause
    assert SINGLE in cause
    assert TRUNK + name in cause


def test_a_tensor_that_nothing_reads(folder: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({TRUNK + "extra.weight": torch.zeros(1)}))
    refusal(folder, f"1 tensor that no part of this model reads: {TRUNK}extra.weight in {SINGLE}")


def test_a_bias_that_nothing_reads(folder: Path) -> None:
    bias = {TRUNK + "layers.3.self_attn.q_proj.bias": torch.zeros(256)}
    edit_tensors(folder, lambda tensors: tensors.update(bias))
    refusal(folder, r"q_proj\.bias")


def test_one_tensor_under_two_names(folder: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(64)}))
    refusal(folder, "under two names")


@pytest.mark.parametrize("count", [3, 5])
def test_a_layer_count_that_disagrees_with_the_tensors(folder: Path, count: int) -> None:
    edit_config(folder, num_hidden_layers=count)
    refusal(folder, f"num_hidden_layers is {count}, but the tensors have 4 layers")


def test_a_layer_kind_that_disagrees_with_the_tensors(folder: Path) -> None:
    edit_config(folder, layer_types=["full_attention", *["linear_attention"] * 3])
    refusal(folder, r"layer (0 is full_attention|3 is linear_attention), but .* holds .*layers")


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    path = tmp_path / SINGLE
    size = path.stat().st_size

    def shrink(progress: object) -> None:
        if path.stat().st_size == size:
            os.truncate(path, 1000)

    with pytest.raises(CheckpointError, match=f"{SINGLE} shrank to 1\u202f000 bytes") as raised:
        read_checkpoint(tmp_path, on_progress=shrink)
    assert raised.value.next_step
