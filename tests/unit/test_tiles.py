# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tile tables: what is read, and that every wrong one is refused with the entry and the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from engine.errors import UsageError
from engine.model.tiles import read_tiles, shape_key
from kernels.bf16_linear.pack import pack_bf16
from kernels.cpu.blocking import DEFAULT, Blocking


def table(folder: Path, content: object) -> Path:
    path = folder / "tiles.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


def test_sizes_are_found_by_the_shape_of_the_stored_product(tmp_path: Path) -> None:
    packed = pack_bf16([torch.zeros(20, 64, dtype=torch.bfloat16)] * 2)
    assert shape_key(packed) == "64x64"
    entry = {"rows": 4, "tiles": 8, "inputs": 256, "ahead_bytes": 128, "tuned_gbps": 1.5}
    read = read_tiles(
        table(tmp_path, {"date": "x", "tiles": {"64x64": entry, "16x32": {}}}), "avx2"
    )
    assert read.of(packed) == Blocking(rows=4, tiles=8, inputs=256, ahead_bytes=128)
    assert read.sizes["16x32"] == DEFAULT
    assert read.of(pack_bf16([torch.zeros(20, 32, dtype=torch.bfloat16)])) is None


def level_of(rows: int, cpu: str = "") -> dict[str, object]:
    origin = {"machine": {"cpu_model": cpu}} if cpu else {}
    return {"tiles": {"16x16": {"rows": rows}}, "tiles_from": origin}


def test_sizes_measured_at_another_level_are_not_used(tmp_path: Path) -> None:
    path = table(tmp_path, {"levels": {"avx2": level_of(2, "one"), "amx": level_of(4, "other")}})
    for level, rows, cpu in (("avx2", 2, "one"), ("amx", 4, "other")):
        read = read_tiles(path, level)
        assert read.sizes == {"16x16": Blocking(rows=rows)}
        assert (read.unfit, read.measured_on) == ("", cpu)
    read = read_tiles(path, "portable")
    assert not read.sizes
    assert read.unfit == "measured at amx, avx2, this is portable"


def test_a_plain_table_serves_the_level_that_it_names_or_every_one(tmp_path: Path) -> None:
    plain = {"tiles": {"16x16": {"rows": 1}}}
    named = {**plain, "tiles_from": {"isa": "amx"}}
    assert read_tiles(table(tmp_path, plain), "avx2").sizes == {"16x16": Blocking(rows=1)}
    assert read_tiles(table(tmp_path, named), "amx").sizes == {"16x16": Blocking(rows=1)}
    assert read_tiles(table(tmp_path, named), "avx2").unfit == "measured at amx, this is avx2"
    # A level's own table goes first.
    path = table(tmp_path, {**plain, "levels": {"avx2": level_of(2)}})
    assert read_tiles(path, "avx2").sizes == {"16x16": Blocking(rows=2)}
    assert read_tiles(path, "amx").sizes == {"16x16": Blocking(rows=1)}
    path = table(tmp_path, {"tiles": {}, "levels": {"avx2": level_of(2)}})
    assert read_tiles(path, "amx").unfit == "measured at avx2, this is amx"


def test_another_devices_table_is_not_read(tmp_path: Path) -> None:
    assert not read_tiles(table(tmp_path, {"cuda": {"16x16": {"wk": 8}}}), "avx2").sizes


def test_no_path_is_an_empty_table() -> None:
    assert not read_tiles(None, "avx2").sizes
    assert read_tiles(None, "avx2").digest == ""


def test_the_digest_follows_the_contents(tmp_path: Path) -> None:
    first = read_tiles(table(tmp_path, {"tiles": {}}), "avx2").digest
    assert first != read_tiles(table(tmp_path, {"tiles": {"16x16": {}}}), "avx2").digest
    assert first == read_tiles(table(tmp_path, {"tiles": {}}), "avx2").digest


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"tiles": {"16x16": {}, "16x16": {}}}', "'16x16' stands twice"),
        ('{"tiles": {"16x16": {"rows": ' + "9" * 5000 + "}}}", "not JSON"),
        ([], 'no object "tiles"'),
        ({"tiles": []}, 'no object "tiles"'),
        ({"levels": []}, '"levels" is not an object'),
        ({"levels": {"avx2": []}}, 'no object "levels.avx2.tiles"'),
        ({"levels": {"amx": {"tiles": {"16": {}}}}}, "'16' is no shape"),
        ({"tiles": {"16": {}}}, "'16' is no shape"),
        ({"tiles": {"20x16": {}}}, "'20x16' is no shape"),
        ({"tiles": {"0x16": {}}}, "'0x16' is no shape"),
        ({"tiles": {"16x-1": {}}}, "'16x-1' is no shape"),
        ({"tiles": {"16x" + "9" * 9000: {}}}, "is no shape"),
        ({"tiles": {"16x16": 3}}, "entry 16x16 is not an object"),
        ({"tiles": {"16x16": {"rows": True}}}, "entry 16x16: rows is not a whole number"),
        (
            {"tiles": {"16x16": {"rowz": 4}}},
            "entry 16x16 names none of rows, tiles, inputs, ahead_bytes",
        ),
        ({"tiles": {"16x16": {"tiles": 2.0}}}, "entry 16x16: tiles is not a whole number"),
        ({"tiles": {"16x16": {"tiles": 3}}}, "tiles must lie in 2..64, in steps of 2, got 3"),
        ({"tiles": {"16x16": {"rows": 17}}}, "rows must lie in 0..16, got 17"),
        ({"tiles": {"16x16": {"ahead_bytes": 100}}}, "ahead_bytes must lie in"),
        ({"tiles": {"16x16": {"inputs": 64}}}, "change the order of the sum over K"),
        ({"tiles": {"16x16": {"wk": 8}}}, "wk would change the order of the sum over K"),
        ({"tiles": {"16x16": {"split_k": 2}}}, "split_k would change the order of the sum over K"),
    ],
)
def test_a_wrong_table_is_refused(content: object, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_tiles(table(tmp_path, content), "avx2")
    assert said in caught.value.cause
    assert "tiles.json is not used" in caught.value.cause
    assert caught.value.kept
    assert "rondo tune" in caught.value.next_step


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    for path, said in (
        (tmp_path, "cannot be read"),
        (tmp_path / "absent.json", "cannot be read"),
        (tmp_path / "a\0b", "cannot be read"),
        (table(tmp_path, " " * (5 << 20)), "larger than"),
    ):
        with pytest.raises(UsageError, match=said):
            read_tiles(path, "avx2")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(UsageError, match="not JSON"):
        read_tiles(tmp_path / "bytes.json", "avx2")
