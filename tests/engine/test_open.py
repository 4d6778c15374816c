# SPDX-License-Identifier: MIT OR Apache-2.0
"""Opening a model: what its card says, what a failure leaves behind, and what runs when the kernels cannot."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path

import pytest
import torch
from checkpoints import make_checkpoint

import engine.model.choose as choose
from engine import Engine
from engine.api import GenerateRequest, LoadProgress
from engine.errors import Cancelled, MemoryShortError, UsageError
from engine.measure.kernel_table import kernel_table
from kernels.tape import Pool

REFERENCE = {"QWEN38_CPU_ISA": "reference"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_checkpoint(folder, max_position_embeddings=1024)
    return folder


def test_the_card_counts_the_same_weights_whichever_kernels_run(model: Path) -> None:
    with Engine.open(model, threads=1) as native:
        card = native.card
    assert card.backend == "native"
    stored = (model / "model.safetensors").stat().st_size
    assert 0.9 * stored < card.weight_bytes <= stored
    with Engine.open(model, threads=1, knobs=REFERENCE) as reference:
        assert reference.card.weight_bytes == card.weight_bytes
        assert reference.card.state_bytes == card.state_bytes


@pytest.mark.parametrize(("asked", "expected"), [(None, 3), (2, 2)])
def test_weights_are_packed_on_all_cores_whatever_the_model_before_ran_on(
    model: Path, monkeypatch: pytest.MonkeyPatch, asked: int | None, expected: int
) -> None:
    monkeypatch.setattr(choose, "physical_cores", lambda: 3)
    monkeypatch.setattr(choose, "choose_threads", lambda *_: 1)
    packed_on: list[int] = []

    def told(progress: LoadProgress) -> None:
        if progress.stage.startswith("packing"):
            packed_on.append(torch.get_num_threads())

    for _ in range(2):
        Engine.open(model, threads=asked, on_progress=told).close()
    assert set(packed_on) == {expected}


@pytest.mark.parametrize("tokens", [1, 256, 257, 513])
def test_the_kernel_table_is_a_share_of_the_rounds(model: Path, tokens: int) -> None:
    """Passes of the prompt are no part of a round, whatever its last chunk is."""
    with Engine.open(model, threads=1) as opened:
        ids = tuple((7 * at + 3) % 600 for at in range(tokens))
        done = opened.generate(GenerateRequest(token_ids=ids, max_tokens=6))
        table = opened.kernel_table()
    assert table.rounds == done.rounds
    assert 0 < sum(row.share_pct for row in table.rows) <= 100
    assert table.unaccounted_ms >= 0
    assert {row.calls for row in table.rows if row.name == "head"} == {done.rounds}


def test_an_empty_kernel_table_says_whether_a_round_will_fill_it(model: Path) -> None:
    prompt = GenerateRequest(token_ids=(3, 4), max_tokens=2)
    with Engine.open(model, threads=1) as native:
        before = native.kernel_table()
    assert (before.rows, before.unavailable, before.waits) == ((), "no round has run yet", True)
    with Engine.open(model, threads=1, knobs=REFERENCE) as reference:
        tables = [reference.kernel_table()]
        reference.generate(prompt)
        tables.append(reference.kernel_table())
    for table in tables:
        assert (table.rows, table.waits) == ((), False)
        assert table.unavailable.startswith("PyTorch operations run")


def test_rounds_without_a_timed_operation_wait_for_one() -> None:
    table = kernel_table([], 4, 8.0)
    assert (table.rows, table.rounds, table.waits) == ((), 4, True)
    assert table.unavailable == "no operation of a round was timed since the last reset"


def test_a_closed_engine_is_freed_without_the_collector(model: Path) -> None:
    """A comparison that reloads turns the collector off, and a second copy of a large model has no room."""
    gc.collect()
    gc.disable()
    try:
        opened = Engine.open(model, threads=1, knobs={"QWEN38_LEN_SWITCH": "1"})
        opened.close()
        gone = weakref.ref(opened)
        del opened
        assert gone() is None
    finally:
        gc.enable()


def test_the_passes_that_time_prices_are_of_no_round(model: Path) -> None:
    with Engine.open(model, threads=1, knobs={"QWEN38_LEN_SWITCH": "1"}) as opened:
        assert opened.kernel_table().rows == ()


@pytest.mark.parametrize("last", ["packing layer 1 ", "packing layer 4", "timing a round"])
def test_a_cancelled_load_stops_its_workers(
    monkeypatch: pytest.MonkeyPatch, model: Path, last: str
) -> None:
    pools: list[Pool] = []
    started = Pool.__init__

    def remember(self: Pool, *arguments: object) -> None:
        started(self, *arguments)
        pools.append(self)

    monkeypatch.setattr(Pool, "__init__", remember)
    cancel = threading.Event()

    def stop(progress: LoadProgress) -> None:
        if progress.stage.startswith("packing layer 1 "):
            assert pools
        if progress.stage.startswith(last):
            cancel.set()

    with pytest.raises(Cancelled):
        Engine.open(model, threads=2, on_progress=stop, cancel=cancel)
    assert len(pools) == 1
    assert pools[0].handle is None


def test_a_cache_folder_that_refuses_leaves_the_pytorch_operations(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: Path
) -> None:
    (tmp_path / "rondo" / "native" / "build.lock").mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with Engine.open(model, threads=1) as opened:
        assert opened.card.backend == "reference"
        assert "build.lock" in opened.card.notices[-1]
        assert opened.generate(GenerateRequest(prompt="the pace", max_tokens=2)).token_ids


def test_weights_that_do_not_fit_unpacked_are_refused_with_the_numbers(
    monkeypatch: pytest.MonkeyPatch, model: Path
) -> None:
    monkeypatch.setattr(choose, "available_memory_bytes", lambda: choose.FLOOR_BYTES + 100_000)
    with pytest.raises(MemoryShortError, match="GB are free"):
        Engine.open(model, threads=1, knobs=REFERENCE)


@pytest.mark.parametrize("threads", [0, 257])
@pytest.mark.parametrize("knobs", [REFERENCE, {}])
def test_a_thread_count_no_pool_takes_is_refused(
    model: Path, threads: int, knobs: dict[str, str]
) -> None:
    with pytest.raises(UsageError, match="1 to 256"):
        Engine.open(model, threads=threads, knobs=knobs)
