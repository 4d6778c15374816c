# SPDX-License-Identifier: MIT OR Apache-2.0
"""Measuring prices: the trees that are timed, the rounds, the quick table at load, the command."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.cli import main
from engine.commands import bench_prices
from engine.errors import Cancelled, UsageError
from engine.knobs import KnobSet
from engine.load.synthetic import synthetic_weights
from engine.measure import price_run
from engine.measure.price_run import (
    PriceRequest,
    balanced_parents,
    measure_prices,
    quick_block_ms,
    quick_draft_ms,
    quick_prices,
)
from engine.measure.price_store import PriceKey, kept_prices, live_prices
from engine.measure.shapes import named_shape
from engine.model.backend import VERIFY_ROWS, accepted_path, tree_parents
from engine.model.reference import ReferenceBackend
from engine.paths import profile_path
from engine.spec.prices import PriceTable, read_prices, write_prices
from engine.spec.tree import check_order


class TimedBackend:
    """Counts rows as a backend would and lets a pass take a known time on the clock of the module."""

    name = "timed"
    block: object | None = None

    def __init__(self, clock: Clock, capacity: int, per_row_ms: float = 0.1) -> None:
        self.config = named_shape("demo").config
        self.capacity, self.length = capacity, 0
        self._clock, self._per_row_ms = clock, per_row_ms
        self._rows, self._parents = 0, None
        self.lengths: list[int] = []
        self.recorded: set[tuple[int, bool]] = set()

    def reset(self, *, speculate: bool) -> None:
        self.length = 0

    def prefill(self, ids: Sequence[int]) -> None:
        self.length += len(ids)
        assert self.length <= self.capacity

    def verify(self, ids: Sequence[int], parents: Sequence[int] | None = None) -> None:
        assert self.length + len(ids) <= self.capacity
        self._parents = tree_parents(ids, parents)
        self._rows = len(ids)
        key = (self._rows, self._parents is not None)
        tree = 1.5 if self._parents is not None else 1.0
        self._clock.ms += (1.0 + self._per_row_ms * self._rows) * tree
        self._clock.ms += 0.0 if key in self.recorded else 500.0
        self.recorded.add(key)
        self.lengths.append(self.length)

    def commit(self, rows: int) -> None:
        self.length += len(accepted_path(rows, self._rows, self._parents))
        self._clock.ms += 0.01

    def round_bytes(self, rows: int, drafted: int) -> int:
        return 1000

    def engaged(self) -> dict[str, int]:
        return {}


class Clock:
    ms = 0.0

    def perf_counter(self) -> float:
        return self.ms / 1e3


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(price_run, "time", clock)
    return clock


def test_trees_are_balanced_and_in_pre_order() -> None:
    assert balanced_parents(1) == [-1]
    assert balanced_parents(5) == [-1, 0, 1, 1, 0]
    for rows in range(1, 33):
        parents = balanced_parents(rows)
        check_order(parents)
        depths = [0]
        for parent in parents[1:]:
            depths.append(depths[parent] + 1)
        assert len(parents) == rows
        assert max(depths) == rows.bit_length() - 1
        assert all(parents.count(node) <= 2 for node in range(rows))


def test_prices_are_the_pass_and_its_commit_without_the_recording(clock: Clock) -> None:
    backend = TimedBackend(clock, capacity=1400)
    request = PriceRequest(rows=(1, 2, 8, 32), contexts=(1024, 4096), turns=2)
    told: list[str] = []
    classes = measure_prices(backend, request, on_progress=told.append)
    assert list(classes) == [1024]
    assert told[0] == "context classes left out: 4\u202f096; 1\u202f400 positions have no room"
    chain, tree = classes[1024]["chain"], classes[1024]["tree"]
    assert chain == {rows: pytest.approx(1.01 + 0.1 * rows) for rows in (1, 2, 8, 32)}
    assert tree[8] == pytest.approx(1.8 * 1.5 + 0.01)
    assert tree[1] == chain[1]  # a tree of one row is a chain
    assert tree[2] == chain[2]
    assert min(backend.lengths) >= 1024 - 128
    assert max(backend.lengths) < 1024 + 128 + 32
    assert backend.length == 0


def test_requests_that_make_no_table_are_refused(clock: Clock) -> None:
    backend = TimedBackend(clock, capacity=600)
    for changes in (
        {"rows": ()},
        {"rows": (0,)},
        {"rows": (33,)},
        {"contexts": ()},
        {"contexts": (1000,)},
        {"contexts": (512,)},
        {"turns": 0},
        {},
    ):
        with pytest.raises(UsageError) as error:
            measure_prices(backend, PriceRequest(**changes))
        assert error.value.next_step
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        measure_prices(TimedBackend(clock, capacity=1400), PriceRequest(), cancel=cancel)


def test_the_quick_table_takes_little_and_leaves_an_empty_sequence(clock: Clock) -> None:
    backend = TimedBackend(clock, capacity=600)
    backend.recorded = {(rows, tree) for rows in range(33) for tree in (False, True)}
    begun = clock.ms
    quick = quick_prices(backend)
    assert quick is not None
    assert clock.ms - begun < 300
    assert quick.verify_ms("chain", 1, 0) == pytest.approx(1.11)
    assert quick.verify_ms("chain", 32, 0) == pytest.approx(4.21)
    assert quick.verify_ms("tree", 8, 0) == pytest.approx(1.8 * 1.5 + 0.01)
    assert quick.source == "measured at load: 12 row counts on an empty context"
    assert backend.length == 0


def test_the_quick_table_follows_the_slope_where_time_is_short(clock: Clock) -> None:
    backend = TimedBackend(clock, capacity=600, per_row_ms=50.0)
    backend.recorded = {(1, False), (8, False)}
    quick = quick_prices(backend)
    assert quick is not None
    assert quick.verify_ms("chain", 32, 0) == pytest.approx(1.01 + 50.0 * 32)


class CapturingBackend(TimedBackend):
    """One that captures a graph of each pass for each of two sets of records, by turns, in 300 ms."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, capacity=600)
        self.recorded = {(rows, tree) for rows in range(33) for tree in (False, True)}
        self._turn, self._captured = 0, set[tuple[int, bool, int]]()

    def reset(self, *, speculate: bool) -> None:
        super().reset(speculate=speculate)
        self._turn = 0

    def verify(self, ids: Sequence[int], parents: Sequence[int] | None = None) -> None:
        super().verify(ids, parents)
        key = (len(ids), parents is not None, self._turn)
        self._clock.ms += 0.0 if key in self._captured else 300.0
        self._captured.add(key)

    def commit(self, rows: int) -> None:
        super().commit(rows)
        self._turn = 1 - self._turn

    def engaged(self) -> dict[str, int]:
        return {"graph captures": len(self._captured)}


def test_a_capture_is_no_part_of_a_price(clock: Clock) -> None:
    quick, wanted = quick_prices(CapturingBackend(clock)), TimedBackend(clock, capacity=600)
    wanted.recorded = {(rows, tree) for rows in range(33) for tree in (False, True)}
    plain = quick_prices(wanted)
    assert quick is not None
    assert plain is not None
    assert quick.source == plain.source
    for rows in (1, 8, 32):
        assert quick.verify_ms("chain", rows, 0) == pytest.approx(plain.verify_ms("chain", rows, 0))
    assert quick.verify_ms("tree", 8, 0) == pytest.approx(plain.verify_ms("tree", 8, 0))


class DraftingBackend(TimedBackend):
    """One with an MTP head: 0.1 ms a draft and 0.12 ms a step, 3 ms more where a recording is made."""

    def __init__(self, clock: Clock, step_ms: float = 0.12) -> None:
        super().__init__(clock, capacity=600)
        self.config = replace(self.config, mtp_layers=1)
        self._step_ms = step_ms
        self._drafted: set[int] = set()
        self._behind = 0

    def prefill(self, ids: Sequence[int]) -> None:
        super().prefill(ids)
        self._behind = len(ids)

    def draft_steps(self, anchor: int, depth: int, width: int) -> list[object]:
        self._clock.ms += 0.1 + self._step_ms * depth + 0.01 * self._behind
        self._clock.ms += 0.0 if depth in self._drafted else 3.0
        self._drafted.add(depth)
        self._behind = 0
        return []


def test_what_a_draft_takes_is_told_apart_by_its_steps(clock: Clock) -> None:
    backend = DraftingBackend(clock)
    assert quick_draft_ms(backend) == pytest.approx((0.1, 0.12))
    assert backend.length == 0
    assert quick_draft_ms(DraftingBackend(clock, step_ms=300.0)) is None
    assert quick_draft_ms(TimedBackend(clock, capacity=8)) is None


def test_what_a_block_takes_is_timed_behind_one_that_records(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = TimedBackend(clock, capacity=600)
    assert quick_block_ms(backend) is None
    drafts: list[int] = []

    class Block:
        def __init__(self, backend: object) -> None: ...

        def propose(self, anchor: int, limit: int) -> None:
            clock.ms += 1.5 if drafts else 9.0
            drafts.append(limit)

    monkeypatch.setattr(price_run, "BlockDrafter", Block)
    backend.block = object()
    assert quick_block_ms(backend) == pytest.approx(1.5)
    assert backend.length == 0
    assert set(drafts) == {VERIFY_ROWS - 1}


def test_there_is_no_quick_table_of_long_rounds(clock: Clock) -> None:
    assert quick_prices(TimedBackend(clock, capacity=600, per_row_ms=300.0)) is None


def test_prices_come_from_what_is_nearest_to_this_model(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    backend = TimedBackend(clock, capacity=1400)
    assert live_prices(backend, KnobSet({})).source.startswith("measured at load")
    slow = TimedBackend(clock, capacity=1400, per_row_ms=300.0)
    learned = live_prices(slow, KnobSet({}))
    assert learned.source.startswith("shipped default")
    learned.observe("chain", 1, 0, 300.0)
    assert learned.level * learned.curves(0)[0][1] == pytest.approx(300.0)
    key = PriceKey.of(backend, KnobSet({}))
    kept = PriceTable({1024: {"chain": {1: 1.0}, "tree": {1: 1.0}}}, "", {"date": "2026-01-02"})
    write_prices(kept, key.path())
    assert live_prices(backend, KnobSet({})).source == "measured on this machine 2026-01-02"
    given = tmp_path / "given.json"
    write_prices(kept, given)
    assert "QWEN38_STAIR_TABLES" in live_prices(backend, _tables(given)).source
    with pytest.raises(UsageError, match="cannot be read"):
        live_prices(backend, _tables(tmp_path / "none.json"))
    key.path().write_text("{")  # a damaged table of our own stops nothing
    source = live_prices(backend, KnobSet({})).source
    assert source.startswith("measured at load")
    assert "not a table in JSON" in source


def test_the_reference_backend_is_priced_as_it_stands() -> None:
    torch.set_num_threads(1)
    shape = named_shape("demo:4", vocab=64)
    weights = synthetic_weights(shape.config, "bf16")
    backend = ReferenceBackend(shape.config, weights, capacity=1300, dtype=torch.bfloat16)
    quick = quick_prices(backend)
    assert quick is not None
    assert quick.verify_ms("chain", 32, 0) > quick.verify_ms("chain", 1, 0) > 0
    key = PriceKey.of(backend, KnobSet({}))
    assert (key.isa, key.backend, key.threads) == ("torch", "reference", 1)
    backend.prefill([1, 2])
    with pytest.raises(ValueError, match="empty sequence"):
        PriceKey.of(backend, KnobSet({}))


def test_the_command_keeps_a_table_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    torch.set_num_threads(1)
    options = "bench --suite verify --write-tables --shape demo:4 --vocab 64 --turns 1 --threads 1"
    fast = ["--rows", "1,4", "--contexts", "1024", "--knob", "QWEN38_CPU_ISA=reference"]
    assert main([*options.split(), *fast, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    table = read_prices(Path(said["path"]), source="")
    assert list(table.classes) == [1024]
    assert list(table.classes[1024]["chain"]) == [1, 4]
    assert table.provenance["model"] == "demo:4, synthetic"
    assert table.provenance["threads"] == 1
    assert "--shape demo:4" in table.provenance["command"]
    kept = kept_prices(_key(table))
    assert kept is not None
    assert kept.classes == table.classes
    out = tmp_path / "mine.json"
    monkeypatch.setattr(bench_prices, "measure_prices", lambda *_, **__: table.classes)
    assert main([*options.split(), *fast, "--out", str(out)]) == 0
    assert f"written to {out}" in capsys.readouterr().out
    assert out.is_file()
    assert main(["bench", "--write-tables"]) == 2
    assert "--suite verify" in capsys.readouterr().err


def test_prices_of_another_setting_are_not_taken(clock: Clock, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    backend = TimedBackend(clock, capacity=1400)
    kept = PriceTable({1024: {"chain": {1: 1.0}, "tree": {1: 1.0}}}, "", {"date": "2026-01-02"})
    write_prices(kept, PriceKey.of(backend, KnobSet({})).path())
    for change in ({"NVFP4_INT8": "1"}, {"KV_FP8": "1"}, {"NVFP4_SKINNY": "0"}):
        knobs = KnobSet({}).changed({f"QWEN38_{name}": value for name, value in change.items()})
        assert live_prices(backend, knobs).source.startswith("measured at load")
    drafters = KnobSet({}).changed({"QWEN38_MTP_DEPTH": "2", "QWEN38_LOOKUP": "1"})
    assert live_prices(backend, drafters).source.startswith("measured on this machine")


def _tables(path: Path) -> KnobSet:
    return KnobSet({}).changed({"QWEN38_STAIR_TABLES": str(path)})


def _key(table) -> PriceKey:
    shape = named_shape("demo:4", vocab=64)
    weights = synthetic_weights(shape.config, "nvfp4")
    backend = ReferenceBackend(shape.config, weights, capacity=1300, dtype=torch.bfloat16)
    return PriceKey.of(backend, KnobSet.resolve(profile=profile_path("serve"), environ={}))
