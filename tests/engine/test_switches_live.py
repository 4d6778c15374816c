# SPDX-License-Identifier: MIT OR Apache-2.0
"""Switches flipped through the engine's thread: before a load, between answers, and during one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoints import make_checkpoint
from test_runner import PATIENCE_S, Listener, ask

from engine import Engine
from engine.api import Finished, KnobsChanged, KnobsRefused, Loaded
from engine.fake import FakeEngine
from engine.knob_rows import served_values
from engine.knobs import KnobSet, knob_named, read_profile
from engine.runner import ThreadedEngine
from engine.spec.default_prices import unmeasured_prices
from engine.spec.staircut_prices import LivePrices

DEPTH = "QWEN38_MTP_DEPTH"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_checkpoint(folder, max_position_embeddings=4096)
    return folder


@pytest.fixture
def handle() -> Iterator[ThreadedEngine]:
    # Without the router, so that every round drafts as many tokens as the switches say.
    fixed = {"QWEN38_CPU_ISA": "reference", "QWEN38_LEN_SWITCH": "0"}
    engine = ThreadedEngine(knobs=fixed, threads=1)
    yield engine
    assert engine.close(PATIENCE_S)


def value(handle: ThreadedEngine | FakeEngine, name: str) -> tuple[str, str]:
    return next((row.value, row.source) for row in handle.knobs() if row.name == name)


def test_a_change_before_a_load_is_kept_for_it(handle: ThreadedEngine, model: Path) -> None:
    listener = Listener(handle)
    handle.set_knobs({DEPTH: "1"})
    assert listener.wait(KnobsChanged) == KnobsChanged(((DEPTH, "1"),))
    assert value(handle, DEPTH) == ("1", "caller")
    handle.load(str(model))
    loaded = listener.wait(Loaded)
    assert loaded.card.speculation == "lookup first, then MTP, depth 1"
    assert value(handle, DEPTH) == ("1", "caller")
    handle.load(str(model), knobs={DEPTH: "2"})
    assert listener.wait(Loaded).card.speculation == "lookup first, then MTP, depth 2"
    assert value(handle, DEPTH) == ("2", "caller")


def test_a_profile_of_ones_own_is_taken(model: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.env"
    own.write_text("QWEN38_CPU_ISA=reference\nQWEN38_MTP_DEPTH=1\n")
    handle = ThreadedEngine(threads=1, profile=str(own))
    listener = Listener(handle)
    assert value(handle, DEPTH) == ("1", "profile")
    handle.load(str(model))
    assert listener.wait(Loaded).card.speculation == "MTP, depth 1"
    assert value(handle, DEPTH) == ("1", "profile")
    assert handle.close(PATIENCE_S)


def test_a_change_during_an_answer_holds_from_the_next_round(
    handle: ThreadedEngine, model: Path
) -> None:
    listener = Listener(handle)
    handle.load(str(model))
    listener.wait(Loaded)
    plain = ask("the engine", 60)
    handle.generate(plain)
    expected = listener.wait(Finished).generation
    before = handle.ring.since(0)[1]
    appended = handle.ring.append

    def after_the_fifth_round(**row: object) -> None:
        appended(**row)
        if handle.ring.since(0)[1] == before + 5:
            handle.set_knobs({DEPTH: "1"})
            handle.set_knobs({DEPTH: "4", "QWEN38_VERIFY_GRAPH": "0"})

    handle.ring.append = after_the_fifth_round  # type: ignore[method-assign]
    handle.generate(plain)
    changed = listener.wait(KnobsChanged)
    refused = next((e for e in listener.seen if isinstance(e, KnobsRefused)), None)
    refused = refused or listener.wait(KnobsRefused)
    finished = next((e for e in listener.seen[-3:] if isinstance(e, Finished)), None)
    assert (finished or listener.wait(Finished)).generation.token_ids == expected.token_ids
    assert changed.changes == ((DEPTH, "1"),)
    assert "VERIFY_GRAPH" in refused.report.cause
    drafted = handle.ring.since(before)[0]["drafted_tokens"].tolist()
    assert set(drafted[:5]) == {4}
    assert set(drafted[5:-1]) == {1}
    counts = {row.name: row.engaged_count for row in handle.knobs()}
    assert counts[DEPTH] == int(handle.ring.since(0)[0]["drafted_tokens"].sum())


def test_a_set_of_switches_is_saved_as_a_profile(handle: ThreadedEngine, tmp_path: Path) -> None:
    handle.save_profile(str(tmp_path / "mine.env"))
    served = {
        name: value for name, value in served_values().items() if value != knob_named(name).default
    }
    assert (served["QWEN38_LOOKUP"], served.pop("QWEN38_LEN_SWITCH")) == ("1", "1")
    assert read_profile(tmp_path / "mine.env") == {**served, "QWEN38_CPU_ISA": "reference"}


def test_a_load_says_which_set_switches_change_nothing(handle: ThreadedEngine, model: Path) -> None:
    listener = Listener(handle)
    handle.load(str(model), knobs={"QWEN38_VERIFY_GRAPH": "0"})
    notices = listener.wait(Loaded).card.notices
    assert [note for note in notices if note.startswith("QWEN38_VERIFY_GRAPH=0 changes nothing")]


def test_the_scripted_engine_takes_changes_by_the_same_rules() -> None:
    handle = FakeEngine("steady")
    listener = Listener(handle)
    handle.load("somewhere", knobs={"QWEN38_CPU_ISA": "portable"})
    listener.wait(Loaded)
    assert value(handle, "QWEN38_CPU_ISA") == ("portable", "caller")
    handle.set_knobs({DEPTH: "2"})
    listener.wait(KnobsChanged)
    handle.set_knobs({"QWEN38_CPU_ISA": ""})
    assert "when a model is loaded" in listener.wait(KnobsRefused).report.cause
    assert value(handle, DEPTH) == ("2", "caller")
    assert handle.close(PATIENCE_S)


def test_the_rows_of_a_pass_are_bounded_from_the_next_round_on(
    handle: ThreadedEngine, model: Path
) -> None:
    listener = Listener(handle)
    handle.load(str(model))
    listener.wait(Loaded)
    appended = handle.ring.append

    def after_some_rounds(**row: object) -> None:
        appended(**row)
        bound = {4: "2", 8: "1", 12: "32"}.get(handle.ring.since(0)[1])
        if bound:
            handle.set_knobs({"QWEN38_VERIFY_ROWS": bound})

    handle.ring.append = after_some_rounds  # type: ignore[method-assign]
    handle.generate(ask("the engine", 90))
    listener.wait(Finished)
    rows = handle.ring.since(0)[0]["rows"].tolist()
    assert (set(rows[:4]), set(rows[4:8]), set(rows[8:12])) == ({5}, {2}, {1})
    assert max(rows[12:]) == 5


def test_the_card_follows_the_switches(handle: ThreadedEngine, model: Path) -> None:
    listener = Listener(handle)
    handle.load(str(model), knobs={"QWEN38_VERIFY_GRAPH": "0"})
    loaded = listener.wait(Loaded).card
    assert loaded.notices
    for depth, said in (("0", "off: QWEN38_MTP_DEPTH is 0"), ("2", "MTP, depth 2")):
        handle.set_knobs({DEPTH: depth, "QWEN38_LOOKUP": "0"})
        listener.wait(KnobsChanged)
        card = handle.snapshot().model
        assert card is not None
        assert card.speculation == said
        assert (card.notices, card.load_s) == (loaded.notices, loaded.load_s)
    handle.set_knobs({"QWEN38_LOOKUP": "1", DEPTH: "0"})
    listener.wait(KnobsChanged)
    card = handle.snapshot().model
    assert card.speculation == "lookup"


def test_a_flip_that_changes_what_passes_take_prices_them_anew(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    priced: list[str] = []

    def count(backend: object, knobs: KnobSet) -> LivePrices:
        priced.append(knobs.raw("FUSED_NORM")[0])
        return unmeasured_prices()

    monkeypatch.setattr("engine.engine.live_prices", count)
    knobs = {"QWEN38_LEN_SWITCH": "1"}
    with Engine.open(model, profile=None, knobs=knobs, threads=1) as engine:
        for changes in ({}, {"QWEN38_MTP_DEPTH": "2"}, {"QWEN38_FUSED_NORM": "0"}, {}):
            engine.set_knobs(changes)
            engine.generate(ask("one two one two", 8))
    assert priced == ["1", "0"]
