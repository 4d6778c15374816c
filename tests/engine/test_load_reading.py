# SPDX-License-Identifier: MIT OR Apache-2.0
"""Reading a folder: progress, a cancel, the memory it needs and what is left open."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checkpoints import (
    SINGLE,
    make_checkpoint,
    values,
)

import engine.load.reader as reader_module
from engine.api import LoadProgress
from engine.errors import Cancelled, MemoryShortError
from engine.load.checkpoint import inspect_checkpoint, memory_need, read_checkpoint
from engine.load.memory import available_memory_bytes
from engine.load.stored import Dense
from engine.load.weights import parts_of


def test_progress_rises_to_the_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "STEP_BYTES", 1000)
    stored = make_checkpoint(tmp_path, shards=2)
    seen: list[LoadProgress] = []
    read_checkpoint(tmp_path, on_progress=seen.append)
    done = [progress.done_bytes for progress in seen]
    total = sum(tensor.nbytes for tensor in stored.values())
    assert done == sorted(done)
    assert done[0] == 0
    assert done[-1] == total
    assert {progress.total_bytes for progress in seen} == {total}
    assert max(b - a for a, b in zip(done, done[1:], strict=False)) <= 1000


def test_cancel_stops_within_a_step_and_a_second_try_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "STEP_BYTES", 1000)
    make_checkpoint(tmp_path)
    cancel, seen = threading.Event(), []

    def cancel_midway(progress: LoadProgress) -> None:
        seen.append(progress.done_bytes)
        if progress.done_bytes > progress.total_bytes // 2:
            cancel.set()

    with pytest.raises(Cancelled):
        read_checkpoint(tmp_path, on_progress=cancel_midway, cancel=cancel)
    assert sum(done > seen[-1] // 2 for done in seen) > 1
    past_half = [done for done in seen if done > seen[-1] - 1000]
    assert len(past_half) == 1  # nothing was read after the cancel
    cancel.clear()
    assert read_checkpoint(tmp_path, cancel=cancel).config.layers == 4


def test_what_is_read_is_no_view_of_anything_larger(tmp_path: Path) -> None:
    """Packing empties a tensor to free its memory; a view's memory would stay with what it was cut from."""
    make_checkpoint(tmp_path, dtype=torch.float32)
    for keep_float32 in (True, False):
        weights = read_checkpoint(tmp_path, keep_float32=keep_float32).weights
        linears = [part for part in parts_of(weights) if isinstance(part, Dense)]
        assert len(linears) > 20
        assert not any(each.weight._is_view() for each in linears)
        assert not weights.embed._is_view()


def test_a_cancel_before_the_start_reads_nothing(tmp_path: Path) -> None:
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        read_checkpoint(tmp_path / "does not matter", cancel=cancel)


def test_the_estimate_counts_what_is_read_and_the_context(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    plan = inspect_checkpoint(tmp_path).plan
    need = memory_need(plan, 100)
    assert need.weight_bytes == read_checkpoint(tmp_path).weight_bytes
    assert need.kv_bytes == 100 * plan.config.kv_bytes_per_token()
    assert memory_need(plan).kv_bytes == 512 * plan.config.kv_bytes_per_token()
    assert memory_need(plan, 10**6) == memory_need(plan)
    config, halved = plan.config, memory_need(plan, 100, scaled_kv=True)
    scales = 4 * config.kv_heads * (len(config.attention_layers) + config.mtp_layers)
    assert halved.kv_bytes == need.kv_bytes // 2 + 100 * 2 * scales
    assert replace(halved, kv_bytes=need.kv_bytes) == need


def test_short_memory_is_refused_with_the_numbers_before_reading(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    need = memory_need(inspect_checkpoint(tmp_path).plan)
    seen: list[LoadProgress] = []
    with pytest.raises(
        MemoryShortError, match=r"needs about 0\.2\d GB.*weights 0\.00 GB.*0\.27 GB are"
    ) as raised:
        read_checkpoint(tmp_path, available_bytes=need.total_bytes - 1, on_progress=seen.append)
    assert not seen
    assert raised.value.kept
    assert raised.value.next_step
    read_checkpoint(tmp_path, available_bytes=need.total_bytes)


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 600000\ninactive_file 50000\n")
    assert available_memory_bytes(tmp_path) == 350_000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory_bytes(tmp_path) > 1_000_000
    assert available_memory_bytes(tmp_path / "none") > 1_000_000


def test_inspecting_reads_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_checkpoint(tmp_path)

    def refuse(*_: object) -> None:
        raise AssertionError("a weight was read")

    monkeypatch.setattr(reader_module.TensorReader, "read", refuse)
    assert inspect_checkpoint(tmp_path).plan.config.layers == 4
    assert (tmp_path / SINGLE).exists()


def test_no_file_stays_open(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, shards=2)
    opened = read_checkpoint(tmp_path)
    mapped = Path("/proc/self/maps")
    if not mapped.exists():
        pytest.skip("this system does not list its maps")
    assert str(tmp_path) not in mapped.read_text()
    kept = [part.clone() for part in values(opened.weights)[:2]]
    for file in tmp_path.glob("*.safetensors"):
        file.write_bytes(b"\0" * file.stat().st_size)
    assert all(map(torch.equal, kept, values(opened.weights)[:2]))


def file_rss_bytes() -> int:
    """Resident bytes of this process that are pages of mapped files."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if "RssFile" in x)
    return 1024 * int(line.split()[1])


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="needs the resident sizes of Linux"
)
def test_copied_pages_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "STEP_BYTES", 4 << 20)
    make_checkpoint(tmp_path, vocab_size=200_000)  # two tables of 25.6 MB
    resident: list[int] = []
    read_checkpoint(tmp_path, on_progress=lambda _: resident.append(file_rss_bytes()))
    assert max(resident) - resident[0] < 12 << 20
