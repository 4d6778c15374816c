# SPDX-License-Identifier: MIT OR Apache-2.0
"""The router in the engine: same text, prices from the right place; policies side by side."""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from checkpoints import make_checkpoint

from engine import Engine
from engine.api import GenerateRequest, Message
from engine.cli import main
from engine.commands import bench, bench_policies
from engine.commands.bench_policies import forced_request
from engine.errors import Cancelled, UsageError
from engine.knobs import KnobSet
from engine.load.synthetic import synthetic_weights
from engine.measure.policies import PLAIN, ROUTER, Prompt, read_policy_prompts, run_policies
from engine.measure.policies_forced import PRICED_ROWS, Cut, ForcedRequest, KnownText, run_forced
from engine.measure.shapes import named_shape
from engine.measure.telemetry import DRAFTERS, ROUTES, round_fields
from engine.model.backend import Verified, accepted_path, tree_parents
from engine.model.reference import ReferenceBackend
from engine.spec.choose_drafter import choose_drafter
from engine.spec.decode import Round
from engine.spec.lookup_memory import Memory
from engine.spec.prices import PriceTable, write_prices
from engine.spec.staircut import ROUTED, StairCut
from engine.spec.staircut_heads import BlockHead
from engine.spec.staircut_prices import LivePrices

CHEAP_ROWS = {
    1024: {kind: {1: 1.0, 32: 1.01} for kind in ("chain", "tree")}
}  # every row that may be accepted pays
DEAR_ROWS = {1024: {kind: {1: 1.0, 2: 9.0, 32: 90.0} for kind in ("chain", "tree")}}


def routed(**values: str) -> dict[str, str]:
    switches = {"CPU_ISA": "reference", "LEN_SWITCH": "1", "LOOKUP": "1", **values}
    return {f"QWEN38_{name}": value for name, value in switches.items()}


def ask(text: str, **changes: object) -> GenerateRequest:
    return GenerateRequest(messages=(Message("user", text),), **{"max_tokens": 40, **changes})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    make_checkpoint(made, mtp=True)
    return made


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[dict[str, str]]:
    paths = {}
    for name, classes in (("cheap", CHEAP_ROWS), ("dear", DEAR_ROWS)):
        write_prices(PriceTable(classes, ""), tmp_path / f"{name}.json")
        paths[name] = str(tmp_path / f"{name}.json")
    return paths


def test_every_round_says_what_the_router_chose(folder: Path, tables: dict[str, str]) -> None:
    rounds: list[Round] = []

    def keep(done: Round, round_ms: float, context_tokens: int) -> None:
        rounds.append(done)

    knobs = routed(STAIR_TABLES=tables["cheap"], MTP_TREE="2")
    with Engine.open(folder, profile=None, knobs=knobs, threads=1) as engine:
        engine.generate(ask("one two one two one two"), on_round=keep)
        asked = [done for done in rounds if done.choice is not None]
        assert len(asked) > 5
        for done in asked:
            fields = round_fields(done)
            assert ROUTES[fields["route"]] == done.choice.candidate != ""
            assert done.choice.nodes == done.drafted
            assert fields["expected_tokens"] == done.choice.expected_tokens >= 1
            assert (fields["left_out_nodes"], fields["expected_gain"]) == (
                done.choice.left_out,
                done.choice.gain,
            )
        assert {done.choice.candidate for done in asked} & {"mtp", "mtp line", "mtp+lookup"}
        rounds.clear()
        engine.set_knobs({"QWEN38_LEN_SWITCH": "0"})
        engine.generate(ask("one two"), on_round=keep)
    assert {done.choice for done in rounds} == {None}
    assert "route" not in round_fields(rounds[0])


def test_a_router_switched_on_in_an_answer_gets_its_table_with_the_next(
    folder: Path, tables: dict[str, str]
) -> None:
    """Nothing can be timed while a text is under way; what is started with then must not stay."""
    sources: list[str] = []

    def flip(done: Round, round_ms: float, context_tokens: int) -> None:
        sources.append(done.choice.price_source if done.choice else "")
        if len(sources) == 3:
            engine.set_knobs({"QWEN38_LEN_SWITCH": "1"})

    request = ask("one two one two one two")
    knobs = routed(STAIR_TABLES=tables["cheap"], LEN_SWITCH="0")
    with Engine.open(folder, profile=None, knobs=knobs, threads=1) as engine:
        first = engine.generate(request, on_round=flip)
        assert sources[:3] == [""] * 3
        assert sources[3].startswith("shipped default")
        sources[:] = [""] * 3
        assert engine.generate(request, on_round=flip).token_ids == first.token_ids
        named = f"file given by QWEN38_STAIR_TABLES: {tables['cheap']}"
        assert set(sources[3:]) - {""} == {named}
        router = engine._drafters.of(engine.knobs)
        engine.generate(request)
        assert engine._drafters.of(engine.knobs) is router  # made anew once, not every time


def test_the_records_know_every_route() -> None:
    heads = DRAFTERS[1:2] + DRAFTERS[3:]
    of_heads = {each for head in heads for each in (head, f"{head} line", f"{head}+lookup")}
    assert set(ROUTES) == {"", "plain", "lookup", *of_heads}


@pytest.mark.parametrize("temperature", [0.0, 1.2])
@pytest.mark.parametrize(
    "extra", [{}, {"MTP_TREE": "2"}, {"LEN_MODE": "fixed"}, {"MTP_DEPTH": "0"}]
)
def test_the_router_never_changes_the_text(
    folder: Path, tables: dict[str, str], extra: dict[str, str], temperature: float
) -> None:
    request = ask("one two one two one two", temperature=temperature, seed=5)
    with Engine.open(
        folder, profile=None, knobs=routed(STAIR_TABLES=tables["cheap"], **extra), threads=1
    ) as engine:
        served = engine.generate(request)
        plain = engine.generate(
            ask(request.messages[0].content, temperature=temperature, seed=5, speculate=False)
        )
        assert served.token_ids == plain.token_ids
        assert served.drafted_tokens > 0 or extra == {"MTP_DEPTH": "0"}
        assert engine.engaged()[ROUTED] == served.rounds


def test_prices_decide_how_much_is_drafted(folder: Path, tables: dict[str, str]) -> None:
    drafted = {}
    for name, table in tables.items():
        with Engine.open(
            folder, profile=None, knobs=routed(STAIR_TABLES=table), threads=1
        ) as engine:
            engine._drafters.freeze()  # else the clock of this machine soon speaks against the table
            answer = engine.generate(ask("one two", max_tokens=120), follow=[5, 6, 7, 8] * 40)
            drafted[name] = answer.drafted_tokens
    assert drafted["cheap"] > 40
    assert drafted["dear"] == 0


def test_a_table_that_is_none_refuses_the_load(folder: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("[]")
    with pytest.raises(UsageError, match="not an object"):
        Engine.open(folder, profile=None, knobs=routed(STAIR_TABLES=str(bad)), threads=1)


def test_the_router_takes_what_the_switches_leave() -> None:
    shape = named_shape("demo:4", vocab=64)
    backend = ReferenceBackend(
        shape.config, synthetic_weights(shape.config, "bf16"), capacity=64, dtype=torch.bfloat16
    )

    def chosen(**values: str):
        knobs = KnobSet.resolve(
            environ={}, changes={f"QWEN38_{name}": value for name, value in values.items()}
        )
        return choose_drafter(knobs, backend, Memory())

    assert isinstance(chosen(LEN_SWITCH="1", LOOKUP="1"), StairCut)
    assert chosen(LEN_SWITCH="1", LOOKUP="0") is None  # this shape has no head
    assert not isinstance(chosen(LEN_SWITCH="0", LOOKUP="1"), StairCut)


class InstantBackend:
    """Keeps a position as a backend would; every pass takes no time and likes token 0."""

    def __init__(self) -> None:
        self.config = named_shape("demo:4", vocab=64).config
        self.capacity, self.length = 512, 0
        self._rows, self._parents = 0, None
        self._own_pass = False

    def apply_knobs(self, knobs: KnobSet) -> None:
        self._own_pass = not knobs.flag("COMMIT_IN_VERIFY")

    def reset(self, *, speculate: bool) -> None:
        self.length = 0

    def prefill(self, ids: Sequence[int]) -> Verified:
        self.length += len(ids)
        return Verified([0], np.zeros((1, 64), np.float32))

    def verify(self, ids: Sequence[int], parents: Sequence[int] | None = None) -> Verified:
        self._rows, self._parents = len(ids), tree_parents(ids, parents)
        return Verified([0] * len(ids), np.zeros((len(ids), 64), np.float32))

    def commit(self, rows: Sequence[int] | int) -> None:
        self.length += len(accepted_path(rows, self._rows, self._parents))

    def round_bytes(self, rows: int, drafted: int) -> int:
        return 1000 + (2 if self._own_pass else 1) * self.written_bytes()

    def written_bytes(self) -> int:
        return self.config.state_bytes


@pytest.fixture
def backend() -> InstantBackend:
    return InstantBackend()


def test_policies_write_the_same_text_and_are_summed_by_class(backend: InstantBackend) -> None:
    text = tuple(range(1, 60))
    known = KnownText(backend, text, 0.7, 64, seed=1)
    prices = LivePrices(PriceTable(CHEAP_ROWS, "cheap"))
    report = run_policies(
        backend,
        {PLAIN: None, "fixed 3": Cut(known, 3), ROUTER: _router(prices, known)},
        [Prompt("copy", (1, 2, 3), text), Prompt("edit", (4, 5), text)],
        stop_ids=frozenset(),
        tokens=20,
        turns=2,
    )
    assert report.tokens_identical
    rows = {(row.workload, row.policy): row for row in report.rows}
    assert set(rows) == {
        (w, p) for w in ("copy", "edit", "all") for p in (PLAIN, "fixed 3", ROUTER)
    }
    plain = rows["all", PLAIN]
    assert (plain.tokens, plain.rounds, plain.tokens_per_round) == (40, 40, 1.0)
    both = rows["copy", "fixed 3"].decode_ms + rows["edit", "fixed 3"].decode_ms
    assert rows["all", "fixed 3"].decode_ms == pytest.approx(both)
    assert rows["all", ROUTER].tokens_per_round > rows["all", "fixed 3"].tokens_per_round > 1.5
    best = report.best_fixed["copy"]
    assert report.router_share["copy"] == pytest.approx(
        rows["copy", best].decode_ms / rows["copy", ROUTER].decode_ms
    )
    assert report.price_source == "cheap"
    assert sum(report.choices.values()) == round(2 * rows["all", ROUTER].rounds)
    json.dumps(report.to_json())


def _router(prices: LivePrices, known: KnownText) -> StairCut:
    return StairCut(prices, heads=(BlockHead(known),))


def test_known_texts_are_right_as_often_as_they_say() -> None:
    text = list(range(2000))
    backend = SimpleNamespace(length=0)
    known = KnownText(backend, text, 0.65, 5000, seed=3)
    known.begin((1, 2, 3))
    right = total = 0
    for at in range(1900):
        backend.length = 3 + at
        tree = known.propose(text[at], 1)
        assert tree is not None
        right += tree.tokens[1] == text[at + 1]
        total += 1
    assert right / total == pytest.approx(0.65, abs=0.04)
    known.begin(())
    backend.length = 0
    tree = known.propose(0, 31)
    assert tree is not None
    assert tree.scores[3] == pytest.approx(0.65**3)
    again = KnownText(backend, text, 0.65, 5000, seed=3)
    assert again.propose(0, 31) == tree


def test_the_command_prices_its_usual_rows_unless_told() -> None:
    parser = argparse.ArgumentParser()
    bench.add_options(parser)
    asked = ["--suite", "policies", "--accept", "0.5", "--context", "32", "--tokens", "8"]
    assert forced_request(parser.parse_args(asked)).rows == PRICED_ROWS
    told = parser.parse_args([*asked, "--rows", "1,4"])
    assert forced_request(told) == ForcedRequest(
        accept=(0.5,), rows=(1, 4), context_tokens=32, tokens=8, turns=told.turns, seed=told.seed
    )


def test_forced_acceptance_reports_prices_cuts_and_state(backend: InstantBackend) -> None:
    request = ForcedRequest(accept=(0.3, 0.9), rows=(1, 8), context_tokens=8, tokens=12, turns=1)
    report = run_forced(backend, KnobSet.resolve(environ={}), request)
    assert list(report.chain_ms) == [1, 8]
    assert [case.accept for case in report.cases] == [0.3, 0.9]
    state = backend.config.state_bytes
    assert report.state_bytes == {"in verify": 2 * state, "own pass": 3 * state}
    for case in report.cases:
        assert case.report.tokens_identical
    json.dumps(report.to_json())
    counts = ({"turns": 0}, {"tokens": 1}, {"context_tokens": 0})
    for changes in ({"accept": ()}, {"accept": (1.0,)}, {"rows": (33,)}, *counts):
        with pytest.raises(UsageError):
            run_forced(backend, KnobSet.resolve(environ={}), ForcedRequest(**changes))


def test_nothing_is_compared_without_turns_or_after_a_cancel(backend: InstantBackend) -> None:
    policies = {PLAIN: None, ROUTER: None}
    with pytest.raises(UsageError):
        run_policies(backend, policies, [], stop_ids=frozenset(), tokens=8, turns=1)
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        run_policies(
            backend,
            policies,
            [Prompt("copy", (1,))],
            stop_ids=frozenset(),
            tokens=8,
            turns=1,
            cancel=cancel,
        )


def test_prompts_cover_every_class() -> None:
    prompts = read_policy_prompts()
    by_class: dict[str, int] = {}
    for workload, prompt in prompts:
        by_class[workload] = by_class.get(workload, 0) + 1
        assert prompt.strip() == prompt
    assert by_class == {"in-domain": 6, "copy": 6, "edit": 6, "out-of-domain": 6}


def test_the_command_refuses_what_it_cannot_compare(capsys: pytest.CaptureFixture) -> None:
    assert main(["bench", "--suite", "policies", "--shape", "qwen3.8-27b:4"]) == 2
    assert "--accept" in capsys.readouterr().err
    assert main(["bench", "--suite", "policies", "--shape", "demo:4", "--accept", "much"]) == 2
    assert "--accept 0.5,0.65,0.8" in capsys.readouterr().err


def test_the_command_writes_the_rates_that_the_switch_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = "bench --suite policies --tokens 24 --turns 1 --threads 1 --json"
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    assert main([*options.split(), "--write-rates", str(first)]) == 0
    learned = json.loads(first.read_text())
    assert learned.pop("_about")["model"] == "demo-model"
    # Of fewer prompts the router may not look up one: it goes by the time that rounds take.
    assert sum(sum(counts) for counts in learned.values()) > 0
    one_a_class = list(dict(read_policy_prompts()).items())
    monkeypatch.setattr(bench_policies, "read_policy_prompts", lambda: one_a_class)
    prior = ["--knob", f"QWEN38_STAIR_RHO={first}"]
    assert main([*options.split(), *prior, "--write-rates", str(second)]) == 0
    capsys.readouterr()
    assert main([*options.split(), "--write-rates", str(second)]) == 1
    assert "exists already" in capsys.readouterr().out
    for wrong in (["--suite", "decode"], ["--suite", "policies", "--accept", "0.5"]):
        assert main(["bench", *wrong, "--write-rates", str(tmp_path / "none.json")]) == 2
    assert not (tmp_path / "none.json").exists()


def test_the_command_follows_a_text_on_a_shape(capsys: pytest.CaptureFixture) -> None:
    options = "bench --suite policies --shape demo:4 --vocab 64 --accept 0.6 --rows 1,2 --tokens 4"
    fast = [
        "--turns",
        "1",
        "--threads",
        "1",
        "--context",
        "4",
        "--knob",
        "QWEN38_CPU_ISA=reference",
    ]
    assert main([*options.split(), *fast]) == 0
    shown = capsys.readouterr().out
    assert "acceptance 0.6: cut at" in shown
    assert "MB of state a round" in shown
    assert main([*options.split(), *fast, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["shape"] == "demo:4"
    assert {"chain_ms", "cases", "state_bytes"} <= set(values)
