# SPDX-License-Identifier: MIT OR Apache-2.0
"""How a sweep finds sizes: what it times, what it drops, what has to be proven, and what it says meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tune_world import FASTER, make_small, make_timed, no_flush, one, wrong_bits

from engine.load.synthetic import synthetic_weights
from engine.measure import tune as tuning
from engine.measure import tune_case
from engine.measure.shapes import Shape, named_shape
from engine.model.native_weights import NativeWeights
from engine.model.projection import Packing
from engine.model.tiles import shape_key
from kernels.build import load_library
from kernels.cpu.blocking import DEFAULT, Blocking
from kernels.cpu.product import PackedLinear
from kernels.probe import CacheFlush, last_level_cache_bytes
from kernels.tape import Pool


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    make_timed(monkeypatch)


def run_tune(pool: Pool, turns: int = 1, **options: Any) -> list[tuning.TuneRow]:
    return tuning.tune(
        [named_shape("demo")],
        weight_format="nvfp4",
        rows=(1, 2),
        pool=pool,
        turns=turns,
        **options,
    )


@pytest.mark.usefixtures("small")
def test_a_setting_that_gains_less_than_the_margin_stays_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        tune_case.Case, "_run", lambda case, rows, setting: 1.0 - 0.01 * (setting.rows == 1)
    )
    with Pool(load_library(), 1) as pool:
        (row,) = run_tune(pool)
    assert row.blocking == DEFAULT
    assert row.tuned_gbps == row.default_gbps
    assert row.settings == 4


@pytest.mark.usefixtures("small")
def test_a_gain_that_shows_in_one_comparison_alone_stays_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, last_fast = [], [0]

    def times(
        case: object, settings: list[Blocking], *_: object, **__: object
    ) -> dict[Blocking, float]:
        calls.append(settings)
        fast = 0.5 if len(calls) <= last_fast[0] else 1.0
        return {setting: fast if setting.rows == 1 else 1.0 for setting in settings}

    monkeypatch.setattr(tune_case.Case, "times", times)
    monkeypatch.setattr(tuning, "SWEEP", (("rows", (1,)), ("inputs", (256,))))
    for lasting, kept in ((3, DEFAULT), (4, Blocking(rows=1))):
        calls.clear()
        last_fast[0] = lasting
        with Pool(load_library(), 1) as pool:
            (row,) = run_tune(pool)
        assert len(calls) == 4
        assert row.blocking == kept


@pytest.mark.usefixtures("small", "timed")
def test_only_the_chosen_setting_is_proven_and_at_every_row_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # One that is tried and thrown away would not hold.
    monkeypatch.setattr(tuning, "SWEEP", (("rows", (1, 4)), ("inputs", (128, 256))))
    computed = wrong_bits(monkeypatch, inputs=128)
    with Pool(load_library(), 1) as pool:
        (row,) = run_tune(pool)
        assert row.blocking == FASTER
        assert computed == [
            (rows, setting) for rows in range(1, 33) for setting in (FASTER, DEFAULT)
        ]
        computed.clear()
        monkeypatch.setattr(tune_case.Case, "_run", lambda case, rows, setting: 1.0)
        (row,) = run_tune(pool)
    assert row.blocking == DEFAULT
    assert not computed


@pytest.mark.usefixtures("small")
def test_clearly_slower_settings_get_one_turn_and_are_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow, near, fast = Blocking(rows=1), Blocking(rows=2), Blocking(rows=4)
    speeds = {DEFAULT: 1.5, slow: 1.3, near: 1.1, fast: 1.0}
    ran, left = [], []
    run = tune_case.Case._run

    def timed_run(case: tune_case.Case, rows: int, setting: Blocking) -> float:
        run(case, rows, setting)
        ran.append((rows, setting))
        return speeds[setting]

    monkeypatch.setattr(tune_case.Case, "_run", timed_run)
    with Pool(load_library(), 1) as pool:
        case = tune_case.Case(one("nvfp4"), (1, 2), pool, no_flush(pool), 0)
        times = case.times(speeds, 3, reach=1.15, on_left=left.append)
    # The first is what the others have to beat: it stays whatever it took.
    assert times == {DEFAULT: 3.0, near: 2.2, fast: 2.0}
    assert left == [3]
    first = [(rows, each) for rows in (1, 2) for each in speeds]
    later = [(rows, each) for rows in (1, 2) for each in (DEFAULT, near, fast)]
    assert ran == first + 2 * later
    assert {setting for _, setting in case._tapes} == {DEFAULT, near, fast}
    case.forget([near])
    assert {setting for _, setting in case._tapes} == {DEFAULT, fast}


@pytest.mark.usefixtures("timed", "small")
def test_progress_numbers_the_products_and_tells_the_time_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Two products of which the second reads twice as much a run, on a clock that runs are taken from.
    small_one = one("nvfp4")
    big = replace(small_one, tiles=6, weight=torch.cat([small_one.weight] * 2))
    monkeypatch.setattr(tuning, "products", lambda *_, **__: iter([small_one, big]))
    monkeypatch.setattr(tuning, "copies", lambda packed: packed.tiles // 3)
    now = [0.0]
    monkeypatch.setattr(tuning.time, "monotonic", lambda: now[0])

    def best(case: tune_case.Case, packed: PackedLinear, *_: object) -> tuning.TuneRow:
        case.timed_ms, now[0] = 30e3, now[0] + 40
        return tuning.TuneRow(case.key, DEFAULT, (1,), 1.0, 1.0, 1)

    monkeypatch.setattr(tuning, "_best", best)
    lines: list[str] = []
    with Pool(load_library(), 1) as pool:
        run_tune(pool, on_progress=lines.append)
    ratio = 2 * big.weight_bytes / small_one.weight_bytes
    left_s = 30 * ratio + 10
    assert lines == [
        "finding the products",
        "product 1 of 2 (48x512): begun",
        "product 1 of 2 (48x512): the default is as good",
        f"product 2 of 2 (96x512): begun; about {left_s / 60:.0f} min left",
        f"product 2 of 2 (96x512): the default is as good; about {left_s - 40:.0f} s left",
    ]


@pytest.mark.parametrize("weight_format", ["nvfp4", "fp8"])
def test_every_product_of_the_shapes_is_met_once(weight_format: str) -> None:
    """As a model of the shape packs them, though one layer of each kind is made."""
    shapes = [named_shape("demo:4", vocab=80), named_shape("demo"), wider(named_shape("demo:4"))]
    met = [shape_key(each) for each in tune_case.products(shapes, weight_format, Packing())]
    assert len(met) == len(set(met))
    wanted = set()
    for shape in shapes:
        weights = synthetic_weights(shape.config, weight_format)
        packed = NativeWeights.pack(shape.config, weights, positions=1, packing=Packing())
        for projection in (
            *(each for layer in packed.layers for each in tune_case._projections(layer)),
            packed.head,
        ):
            function = tune_case.FUNCTIONS[weight_format]
            wanted |= {shape_key(p) for p, _ in projection.products if p.function == function}
    assert set(met) == wanted
    assert ("80x256" in wanted) == (weight_format == "fp8")


def wider(shape: Shape) -> Shape:
    config = replace(shape.config, intermediate_size=2 * shape.config.intermediate_size)
    return replace(shape, config=config)


def test_a_run_reads_each_copy_once_after_memory_beyond_every_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tune_case, "_RUN_BYTES", 1 << 20)
    packed = one("fp8")
    with Pool(load_library(), 1) as pool:
        flush = CacheFlush(pool)
        case = tune_case.Case(packed, (1, 3), pool, flush, 0)
        assert sum(each.weight_bytes for each in case._copies) >= 1 << 20
        assert all(shape_key(each) == shape_key(packed) for each in case._copies)
        assert len({each.weight.data_ptr() for each in case._copies}) == len(case._copies)
        times = case.times([DEFAULT, FASTER], 2)
        assert all(ms > 0 for ms in times.values())
        assert len(case._tapes) == 4
        # The flush is no part of the time.
        ms = case._run(3, FASTER)
        steps_ms = case._tapes[3, FASTER].step_ms()
        assert ms == pytest.approx(steps_ms[1:].sum() / len(case._copies))
        for tape in case._tapes.values():
            assert tape.names == ["flush"] + ["linear"] * len(case._copies)
            assert tape.models[0].bytes_read == flush.nbytes > 2 * last_level_cache_bytes()
    monkeypatch.setattr(tune_case, "_RUN_BYTES", 1 << 40)
    assert tune_case.copies(packed) == tune_case._MOST_COPIES
