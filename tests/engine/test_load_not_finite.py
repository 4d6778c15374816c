# SPDX-License-Identifier: MIT OR Apache-2.0
"""A weight that is NaN or infinite is refused with the name of its tensor, in every tensor and format."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoints import MOE, SINGLE, edit_tensors, make_checkpoint, write_shards
from refusals import refusal
from test_load_formats import FORMS, TARGET
from torch import Tensor

from engine.errors import CheckpointError
from engine.load.checkpoint import read_checkpoint
from engine.load.linears import refuse_invalid
from engine.load.safetensors_index import TensorEntry

BAD = (math.nan, math.inf, -math.inf)
FP8_FORMS = [name for name in FORMS if name.startswith("fp8")]


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"tied": True},
        {"dtype": torch.float16},
        {"dtype": torch.float32},
        {**MOE, "stacked": "layers"},
    ],
    ids=["bf16", "tied", "f16", "f32", "experts"],
)
def test_in_every_tensor(tmp_path: Path, layout: dict) -> None:
    tensors = make_checkpoint(tmp_path, **layout)
    assert len(tensors) > 60
    for number, (name, tensor) in enumerate(tensors.items()):
        damaged = tensor.clone()
        damaged.view(-1)[tensor.numel() * number // len(tensors)] = BAD[number % len(BAD)]
        write_shards(tmp_path, {**tensors, name: damaged})
        cause = refusal(tmp_path, "holds 1 of .* values that are NaN or infinite").cause
        assert cause.startswith(f"{SINGLE}: tensor {name}")
    write_shards(tmp_path, tensors)
    read_checkpoint(tmp_path)
    read_checkpoint(tmp_path, keep_float32=True)


def test_a_number_that_is_none_in_bf16(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, dtype=torch.float32)
    name = "lm_head.weight"
    edit_tensors(tmp_path, lambda tensors: tensors[name].view(-1)[7].fill_(3.4e38))
    assert name in refusal(tmp_path, "holds 1 of .* infinite").cause
    read_checkpoint(tmp_path, keep_float32=True)


@pytest.mark.parametrize("form", FP8_FORMS)
@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_in_codes_of_fp8(tmp_path: Path, form: str, code: int) -> None:
    make_checkpoint(tmp_path, form=FORMS[form][0])
    key = f"{TARGET}.weight"

    def damage(tensors: dict[str, Tensor]) -> None:
        raw = tensors[key].view(torch.uint8)
        raw[0], raw[1] = 0xFE, 0x7E  # the largest that are numbers
        raw[5, 2:4] = code

    edit_tensors(tmp_path, damage)
    assert key in refusal(tmp_path, "holds 2 of 6\u202f144 values that are NaN").cause


@pytest.mark.parametrize("form", FP8_FORMS)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_scale_of_fp8_that_makes_infinite_weights(tmp_path: Path, form: str, sign: int) -> None:
    tensors = make_checkpoint(tmp_path, form=FORMS[form][0])
    (key,) = (name for name in tensors if re.fullmatch(rf"{TARGET}\.weight_scale(_inv)?", name))
    largest = torch.finfo(torch.bfloat16).max / 448

    def scaled(factor: float) -> Callable[[dict[str, Tensor]], None]:
        def edit(tensors: dict[str, Tensor]) -> None:
            tensors[key].view(-1)[-1] = sign * factor * largest

        return edit

    edit_tensors(tmp_path, scaled(1.02))
    assert key in refusal(tmp_path, "holds a scale of .*, which makes weights infinite").cause
    edit_tensors(tmp_path, scaled(0.98))
    layer = read_checkpoint(tmp_path).weights.layers[0]
    assert layer.up.dequantise().isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("size", [1, 7, 16, 33, 100_000])
def test_the_largest_numbers_are_sound_and_one_bad_value_is_found_anywhere(
    dtype: torch.dtype, size: int
) -> None:
    entry = TensorEntry("w", Path("file"), "BF16", (size,), 0, 2 * size)
    tensor = torch.full((size,), torch.finfo(dtype).max, dtype=dtype)
    tensor[::2] *= -1
    refuse_invalid(tensor, entry)
    for at in {0, size // 3, size // 2, size - 1}:
        for bad in BAD:
            damaged = tensor.clone()
            damaged[at] = bad
            with pytest.raises(CheckpointError, match="tensor w holds 1 of"):
                refuse_invalid(damaged, entry)
