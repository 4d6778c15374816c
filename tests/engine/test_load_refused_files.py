# SPDX-License-Identifier: MIT OR Apache-2.0
"""Weight files that are refused: missing, cut or damaged shards, headers and indexes that do not fit."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest
import refusals
from checkpoints import (
    INDEX,
    SINGLE,
    edit_json,
    write_json,
)
from refusals import SHARD_2, SHARD_3, refusal

from engine.numbers import grouped

folder, sharded = refusals.folder, refusals.sharded


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
    assert f"needs {grouped(whole)} bytes, the file has {grouped(whole - 1000)}" in cause


@pytest.mark.parametrize("name", [SHARD_2, "tokenizer.json", "config.json"])
def test_a_git_lfs_pointer(sharded: Path, name: str) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 5\n"
    (sharded / name).write_text(pointer)
    assert "git lfs pull" in refusal(sharded, f"{name} is a Git LFS pointer").next_step


def test_bytes_after_the_last_tensor(folder: Path) -> None:
    with (folder / SINGLE).open("ab") as file:
        file.write(b"\0" * 8)
    refusal(folder, f"{SINGLE} has bytes after its last tensor")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "has 0 bytes; a safetensors file has at least 8"),
        (b"\1\2\3", "has 3 bytes"),
        (
            struct.pack("<Q", 2**63) + b"{}",
            "claims a header of 9\u202f223\u202f372\u202f036\u202f854\u202f775\u202f808 bytes",
        ),
        (
            struct.pack("<Q", 90_000_000) + b"{}",
            r"needs 90\u202f000\u202f008 bytes, the file has 10",
        ),
        (struct.pack("<Q", 2) + b"[]", "must hold a JSON object"),
        (struct.pack("<Q", 2) + b"\xff\xff", "header is not UTF-8"),
        (struct.pack("<Q", 200_000) + b"[" * 200_000, "nested too deeply|not valid JSON"),
    ],
    ids=["empty", "stub", "bomb", "longer than file", "list", "bytes", "deep"],
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
        (
            {"a": tensor(0, 2**62, [2**61])},
            8,
            "cut short: its header needs 4\u202f611\u202f686\u202f018\u202f427\u202f38",
        ),
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
