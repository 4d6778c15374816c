# SPDX-License-Identifier: MIT OR Apache-2.0
"""The plan of a GPU round: its bytes are those of stored weights, its times follow from them."""

from __future__ import annotations

import argparse
import json
import threading

import pytest

from engine.cli import main
from engine.commands.bench_plan import run_plan_suite
from engine.errors import MemoryShortError, UsageError
from engine.load.synthetic import synthetic_weights
from engine.measure.plan import LABEL, MACHINES, Product, make_plan
from engine.measure.shapes import named_shape
from engine.model.byte_model import ByteModel


@pytest.mark.parametrize("name", ["demo", "qwen3.5-0.8b:4"])
def test_the_bytes_are_those_of_the_stored_weights(name: str) -> None:
    shape = named_shape(name, vocab=512)
    model = ByteModel.of(shape.config, synthetic_weights(shape.config, "nvfp4"))
    for context in (0, 700):
        row = make_plan(shape, (8,), context).rows[0]
        assert row.cpu_bytes_per_round == model.round_bytes(8, 0, context)
        assert row.bytes_per_round == row.cpu_bytes_per_round + model.state_bytes


def test_a_27b_round_moves_what_is_published() -> None:
    """15.01 GB of stored weights and head, 151 MB of state read and written, 65.5 kB of KV a token."""
    shape = named_shape("qwen3.8-27b")
    empty, full = (make_plan(shape, (1,), context).rows[0] for context in (0, 1000))
    assert empty.bytes_per_round == pytest.approx(15.01e9 + 2 * 151e6, rel=0.01)
    assert full.bytes_per_round - empty.bytes_per_round == 65_536 * 1000
    gb10, h200 = make_plan(shape, (1,), 0).rows
    assert gb10.bytes_ms == pytest.approx(64, rel=0.03)
    assert (gb10.machine, gb10.bound) == ("GB10", "memory")
    assert gb10.predicted_ms == gb10.bytes_ms == pytest.approx(gb10.bytes_per_round / 233e6)
    assert h200.bytes_ms == pytest.approx(h200.bytes_per_round / 4300e6)
    assert h200.predicted_ms == max(h200.bytes_ms, h200.matrix_ms, h200.decode_ms)


def test_seventeen_rows_take_two_instructions_a_tile() -> None:
    plan = make_plan(named_shape("qwen3.8-27b:4"), (1, 16, 17, 32), 32)
    one, sixteen, seventeen, most = (row.matrix_instructions for row in plan.rows[:4])
    assert one == sixteen
    assert seventeen == most == 2 * one
    assert len({row.bytes_per_round for row in plan.rows}) == 1
    assert len({row.decode_instructions for row in plan.rows}) == 1


def test_the_counts_of_one_product() -> None:
    product = Product("gate", 17408, 5120, "nvfp4")
    assert product.nbytes == 17408 * 5120 * 9 // 16 + 4
    assert product.matrix_instructions(16) == 2176 * 320
    assert product.decode_instructions == 17408 * 5120 // 2 * 4
    small = Product("in_a", 48, 5120, "bf16")
    assert (small.nbytes, small.matrix_instructions(8), small.decode_instructions) == (491520, 0, 0)


NEVER = threading.Event()


def _arguments(**changes: object) -> argparse.Namespace:
    values = {"shape": "qwen3.8-27b", "vocab": None, "rows": None, "context": 32, "json": False}
    values |= {"no_native": True, "no_roof": True, "threads": 1, "turns": 1, "knob": []}
    return argparse.Namespace(profile="serve", **(values | changes))


def test_every_form_of_the_plan_says_that_it_is_predicted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_plan_suite(_arguments(), NEVER) == 0
    told = capsys.readouterr().out.splitlines()
    assert LABEL in told[0]
    assert told[-1] == "native CPU: left out by --no-native"
    assert run_plan_suite(_arguments(rows="1,32", json=True), NEVER) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["label"] == LABEL
    assert [(row["machine"], row["rows"]) for row in values["rows"]] == [
        (machine.name, rows) for machine in MACHINES for rows in (1, 32)
    ]


def test_the_native_figures_are_measured_in_the_same_run_by_the_same_bytes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = [
        "bench",
        "--suite",
        "plan",
        "--shape",
        "qwen3.5-0.8b",
        "--vocab",
        "256",
        "--rows",
        "1,8",
    ]
    command += ["--turns", "1", "--threads", "1", "--no-roof"]
    assert main([*command, "--json"]) == 0
    native = json.loads(capsys.readouterr().out)["native"]
    assert (native["shape"], native["threads"]) == ("qwen3.5-0.8b:4", 1)
    assert "4 of 24 layers" in native["shape_note"]
    plan = make_plan(named_shape("qwen3.5-0.8b:4", vocab=256), (1, 8), 32)
    assert [row["rows"] for row in native["rows"]] == [1, 8]
    for row in native["rows"]:
        (gb10, h200) = (each for each in plan.rows if each.rows == row["rows"])
        assert row["bytes_per_round"] == pytest.approx(gb10.cpu_bytes_per_round, rel=0.01)
        assert row["read_gbps"] == pytest.approx(row["bytes_per_round"] / row["ms_median"] / 1e6)
        assert row["predicted_ms"] == {"GB10": gb10.predicted_ms, "H200": h200.predicted_ms}


def test_a_plan_stands_where_the_processor_cannot_be_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*_: object, **__: object) -> None:
        raise MemoryShortError("This needs more than is free.")

    monkeypatch.setattr("engine.commands.bench_plan.measure_native", short)
    assert run_plan_suite(_arguments(no_native=False, json=True), NEVER) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["native"] == {"not_available": "This needs more than is free."}
    assert values["rows"]


@pytest.mark.parametrize("changes", [{"rows": "0"}, {"rows": "33"}, {"rows": "a"}, {"context": -1}])
def test_a_request_that_plans_nothing_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        run_plan_suite(_arguments(**changes), NEVER)
