# SPDX-License-Identifier: MIT OR Apache-2.0
"""Each published quantised layout, told apart by its tensors and read to the values it stands for."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoints import edit_tensors, make_checkpoint
from torch import Tensor

from engine.errors import CheckpointError, UnsupportedModelError
from engine.load.checkpoint import inspect_checkpoint, memory_need, read_checkpoint
from engine.load.stored import Dense, Fp8Block, Fp8Row, Nvfp4, StoredLinear
from engine.load.weights import GdnLayerWeights

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
TARGET = "model.language_model.layers.0.mlp.up_proj"
Parts = dict[str, Tensor]


def nvfp4_parts(matrix: Tensor) -> tuple[Tensor, Tensor, float]:
    """Codes, scales and global scale by nearest value, independent of the engine's quantiser."""
    rows, columns = matrix.shape
    scale_2 = float(matrix.abs().max()) / (6 * 448)
    groups = matrix.reshape(rows, columns // 16, 16)
    scales = (groups.abs().amax(-1) / (6 * scale_2)).to(torch.float8_e4m3fn)
    scaled = groups / (scales.float()[..., None] * scale_2)
    index = (scaled.abs()[..., None] - E2M1).abs().argmin(-1)
    codes = (index + 8 * (scaled < 0)).reshape(rows, columns).to(torch.uint8)
    return codes[:, ::2] | codes[:, 1::2] << 4, scales, scale_2


def nvfp4_values(packed: Tensor, scales: Tensor, scale_2: float) -> Tensor:
    codes = torch.stack((packed & 15, packed >> 4), -1).reshape(packed.shape[0], -1).long()
    values = E2M1[codes & 7] * torch.where(codes >= 8, -1.0, 1.0)
    return values * scales.float().repeat_interleave(16, 1) * scale_2


def modelopt(_: str, matrix: Tensor) -> Parts:
    packed, scales, scale_2 = nvfp4_parts(matrix)
    return {
        "weight": packed,
        "weight_scale": scales,
        "weight_scale_2": torch.tensor(scale_2),
        "input_scale": torch.tensor(0.5),
    }


def compressed(_: str, matrix: Tensor) -> Parts:
    packed, scales, scale_2 = nvfp4_parts(matrix)
    return {
        "weight_packed": packed,
        "weight_scale": scales,
        "weight_global_scale": torch.tensor([1 / scale_2]),
        "input_global_scale": torch.tensor([2.0]),
    }


def fp8_block(_: str, matrix: Tensor, name: str = "weight_scale_inv") -> Parts:
    rows, columns = matrix.shape
    shape = -(-rows // 128), -(-columns // 128)
    scale = (0.01 + 0.01 * torch.arange(shape[0] * shape[1]).reshape(shape)).bfloat16()
    spread = scale.float().repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
    return {"weight": (matrix / spread).to(torch.float8_e4m3fn), name: scale}


def fp8_block_community(module: str, matrix: Tensor) -> Parts:
    return fp8_block(module, matrix, "weight_scale")


def fp8_tensor(_: str, matrix: Tensor) -> Parts:
    scale = torch.tensor(float(matrix.abs().max()) / 448)
    codes = (matrix / scale).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scale, "input_scale": torch.tensor(1.0)}


def fp8_channel(_: str, matrix: Tensor) -> Parts:
    scale = (matrix.abs().amax(1, keepdim=True) / 448).bfloat16()
    return {"weight": (matrix / scale.float()).to(torch.float8_e4m3fn), "weight_scale": scale}


def fp8_channel_flat(module: str, matrix: Tensor) -> Parts:
    parts = fp8_channel(module, matrix)
    return {**parts, "weight_scale": parts["weight_scale"].reshape(-1).float()}


def expected(parts: Parts) -> Tensor:
    """The values a linear's tensors stand for, in float32."""
    if "weight_packed" in parts:
        scale_2 = 1 / float(parts["weight_global_scale"])
        return nvfp4_values(parts["weight_packed"], parts["weight_scale"], scale_2)
    weight = parts["weight"]
    if "weight_scale_2" in parts:
        return nvfp4_values(weight, parts["weight_scale"], float(parts["weight_scale_2"]))
    scale = parts.get("weight_scale_inv", parts.get("weight_scale")).float()
    if scale.dim() == 2 and scale.shape[1] == -(-weight.shape[1] // 128) != 1:
        scale = scale.repeat_interleave(128, 0)[: weight.shape[0]]
        scale = scale.repeat_interleave(128, 1)[:, : weight.shape[1]]
    elif scale.dim() == 1:
        scale = scale[:, None]
    return weight.float() * scale


FORMS = {
    "modelopt": (modelopt, Nvfp4, "NVFP4"),
    "compressed": (compressed, Nvfp4, "NVFP4"),
    "fp8 block": (fp8_block, Fp8Block, "FP8"),
    "fp8 block, community name": (fp8_block_community, Fp8Block, "FP8"),
    "fp8 per tensor": (fp8_tensor, Fp8Row, "FP8"),
    "fp8 per channel": (fp8_channel, Fp8Row, "FP8"),
    "fp8 per channel, flat": (fp8_channel_flat, Fp8Row, "FP8"),
}


def only_mlp(form: Callable[[str, Tensor], Parts]) -> Callable[[str, Tensor], Parts]:
    return lambda module, matrix: form(module, matrix) if ".mlp." in module else {}


def layer_0(folder: Path) -> GdnLayerWeights:
    layer = read_checkpoint(folder).weights.layers[0]
    assert isinstance(layer, GdnLayerWeights)
    return layer


def target_parts(stored: Parts) -> Parts:
    start = TARGET + "."
    return {name.removeprefix(start): t for name, t in stored.items() if name.startswith(start)}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_read_to_its_values(name: str, tmp_path: Path) -> None:
    form, kind, shown = FORMS[name]
    sizes = {
        "hidden_size": 192,
        "intermediate_size": 320,
    }  # more than one block, the last one ragged
    stored = make_checkpoint(tmp_path, form=only_mlp(form), **sizes)
    up: StoredLinear = layer_0(tmp_path).up
    assert type(up) is kind
    assert (up.shape, up.format_name) == ((320, 192), shown)
    wanted = expected(target_parts(stored)).bfloat16()
    assert torch.equal(up.dequantise(), wanted)
    assert up.dequantise().dtype == torch.bfloat16


@pytest.mark.parametrize("name", FORMS)
def test_whole_models_in_every_form_load_with_head_and_mtp(name: str, tmp_path: Path) -> None:
    form, kind, shown = FORMS[name]
    make_checkpoint(tmp_path, form=form)
    opened = read_checkpoint(tmp_path)
    assert opened.weight_format == shown
    assert type(opened.weights.head) is kind
    assert opened.weights.mtp is not None
    assert type(opened.weights.mtp.layer.q) is kind
    assert memory_need(inspect_checkpoint(tmp_path).plan).weight_bytes >= opened.weight_bytes


def test_formats_may_be_mixed_in_one_model(tmp_path: Path) -> None:
    def form(module: str, matrix: Tensor) -> Parts:
        if ".mlp." in module:
            return modelopt(module, matrix)
        if "in_proj_a" in module or "in_proj_b" in module or module.startswith("mtp."):
            return {}
        return fp8_channel(module, matrix) if module == "lm_head" else fp8_tensor(module, matrix)

    make_checkpoint(tmp_path, form=form)
    opened = read_checkpoint(tmp_path)
    layer = opened.weights.layers[0]
    assert isinstance(layer, GdnLayerWeights)
    assert [type(x) for x in (layer.gate, layer.in_qkv, layer.in_a)] == [Nvfp4, Fp8Row, Dense]
    assert set(opened.weight_format.split(" + ")) == {"FP8", "NVFP4", "FP8 head"}


def test_the_two_global_scales_are_not_mixed_up(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "multiply", form=modelopt)
    make_checkpoint(tmp_path / "divide", form=compressed)
    multiply, divide = (layer_0(tmp_path / name).gate for name in ("multiply", "divide"))
    assert isinstance(multiply, Nvfp4)
    assert isinstance(divide, Nvfp4)
    assert torch.equal(multiply.codes, divide.codes)
    assert multiply.scale_2 == pytest.approx(divide.scale_2, rel=1e-6)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("name", ["modelopt", "compressed"])
def test_one_number_has_any_shape(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    make_checkpoint(tmp_path, form=only_mlp(FORMS[name][0]))
    wanted = layer_0(tmp_path).up.dequantise()
    key = f"{TARGET}." + ("weight_scale_2" if name == "modelopt" else "weight_global_scale")
    edit_tensors(tmp_path, lambda tensors: tensors.update({key: tensors[key].reshape(shape)}))
    assert torch.equal(layer_0(tmp_path).up.dequantise(), wanted)


def test_a_scale_of_minus_zero_is_none(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, form=only_mlp(modelopt))
    key = f"{TARGET}.weight_scale"
    edit_tensors(tmp_path, lambda tensors: tensors[key].view(torch.uint8)[0, 0].fill_(0x80))
    values = layer_0(tmp_path).up.dequantise()
    assert not values[0, :16].any()
    assert values[0, 16:].any()


def test_kv_cache_scales_are_passed_over(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, form=only_mlp(modelopt))
    attention = "model.language_model.layers.3.self_attn."
    scales = {
        attention + name: torch.tensor(1.0)
        for name in ("k_proj.k_scale", "v_proj.v_scale", "k_scale")
    }
    edit_tensors(tmp_path, lambda tensors: tensors.update(scales))
    assert read_checkpoint(tmp_path).config.layers == 4


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        ("modelopt", lambda t: t.pop(f"{TARGET}.weight_scale_2"), "weight_scale_2 is missing"),
        ("modelopt", lambda t: t.pop(f"{TARGET}.weight_scale"), "weight_scale is missing"),
        ("modelopt", lambda t: t.pop(f"{TARGET}.weight"), "weight is missing"),
        ("compressed", lambda t: t.pop(f"{TARGET}.weight_global_scale"), "global_scale is missing"),
        ("fp8 block", lambda t: t.pop(f"{TARGET}.weight_scale_inv"), "weight_scale is missing"),
        (
            "modelopt",
            lambda t: t.update({f"{TARGET}.weight_scale_2": torch.tensor(0.0)}),
            r"weight_scale_2 is 0\.0",
        ),
        (
            "compressed",
            lambda t: t.update({f"{TARGET}.weight_global_scale": torch.tensor([float("nan")])}),
            "weight_global_scale is nan",
        ),
        (
            "compressed",
            lambda t: t.update({f"{TARGET}.weight_global_scale": torch.tensor([1e-45])}),
            "weight_global_scale is 1.4.*e-45; .* keeps weights finite",
        ),
        (
            "modelopt",
            lambda t: t.update({f"{TARGET}.weight_scale_2": torch.tensor(2e35)}),
            "weight_scale_2 is 2.*e.35; .* keeps weights finite",
        ),
        (
            "modelopt",
            lambda t: t[f"{TARGET}.weight_scale"].view(torch.uint8)[3:5, 0].fill_(0x7F),
            "weight_scale holds 2 of 384 scales that are negative or NaN",
        ),
        (
            "compressed",
            lambda t: t[f"{TARGET}.weight_scale"].view(torch.uint8)[1, 1:].fill_(0x81),
            "weight_scale holds 3 of 384 scales that are negative or NaN",
        ),
        (
            "fp8 per channel",
            lambda t: t.update({f"{TARGET}.weight_scale": torch.full((96, 1), float("inf"))}),
            "weight_scale holds 96 of 96",
        ),
        (
            "fp8 per channel",
            lambda t: t.update({f"{TARGET}.weight_scale": torch.ones(95)}),
            r"shape \[95\]; expected one scale, one for each of 96 rows",
        ),
        (
            "fp8 block",
            lambda t: t.update({f"{TARGET}.weight_scale_inv": torch.ones(2, 1)}),
            r"shape \[2, 1\], expected \[1, 1\] beside weights of \[96, 64\]\.$",
        ),
        (
            "modelopt",
            lambda t: t.update({f"{TARGET}.weight_scale_2": torch.ones(2)}),
            r"weight_scale_2 has shape \[2\], expected one number beside weights of \[96, 64\]\.$",
        ),
        (
            "compressed",
            lambda t: t.update({f"{TARGET}.weight_global_scale": torch.ones(96, 1)}),
            r"weight_global_scale has shape \[96, 1\], expected one number beside weights of",
        ),
        (
            "modelopt",
            lambda t: t.update({f"{TARGET}.weight_scale": torch.ones(96, 2)}),
            r"weight_scale has shape \[96, 2\], expected \[96, 4\] beside weights of",
        ),
        (
            "modelopt",
            lambda t: t.update({f"{TARGET}.weight_scale": torch.ones(96, 4)}),
            "is F32, expected F8_E4M3",
        ),
        (
            "modelopt",
            lambda t: t.update({f"{TARGET}.weight": torch.zeros(96, 64, dtype=torch.uint8)}),
            r"shape \[96, 64\], expected \[96, 32\]",
        ),
    ],
)
def test_incomplete_and_wrong_parts_are_named(
    name: str, edit: Callable[[Parts], None], message: str, tmp_path: Path
) -> None:
    make_checkpoint(tmp_path, form=only_mlp(FORMS[name][0]))
    edit_tensors(tmp_path, edit)
    with pytest.raises(CheckpointError) as raised:
        read_checkpoint(tmp_path)
    assert re.search(message, raised.value.cause)
    assert "layers.0.mlp.up_proj" in raised.value.cause
    assert raised.value.next_step


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"weight": torch.zeros(96, 64, dtype=torch.int8)}, "is I8"),
        ({"weight": torch.zeros(96, 64, dtype=torch.float64)}, "is F64"),
        ({"weight_scale": torch.ones(())}, "two formats"),
        ({"weight_packed": torch.zeros(96, 32, dtype=torch.uint8)}, "missing|two formats"),
    ],
)
def test_unknown_and_doubled_forms_are_refused(parts: Parts, message: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    new = {f"{TARGET}.{part}": tensor for part, tensor in parts.items()}
    edit_tensors(tmp_path, lambda tensors: tensors.update(new))
    kind = CheckpointError if "missing" in message else UnsupportedModelError
    with pytest.raises(kind, match=message):
        inspect_checkpoint(tmp_path)


def test_a_quantised_embedding_is_refused(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    name = "model.language_model.embed_tokens.weight"
    codes = torch.zeros(640, 64).to(torch.float8_e4m3fn)
    edit_tensors(tmp_path, lambda tensors: tensors.update({name: codes}))
    with pytest.raises(CheckpointError, match=r"embed_tokens.weight is F8_E4M3, expected BF16"):
        inspect_checkpoint(tmp_path)
