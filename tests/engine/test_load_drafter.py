# SPDX-License-Identifier: MIT OR Apache-2.0
"""Opening a block drafter: the published layout, every stored format, and every refusal."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import edit_json, edit_tensors, text_config
from drafters import block_config, make_drafter, random_drafter, write_drafter
from torch import Tensor

from engine.errors import Cancelled, CheckpointError, MemoryShortError, UnsupportedModelError
from engine.load.drafter import check_target, drafter_folder, read_drafter
from engine.load.drafter_config import block_config_values, read_block_config
from engine.load.stored import Dense, Fp8Row, Nvfp4
from engine.model.block_config import BlockConfig
from engine.model.config import ModelConfig
from kernels.fp8_linear.quantise import quantise_rows
from kernels.nvfp4_linear.quantise import quantise

TARGET = ModelConfig.from_dict(text_config())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound drafter of TARGET."""
    config = block_config(TARGET)
    return write_drafter(tmp_path / "drafter", config, random_drafter(config))


def published() -> dict[str, Any]:
    """config.json of the published 27B drafter, with the fields that its converters assert."""
    return {
        "architectures": ["DFlash2DraftModel"],
        "model_type": "qwen3",
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 5,
        "layer_types": ["sliding_attention"] * 5,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 248320,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000000,
        "sliding_window": 2048,
        "is_causal": False,
        "num_target_layers": 64,
        "max_position_embeddings": 262144,
        "dflash_config": {
            "block_size": 8,
            "conv_kernel_size": 2,
            "conv_group_size": 16,
            "selector_rank": 256,
            "selector_top_k": 16,
            "mask_token_id": 248070,
            "target_layer_ids": [5, 19, 33, 47, 61],
        },
    }


def test_the_published_config_is_read() -> None:
    config = read_block_config(published())
    assert config.streams == (6, 20, 34, 48, 62)
    assert (config.conv_groups, config.window, config.block_size) == (320, 2048, 8)
    assert read_block_config(block_config_values(config)) == config
    entering = read_block_config(published(), default_offset=0)
    assert entering.streams == (5, 19, 33, 47, 61)


def test_the_published_drafter_has_as_many_parameters_as_it_says() -> None:
    from math import prod

    from engine.load.drafter import block_slots
    from engine.load.tensor_table import LinearSlot

    slots = block_slots(read_block_config(published()))
    sizes = [s.rows * s.columns if isinstance(s, LinearSlot) else prod(s.shape) for s in slots]
    assert (len(slots), sum(sizes)) == (81, 1_924_404_480)


def test_block_size_may_stand_at_the_top() -> None:
    values = published()
    values["block_size"] = values["dflash_config"].pop("block_size") + 8
    assert read_block_config(values).block_size == 16


def test_options_of_the_logits_are_read() -> None:
    values = published() | {"output_multiplier": 0.5, "final_logit_softcapping": 30.0}
    config = read_block_config(values)
    assert (config.output_multiplier, config.softcap) == (0.5, 30.0)
    assert read_block_config(block_config_values(config)) == config


def test_a_drafter_is_read_back(folder: Path) -> None:
    config = block_config(TARGET)
    found = read_drafter(folder, TARGET)
    tensors = random_drafter(config)
    assert (found.config, found.name, found.notices) == (config, "drafter", ())
    weights = found.weights
    assert torch.equal(weights.fc.dequantise(), tensors["fc.weight"])
    layer = weights.layers[1]
    assert torch.equal(layer.k.dequantise(), tensors["layers.1.self_attn.k_proj.weight"])
    assert torch.equal(layer.mlp_conv, tensors["layers.1.mlp_conv.base_kernel"])
    assert torch.equal(weights.successor, tensors["candidate_selector.successor_codebook"])
    assert weights.nbytes == sum(tensor.nbytes for tensor in tensors.values())


def test_stored_formats_are_told_apart(tmp_path: Path) -> None:
    def form(module: str, matrix: Tensor) -> dict[str, Tensor]:
        if "self_attn" in module:
            codes, scales, scale_2 = quantise(matrix)
            return {
                "weight": codes,
                "weight_scale": scales,
                "weight_scale_2": torch.tensor(scale_2),
            }
        if ".mlp." in module:
            codes, scale = quantise_rows(matrix)
            return {"weight": codes, "weight_scale": scale[:, None].contiguous()}
        return {}

    config = block_config(TARGET)
    write_drafter(tmp_path, config, random_drafter(config, form=form))
    layer = read_drafter(tmp_path, TARGET).weights.layers[0]
    assert isinstance(layer.q, Nvfp4)
    assert isinstance(layer.down, Fp8Row)
    assert isinstance(layer.mlp_kernel, Dense)
    quantised = read_drafter(tmp_path, TARGET, nvfp4=True).weights
    assert isinstance(quantised.layers[0].down, Nvfp4)
    assert isinstance(quantised.layers[0].mlp_kernel, Dense)
    assert isinstance(quantised.fc, Dense)
    wanted = layer.down.dequantise().float()
    error = (quantised.layers[0].down.dequantise().float() - wanted).square().mean().sqrt()
    assert error < 0.15 * wanted.square().mean().sqrt()


def test_a_publisher_of_entering_streams_is_known(tmp_path: Path) -> None:
    config = block_config(TARGET, tap_offset=0)
    path = write_drafter(tmp_path / "TandemLLM-DFlash2-b8", config, random_drafter(config))
    edit_json(path / "config.json", lambda values: values["dflash_config"].pop("tap_offset"))
    found = read_drafter(path, TARGET)
    assert found.config.tap_offset == 0
    assert "enter layers 0, 3" in found.notices[0]


def in_inner(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda values: values["dflash_config"].update({name: value})


def in_top(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda values: values.update({name: value})


@pytest.mark.parametrize(
    ("edit", "kind", "says"),
    [
        (in_top("architectures", ["DFlashDraftModel"]), UnsupportedModelError, "first DFlash form"),
        (in_top("architectures", ["DSparkDraftModel"]), UnsupportedModelError, "Markov head"),
        (in_top("architectures", None), UnsupportedModelError, "DFlash2DraftModel"),
        (in_top("is_causal", True), UnsupportedModelError, "is_causal"),
        (in_top("hidden_act", "gelu"), UnsupportedModelError, "hidden_act"),
        (
            in_top("layer_types", ["sliding_attention", "full_attention"]),
            UnsupportedModelError,
            "all sliding_attention",
        ),
        (in_top("layer_types", ["sliding_attention"]), CheckpointError, "2 entries"),
        (in_top("rope_scaling", {"rope_type": "yarn"}), UnsupportedModelError, "yarn"),
        (in_top("num_attention_heads", 3), CheckpointError, "multiple of num_key_value_heads"),
        (in_top("hidden_size", 128), CheckpointError, "hidden_size is 128, but the model has 64"),
        (in_top("vocab_size", 320), CheckpointError, "vocab_size is 320, but the model has 640"),
        (in_top("num_target_layers", 8), CheckpointError, "num_target_layers is 8"),
        (in_top("sliding_window", 0), CheckpointError, "sliding_window"),
        (in_top("dflash_config", None), CheckpointError, "dflash_config must be an object"),
        (in_inner("target_layer_ids", None), CheckpointError, "target_layer_ids"),
        (in_inner("target_layer_ids", [3, 0]), CheckpointError, "ascending"),
        (in_inner("target_layer_ids", [0, 4]), CheckpointError, "layers of 4"),
        (in_inner("target_layer_ids", [0, 1, 3]), CheckpointError, "fc.weight has shape"),
        (in_inner("tap_offset", 2), CheckpointError, "from 0 to 1"),
        (in_inner("conv_kernel_size", 3), UnsupportedModelError, "conv_kernel_size"),
        (in_inner("conv_group_size", 24), CheckpointError, "divisor of 64"),
        (in_inner("block_size", 64), CheckpointError, "from 2 to 32"),
        (in_inner("mask_token_id", 640), CheckpointError, "below 640"),
        (in_inner("selector_rank", 4), CheckpointError, "hidden_projection.weight has shape"),
    ],
)
def test_configs_that_do_not_fit_are_refused(
    folder: Path, edit: Callable[[dict[str, Any]], None], kind: type[Exception], says: str
) -> None:
    edit_json(folder / "config.json", edit)
    with pytest.raises(kind, match=says):
        read_drafter(folder, TARGET)


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda t: t.pop("layers.1.mlp.up_proj.weight"), r"lack 1 tensor: layers.1.mlp.up_proj"),
        (
            lambda t: t.pop("candidate_selector.successor_codebook"),
            r"lack 1 tensor: candidate_selector.successor_codebook \[640, 8\]",
        ),
        (lambda t: t.update(extra=torch.zeros(2)), "hold unknown 1 tensor: extra"),
        (lambda t: t.update({"layers.2.input_layernorm.weight": torch.zeros(64)}), "unknown"),
        (
            lambda t: t.update({"norm.weight": torch.zeros(32, dtype=torch.bfloat16)}),
            r"norm.weight has shape \[32\], expected \[64\]",
        ),
        (
            lambda t: t["layers.0.attention_conv.base_kernel"].fill_(float("nan")),
            "256 of 256 values that are NaN",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    folder: Path, edit: Callable[[dict[str, Tensor]], None], says: str
) -> None:
    edit_tensors(folder, edit)
    with pytest.raises(CheckpointError, match=says):
        read_drafter(folder, TARGET)


@pytest.mark.parametrize("nvfp4", [False, True])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    "name", ["fc.weight", "layers.0.mlp.up_proj.weight", "candidate_selector.predecessor_codebook"]
)
def test_weights_have_to_be_numbers(folder: Path, name: str, value: float, nvfp4: bool) -> None:
    edit_tensors(folder, lambda tensors: tensors[name][0, :3].fill_(value))
    with pytest.raises(CheckpointError, match=f"{name} holds 3 of .* NaN or infinite"):
        read_drafter(folder, TARGET, nvfp4=nvfp4)


def test_damaged_and_missing_files_are_refused(folder: Path) -> None:
    weights = folder / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:-10])
    with pytest.raises(CheckpointError, match="cut short"):
        read_drafter(folder, TARGET)
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"No \.safetensors file"):
        read_drafter(folder, TARGET)
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        read_drafter(folder, TARGET)
    with pytest.raises(CheckpointError, match="does not exist"):
        read_drafter(folder / "nowhere", TARGET)


def test_refusals_come_before_the_weights(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> None:
        raise AssertionError("a weight was read")

    monkeypatch.setattr("engine.load.reader.TensorReader.read", read)
    edit_json(folder / "config.json", in_top("vocab_size", 320))
    with pytest.raises(CheckpointError):
        read_drafter(folder, TARGET)
    edit_json(folder / "config.json", in_top("vocab_size", 640))
    with pytest.raises(MemoryShortError):
        read_drafter(folder, TARGET, available_bytes=1 << 20)


def test_a_cancel_ends_the_reading(folder: Path) -> None:
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        read_drafter(folder, TARGET, cancel=cancel)
    with pytest.raises(Cancelled):
        read_drafter(
            folder, TARGET, on_progress=lambda _: seen.set(), cancel=(seen := threading.Event())
        )


def test_a_drafter_of_another_model_says_which_size_differs() -> None:
    config = block_config(TARGET)
    check_target(config, TARGET)
    other = BlockConfig(**{**{f: getattr(config, f) for f in config.__slots__}, "hidden_size": 80})
    with pytest.raises(CheckpointError, match="hidden_size is 80, but the model has 64"):
        check_target(other, TARGET)


def test_the_switch_finds_the_drafter_beside_the_model(tmp_path: Path) -> None:
    model = tmp_path / "demo-model"
    model.mkdir()
    assert drafter_folder("", model) is None
    make_drafter(tmp_path / "demo-drafter", TARGET)
    assert drafter_folder("", model) == tmp_path / "demo-drafter"
    make_drafter(model / "drafter", TARGET)
    assert drafter_folder("", model) == model / "drafter"
    assert drafter_folder("off", model) is None
    assert drafter_folder("/somewhere", model) == Path("/somewhere")
