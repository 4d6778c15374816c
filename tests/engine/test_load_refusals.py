# SPDX-License-Identifier: MIT OR Apache-2.0
"""Folders, small files and other models that are refused: the message names the file and what to do."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import refusals
import torch
from checkpoints import (
    INDEX,
    SINGLE,
    edit_config,
    edit_json,
    edit_tensors,
    tokenizer_json,
    write_json,
)
from refusals import TRUNK, refusal

from engine.errors import UnsupportedModelError

folder = refusals.folder


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
def test_something_else_where_a_file_should_be(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()
    assert name in refusal(folder, "is a folder where a file is expected").cause
    (folder / name).rmdir()
    os.mkfifo(folder / name)  # which a read would wait for
    assert name in refusal(folder, "is a pipe or a device where a file is expected").cause


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


@pytest.mark.parametrize("model_type", ["qwen4_exp", "qwen3_next", "llama"])
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
