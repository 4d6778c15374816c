# SPDX-License-Identifier: MIT OR Apache-2.0
"""One crafted folder for every refusal: the message names the file and what to do, and nothing is read."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path

import pytest
import torch
from checkpoints import (
    INDEX,
    SINGLE,
    edit_config,
    edit_json,
    edit_tensors,
    make_checkpoint,
    tokenizer_json,
    write_json,
)

import engine.load.reader as reader_module
from engine.errors import CheckpointError, UnsupportedModelError
from engine.load.checkpoint import read_checkpoint

TRUNK = "model.language_model."
SHARD_2 = "model-00002-of-00003.safetensors"
SHARD_3 = "model-00003-of-00003.safetensors"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sound single-file checkpoint; a test that reads a weight before the refusal fails."""

    def refuse(*_: object) -> None:
        raise AssertionError("a weight was read before the refusal")

    monkeypatch.setattr(reader_module.TensorReader, "read", refuse)
    make_checkpoint(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def sharded(folder: Path) -> Path:
    """A sound checkpoint in three shards with an index."""
    (folder / SINGLE).unlink()
    make_checkpoint(folder, shards=3)
    return folder


def refusal(
    folder: Path, message: str, kind: type[CheckpointError] = CheckpointError
) -> CheckpointError:
    """The error of opening `folder`: of this kind, saying this, with a next step."""
    with pytest.raises(kind, match=message) as raised:
        read_checkpoint(folder)
    assert raised.value.next_step
    return raised.value


# Folders and small files


def test_nothing_there(tmp_path: Path) -> None:
    assert "absent" in refusal(tmp_path / "absent", "does not exist").cause
    refusal(Path("~no-such-user/model"), "home directory")


def test_a_file_instead_of_a_folder(folder: Path) -> None:
    refusal(folder / SINGLE, "is a file, not a folder")


def test_a_path_that_cannot_be(tmp_path: Path) -> None:
    refusal(tmp_path / ("x" * 5000), "cannot be read")


def test_an_empty_folder(tmp_path: Path) -> None:
    refusal(tmp_path, r"config\.json is missing")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "generation_config.json", INDEX])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not valid JSON"),
        (b"{", "is not valid JSON"),
        (b"[1]", "must hold a JSON object"),
        (b'{"a": "\xff"}', "is not UTF-8 text: byte 7"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' stands twice"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not valid JSON"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "not valid JSON"),
    ],
    ids=["empty", "cut", "list", "not utf-8", "key twice", "deep", "huge number"],
)
def test_damaged_json(folder: Path, name: str, content: bytes, message: str) -> None:
    (folder / name).write_bytes(content)
    assert name in refusal(folder, message).cause


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "tokenizer.json",
        "generation_config.json",
        "chat_template.jinja",
        SINGLE,
        INDEX,
    ],
)
def test_a_folder_where_a_file_should_be(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()
    assert name in refusal(folder, "is a folder where a file is expected").cause


@pytest.mark.skipif(
    os.name != "posix" or os.geteuid() == 0, reason="the superuser reads everything"
)
@pytest.mark.parametrize("name", ["config.json", SINGLE])
def test_a_file_without_read_permission(folder: Path, name: str) -> None:
    (folder / name).chmod(0)
    assert name in refusal(folder, "cannot be read: Permission denied").cause


def test_a_read_error_of_the_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "read_bytes", fail)
    assert "config.json" in refusal(folder, "cannot be read: Input/output error").cause


# Models of another kind


@pytest.mark.parametrize("model_type", ["qwen4_exp", "qwen3_next", "qwen3_5_moe", "llama"])
def test_another_architecture(folder: Path, model_type: str) -> None:
    edit_json(folder / "config.json", lambda config: config.update(model_type=model_type))
    assert model_type in refusal(folder, r"config\.json: model_type", UnsupportedModelError).cause


def test_an_unknown_rope_type(folder: Path) -> None:
    edit_config(folder, rope_parameters={"rope_type": "yarn", "rope_theta": 1e7})
    error = refusal(folder, "rope_type is 'yarn'", UnsupportedModelError)
    assert "default" in error.next_step


def test_an_unknown_quantisation_method(folder: Path) -> None:
    method = {"quantization_config": {"quant_method": "awq"}}
    edit_json(folder / "config.json", lambda config: config.update(method))
    refusal(folder, "quant_method is 'awq'", UnsupportedModelError)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("layers.0.linear_attn.in_proj_qkvz.weight", "Qwen3-Next"),
        ("layers.0.mlp.experts.gate_up_proj", "mixture-of-experts"),
        ("layers.0.mlp.up_proj.qweight", "GPTQ or AWQ"),
        ("layers.0.mlp.up_proj.lora_A.weight", "LoRA"),
    ],
)
def test_tensors_of_another_architecture(folder: Path, name: str, message: str) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({TRUNK + name: torch.zeros(2)}))
    assert name in refusal(folder, message, UnsupportedModelError).cause


# Weight files


@pytest.mark.parametrize("others", [[], ["pytorch_model.bin", "model.gguf"]])
def test_no_safetensors(folder: Path, others: list[str]) -> None:
    (folder / SINGLE).unlink()
    for name in others:
        (folder / name).write_bytes(b"x")
    cause = refusal(folder, r"No \.safetensors file").cause
    assert all(name in cause for name in others)


def test_a_missing_shard(sharded: Path) -> None:
    (sharded / SHARD_2).unlink()
    refusal(sharded, f"names 3 files, but {SHARD_2} is missing")


def test_a_truncated_shard(sharded: Path) -> None:
    path = sharded / SHARD_3
    whole = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(whole - 1000)
    cause = refusal(sharded, f"{SHARD_3} is cut short").cause
    assert f"needs {whole:,} bytes, the file has {whole - 1000:,}" in cause


def test_bytes_after_the_last_tensor(folder: Path) -> None:
    with (folder / SINGLE).open("ab") as file:
        file.write(b"\0" * 8)
    refusal(folder, f"{SINGLE} has bytes after its last tensor")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "has 0 bytes; a safetensors file has at least 8"),
        (b"\1\2\3", "has 3 bytes"),
        (struct.pack("<Q", 2**63) + b"{}", "claims a header of 9,223,372,036,854,775,808 bytes"),
        (struct.pack("<Q", 90_000_000) + b"{}", r"needs 90,000,008 bytes, the file has 10"),
        (struct.pack("<Q", 2) + b"[]", "must hold a JSON object"),
        (struct.pack("<Q", 2) + b"\xff\xff", "header is not UTF-8"),
        (struct.pack("<Q", 200_000) + b"[" * 200_000, "nested too deeply|not valid JSON"),
        (b"version https://git-lfs.github.com/spec/v1\n", "claims a header"),
    ],
    ids=["empty", "stub", "bomb", "longer than file", "list", "bytes", "deep", "lfs pointer"],
)
def test_headers_that_are_none(folder: Path, data: bytes, message: str) -> None:
    (folder / SINGLE).write_bytes(data)
    assert SINGLE in refusal(folder, message).cause


def header_file(path: Path, header: dict[str, object], size: int) -> None:
    raw = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + b"\0" * size)


def tensor(start: int, end: int, shape: object = (2,), dtype: object = "BF16") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize(
    ("header", "size", "message"),
    [
        ({"a": tensor(0, 4), "b": tensor(2, 6)}, 6, "b begins at byte .* overlap"),
        ({"a": tensor(0, 4), "b": tensor(8, 12)}, 12, "b begins at byte .* leave a hole"),
        ({"a": tensor(4, 8)}, 8, "a begins at byte"),
        ({"a": tensor(0, 6)}, 6, r"a has 6 bytes, but BF16 \[2\] needs 4"),
        ({"a": tensor(0, 2**62, [2**61])}, 8, "cut short: its header needs 4,611,686,018,427,38"),
        ({"a": tensor(4, 0)}, 4, "data offsets"),
        ({"a": tensor(-4, 0)}, 4, "data offsets"),
        ({"a": tensor(0, 4, [-2])}, 4, "shape"),
        ({"a": tensor(0, 4, [2.0])}, 4, "shape"),
        ({"a": tensor(0, 4, [True, 2])}, 4, "shape"),
        ({"a": tensor(0, 4, None)}, 4, "shape"),
        ({"a": tensor(0, 4, dtype="F4")}, 4, "dtype 'F4'"),
        ({"a": tensor(0, 4, dtype=["BF16"])}, 4, "dtype"),
        ({"a": "x"}, 4, "no description"),
        ({"a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4, 8]}}, 4, "data offsets"),
    ],
)
def test_headers_that_do_not_fit(
    folder: Path, header: dict[str, object], size: int, message: str
) -> None:
    header_file(folder / SINGLE, header, size)
    assert SINGLE in refusal(folder, message).cause


def test_a_name_twice_in_a_header(folder: Path) -> None:
    one = json.dumps(tensor(0, 4))
    raw = f'{{"a": {one}, "a": {one}}}'.encode()
    (folder / SINGLE).write_bytes(struct.pack("<Q", len(raw)) + raw + b"\0" * 4)
    assert SINGLE in refusal(folder, "'a' stands twice").cause


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/etc/passwd", "C:\\x.safetensors", "a/../../b", "..\\b", ""]
)
def test_an_index_naming_a_file_outside_the_folder(sharded: Path, name: str) -> None:
    shutil.copy(sharded / SHARD_2, sharded.parent / "outside.safetensors")
    edit_json(sharded / INDEX, lambda index: index["weight_map"].update({"lm_head.weight": name}))
    assert repr(name) in refusal(sharded, "lies outside the model's folder").cause


@pytest.mark.parametrize("indexed", [True, False])
def test_a_link_out_of_the_folder(sharded: Path, indexed: bool) -> None:
    outside = sharded.parent / "elsewhere.safetensors"
    (sharded / SHARD_2).rename(outside)
    (sharded / SHARD_2).symlink_to(outside)
    if not indexed:
        (sharded / INDEX).unlink()
    assert "elsewhere" in refusal(sharded, "lies outside the model's folder").cause


def test_a_link_to_nothing(sharded: Path) -> None:
    (sharded / SHARD_2).unlink()
    (sharded / SHARD_2).symlink_to("gone.safetensors")
    refusal(sharded, f"{SHARD_2} is missing")


def test_a_link_to_itself_and_a_name_too_long(sharded: Path) -> None:
    (sharded / SHARD_2).unlink()
    (sharded / SHARD_2).symlink_to(SHARD_2)
    refusal(sharded, f"{SHARD_2}.*(cannot be read|missing)")
    name = "x" * 5000
    edit_json(sharded / INDEX, lambda index: index["weight_map"].update({"lm_head.weight": name}))
    refusal(sharded, "cannot be read")


def test_a_tensor_in_two_shards(sharded: Path) -> None:
    shutil.copy(sharded / SHARD_2, sharded / SHARD_3)
    refusal(sharded, f"stands in two files: {SHARD_2} and {SHARD_3}")


def test_a_tensor_in_two_files_without_an_index(folder: Path) -> None:
    shutil.copy(folder / SINGLE, folder / "copy.safetensors")
    refusal(folder, f"stands in two files: copy.safetensors and {SINGLE}")


def test_an_index_promising_a_tensor_that_is_nowhere(sharded: Path) -> None:
    edit_json(sharded / INDEX, lambda index: index["weight_map"].update({"ghost": SHARD_2}))
    refusal(sharded, f"promises tensor ghost in {SHARD_2}, but it is not there")


def test_an_index_promising_a_tensor_elsewhere(sharded: Path) -> None:
    def move(index: dict[str, dict[str, str]]) -> None:
        name = next(key for key, file in index["weight_map"].items() if file == SHARD_2)
        index["weight_map"][name] = SHARD_3

    edit_json(sharded / INDEX, move)
    refusal(sharded, f"in {SHARD_3}, but {SHARD_2} holds it")


def test_an_index_that_forgets_a_tensor(sharded: Path) -> None:
    edit_json(sharded / INDEX, lambda index: index["weight_map"].pop("lm_head.weight"))
    refusal(sharded, "holds tensor lm_head.weight, which .* does not name")


@pytest.mark.parametrize("weight_map", [None, {}, [], {"a": 1}])
def test_an_index_without_a_map(sharded: Path, weight_map: object) -> None:
    write_json(sharded / INDEX, {"weight_map": weight_map})
    assert INDEX in refusal(sharded, "weight_map|must be a name").cause


# Tensors


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


@pytest.mark.parametrize(
    "name",
    [
        TRUNK + "norm.weight",
        TRUNK + "layers.0.linear_attn.A_log",
        TRUNK + "layers.3.self_attn.k_norm.weight",
        "mtp.norm.weight",
    ],
)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_invalid_numbers_in_a_small_tensor(tmp_path: Path, name: str, value: float) -> None:
    make_checkpoint(tmp_path)

    def poison(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name][1] = value

    edit_tensors(tmp_path, poison)
    cause = refusal(tmp_path, "1 of .* values that are NaN or infinite").cause
    assert name in cause
    assert SINGLE in cause


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    path = tmp_path / SINGLE
    size = path.stat().st_size

    def shrink(progress: object) -> None:
        if path.stat().st_size == size:
            os.truncate(path, 1000)

    with pytest.raises(CheckpointError, match=f"{SINGLE} shrank to 1,000 bytes") as raised:
        read_checkpoint(tmp_path, on_progress=shrink)
    assert raised.value.next_step


# Tokenizer, template, generation settings


def test_a_missing_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    refusal(folder, r"tokenizer\.json is missing")


def test_more_tokens_than_embedding_rows(folder: Path) -> None:
    data = json.loads(tokenizer_json())
    data["added_tokens"].append({"id": 640, "content": "<|new|>", "special": True})
    write_json(folder / "tokenizer.json", data)
    refusal(folder, "ids up to 640, but the embedding has 640 rows")


def test_a_broken_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{% for %}")
    refusal(folder, "chat template does not parse in line 1")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"eos_token_id": 640}, "eos_token_id must hold ids from 0 to"),
        ({"eos_token_id": [2, -1]}, "holds -1"),
        ({"eos_token_id": "2"}, "holds '2'"),
        ({"eos_token_id": 2, "do_sample": "yes"}, "do_sample must be true or false"),
        ({"eos_token_id": 2, "do_sample": True, "top_p": 2}, "top_p must be a number from 0 to 1"),
        (
            {"eos_token_id": 2, "do_sample": True, "temperature": "hot"},
            "temperature must be a number",
        ),
    ],
)
def test_generation_settings_that_make_no_sense(
    folder: Path, values: dict[str, object], message: str
) -> None:
    write_json(folder / "generation_config.json", values)
    assert "generation_config.json" in refusal(folder, message).cause
