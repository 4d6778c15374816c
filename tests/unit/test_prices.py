# SPDX-License-Identifier: MIT OR Apache-2.0
"""Price tables: interpolation, files that are refused, the store, prices that follow the rounds."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import UsageError
from engine.measure.price_store import PriceKey, given_prices, kept_prices
from engine.paths import price_tables_dir, shipped_prices
from engine.spec.default_prices import default_prices
from engine.spec.prices import PriceTable, parse_prices, read_prices, write_prices
from engine.spec.staircut_prices import LivePrices

CLASSES = {
    "1024": {"chain": {"1": 1.0, "2": 1.2, "8": 3.0}, "tree": {"2": 1.3, "8": 3.6}},
    "4096": {"chain": {"1": 2.0, "2": 2.2, "8": 4.0}, "tree": {"2": 2.3, "8": 4.6}},
}


def table(values: object = CLASSES) -> PriceTable:
    return parse_prices(json.dumps(values), name="t.json", source="a test")


def test_prices_are_linear_in_rows_and_in_the_logarithm_of_the_context() -> None:
    prices = table()
    assert prices.verify_ms("chain", 1, 0) == 1.0
    assert prices.verify_ms("chain", 5, 500) == pytest.approx(1.2 + 1.8 * 3 / 6)
    assert prices.verify_ms("tree", 2, 900) == pytest.approx(1.3)
    # One curve serves 256 tokens at the price of their middle.
    share = math.log2((8 + 0.5) * 256 / 1024) / 2
    assert prices.verify_ms("chain", 2, 2048) == pytest.approx(1.2 + share)
    assert prices.verify_ms("chain", 2, 2048) == prices.verify_ms("chain", 2, 2303)
    assert prices.verify_ms("chain", 2, 2303) < prices.verify_ms("chain", 2, 2304)


def test_prices_are_flat_beyond_what_was_measured() -> None:
    prices = table()
    assert prices.verify_ms("chain", 32, 0) == prices.verify_ms("chain", 8, 0) == 3.0
    assert prices.verify_ms("tree", 1, 0) == 1.3
    assert prices.verify_ms("chain", 8, 1 << 19) == 4.0
    assert prices.verify_ms("chain", 40, 0) == 3.0


def test_a_curve_is_made_once() -> None:
    prices = table()
    assert prices.curves(300) is prices.curves(400)
    chain, tree = prices.curves(0)
    assert len(chain) == len(tree) == 33
    assert chain[4] == prices.verify_ms("chain", 4, 0)


def test_falling_prices_are_kept_and_noted() -> None:
    kinds = {"chain": {"1": 2.0, "4": 1.5, "8": 3.0}, "tree": {"4": 2.0}}
    prices = table({"1024": kinds})
    assert prices.notes == ("1024 chain: 4 rows cost less than 1",)
    assert prices.verify_ms("chain", 4, 0) == 1.5


def with_chain(rows: object) -> dict:
    return {"1024": {"chain": rows, "tree": {"2": 1.0}}}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([], "not an object"),
        ({}, "no context class"),
        ({"_provenance": {}}, "no context class"),
        ({"_provenance": [], **CLASSES}, "_provenance is not an object"),
        ({"_provenance": {"colour": "red"}, **CLASSES}, "unknown key 'colour'"),
        ({"_provenance": {"note": ["a"]}, **CLASSES}, "note: not a text"),
        ({"note": "x", **CLASSES}, "'note' is no context class"),
        ({"1000": CLASSES["1024"]}, "'1000' is no context class"),
        ({"512": CLASSES["1024"]}, "'512' is no context class"),
        ({"01024": CLASSES["1024"]}, "'01024' is no context class"),
        ({"2097152": CLASSES["1024"]}, "is no context class"),
        ({"1024": {"chain": {"1": 1.0}}}, "exactly chain and tree"),
        ({"1024": {**CLASSES["1024"], "graph": {"1": 1.0}}}, "exactly chain and tree"),
        ({"1024": 3}, "exactly chain and tree"),
        (with_chain({}), "1024, chain: not an object"),
        (with_chain([1.0]), "1024, chain: not an object"),
        (with_chain({"0": 1.0}), "'0' is no row count"),
        (with_chain({"33": 1.0}), "'33' is no row count"),
        (with_chain({"02": 1.0}), "'02' is no row count"),
        (with_chain({"²": 1.0}), "no row count"),
        (with_chain({"2": -1.0}), "2 rows: -1.0 is no positive"),
        (with_chain({"2": 0}), "no positive number"),
        (with_chain({"2": True}), "no positive number"),
        (with_chain({"2": "1"}), "no positive number"),
        (with_chain({"2": None}), "no positive number"),
        (with_chain({"2": 1e300}), "no positive number"),
        (with_chain({"2": float("nan")}), "NaN is no price"),
        (with_chain({"2": float("inf")}), "Infinity is no price"),
    ],
)
def test_a_file_that_is_no_table_is_refused(values: object, reason: str) -> None:
    with pytest.raises(UsageError) as error:
        table(values)
    assert reason in error.value.cause
    assert error.value.cause.startswith("t.json: ")
    assert error.value.kept
    assert error.value.next_step


@pytest.mark.parametrize(
    "text", ["", "{", '{"1024": {"chain": {"1": 1, "1": 2}, "tree": {"1": 1}}}', "[" * 100_000]
)
def test_text_that_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a table in JSON"):
        parse_prices(text, name="t.json", source="")


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    huge, binary = tmp_path / "huge.json", tmp_path / "binary.json"
    huge.write_text(" " * ((1 << 20) + 1))
    binary.write_bytes(b"\xff\xfe\x00")
    for path, reason in (
        (huge, "larger than"),
        (binary, "not UTF-8"),
        (tmp_path / "none.json", "cannot be read"),
        (tmp_path, "cannot be read"),
    ):
        with pytest.raises(UsageError, match=reason):
            read_prices(path, source="")


def test_a_table_is_written_whole_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "prices.json"
    prices = table({**CLASSES, "_provenance": {"machine": "a machine", "threads": 2}})
    write_prices(prices, path)
    again = read_prices(path, source="a test")
    assert again.classes == prices.classes
    assert again.provenance == {"machine": "a machine", "threads": 2}
    write_prices(table(), path)  # in place of the first
    assert read_prices(path, source="").provenance == {}
    assert [each.name for each in path.parent.iterdir()] == ["prices.json"]
    path.parent.joinpath("folder").mkdir()
    for name in ("folder", "prices.json/below", "n" * 300, "."):
        with pytest.raises(UsageError, match="cannot be written") as error:
            write_prices(table(), path.parent / name)
        assert "as it was" in error.value.kept


KEY = PriceKey("a machine", "avx2", 2, "native", "abc", "model", ())


def test_a_kept_table_serves_its_own_key_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert kept_prices(KEY) is None
    prices = table({**CLASSES, "_provenance": {"date": "2026-03-04T05:06:07Z"}})
    write_prices(prices, KEY.path())
    assert KEY.path().parent == price_tables_dir()
    found = kept_prices(KEY)
    assert found is not None
    assert found.source == "measured on this machine 2026-03-04"
    for change in ({"threads": 1}, {"kernels": "abd"}, {"machine": "another"}, {"model": "m"}):
        assert kept_prices(replace(KEY, **change)) is None


def test_the_given_and_the_shipped_table_say_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    write_prices(table(), path)
    assert str(path) in given_prices(path).source
    assert "QWEN38_STAIR_TABLES" in given_prices(path).source
    shipped = default_prices()
    assert shipped.source.startswith("shipped default: proportions of the demo model on ")
    provenance = json.loads(shipped_prices().read_text())["_provenance"]
    assert {"machine", "model", "threads", "date", "commit", "command"} <= set(provenance)
    assert str(provenance["machine"]) in shipped.source


def test_the_level_follows_the_rounds_and_proportions_stay() -> None:
    live = LivePrices(table())
    for _ in range(200):
        live.observe("chain", 2, 0, 2.4)  # twice the price
    assert live.level == pytest.approx(2.0, rel=1e-3)
    assert live.curves(0) == table().curves(0)
    live.observe("chain", 2, 0, 1e9)  # a recording of a minute
    assert live.level < 2.2
    live.observe("chain", 2, 0, 0.0)
    assert live.source == "a test"


def test_proportions_are_learned_where_the_table_is_of_another_model() -> None:
    live = LivePrices(table(), learns_rows=True, relative=True)
    truth = {1: 300.0, 2: 300.0, 8: 2400.0}
    for _ in range(60):
        for rows, ms in truth.items():
            live.observe("chain", rows, 0, ms)
    for kind in (0, 1):  # a kind that never ran takes the ratios of the other
        curve = [ms * live.level for ms in live.curves(0)[kind]]
        base = table().curves(0)[kind]
        assert curve[8] / curve[2] == pytest.approx(
            8.0 * (base[8] / 3.0) / (base[2] / 1.2), rel=0.05
        )
    chain = [ms * live.level for ms in live.curves(0)[0]]
    assert chain[1] == pytest.approx(300.0, rel=0.05)
    assert 300.0 < chain[5] < 2400.0
    assert chain[32] == pytest.approx(2400.0, rel=0.05)
    assert live.source == "a test; learned from 176 rounds"  # told with every sixteenth


def test_the_first_round_sets_the_level_of_proportions() -> None:
    live = LivePrices(table(), learns_rows=True, relative=True)
    live.observe("chain", 1, 0, 500.0)
    assert live.level == 500.0
    assert live.curves(0) == table().curves(0)


def test_an_interrupted_pass_moves_no_price() -> None:
    live = LivePrices(table(), learns_rows=True)
    usual = live.curves(0)[0][1] * live.level
    for n in range(40):
        live.observe("chain", 1, 0, usual * (6.0 if n % 5 == 4 else 1.0))
    assert live.curves(0)[0][1] * live.level == pytest.approx(usual, rel=0.01)
