# SPDX-License-Identifier: MIT OR Apache-2.0
"""Which drafter the switches get, what stays between requests, and what a measurement leaves out."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from engine.errors import UsageError
from engine.knobs import KnobSet
from engine.spec.block import BlockDrafter
from engine.spec.choose_drafter import SWITCHES, speculation_words
from engine.spec.corpus import CorpusError, build_corpus, tokenizer_sha256
from engine.spec.drafter import Drafter, RoundOutcome
from engine.spec.drafters import Drafters
from engine.spec.lookup import LookupDrafter
from engine.spec.lookup_first import LookupFirst
from engine.spec.lookup_memory import Memory, open_memory, parse_store
from engine.spec.mtp import MtpChain, MtpTree
from engine.spec.staircut import StairCut


def knobs(**values: str) -> KnobSet:
    changes = {f"QWEN38_{name}": value for name, value in values.items()}
    return KnobSet.resolve(environ={}, changes=changes)


def choose_with(switches: KnobSet, memory: Memory, mtp_layers: int = 1) -> Drafter | None:
    backend = SimpleNamespace(config=SimpleNamespace(mtp_layers=mtp_layers), block=None)
    return Drafters(backend, memory).of(switches)  # type: ignore[arg-type]


def choose(memory: Memory | None = None, *, mtp_layers: int = 1, **values: str) -> Drafter | None:
    return choose_with(knobs(**values), memory or Memory(), mtp_layers)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    return folder


def remembered(model: Path, *, remember: bool = True, **values: str) -> Memory:
    return open_memory(knobs(**values), model=model, vocab_size=100, remember=remember)


@pytest.mark.parametrize(
    ("values", "mtp_layers", "kind"),
    [
        ({"MTP_DEPTH": "3"}, 1, MtpChain),
        ({"MTP_DEPTH": "3", "MTP_TREE": "2"}, 1, MtpTree),
        ({"MTP_DEPTH": "0"}, 1, type(None)),
        ({"MTP_DEPTH": "3"}, 0, type(None)),
        ({"MTP_DEPTH": "0", "LOOKUP": "1"}, 1, LookupDrafter),
        ({"MTP_DEPTH": "3", "LOOKUP": "1"}, 0, LookupDrafter),
        ({"MTP_DEPTH": "3", "LOOKUP": "1"}, 1, LookupFirst),
    ],
)
def test_the_switches_name_the_drafter(values: dict[str, str], mtp_layers: int, kind: type) -> None:
    assert type(choose(mtp_layers=mtp_layers, **values)) is kind


MTP3, BLOCK = "MTP, depth 3", "block drafter small"


@pytest.mark.parametrize(
    ("values", "mtp_layers", "block", "words", "kind"),
    [
        ({}, 1, "", MTP3, MtpChain),
        ({"MTP_TREE": "2"}, 1, "", f"{MTP3}, 2 side branches a step", MtpTree),
        ({"LOOKUP": "1"}, 1, "", f"lookup first, then {MTP3}", LookupFirst),
        ({"LOOKUP": "1"}, 0, "", "lookup", LookupDrafter),
        ({"LOOKUP": "1", "MTP_DEPTH": "0"}, 1, "", "lookup", LookupDrafter),
        ({}, 1, "small", MTP3, MtpChain),
        ({"DFLASH2": "small"}, 1, "small", BLOCK, BlockDrafter),
        ({"MTP_DEPTH": "0"}, 1, "small", BLOCK, BlockDrafter),
        ({"LOOKUP": "1"}, 0, "small", f"lookup first, then {BLOCK}", LookupFirst),
        ({"LEN_SWITCH": "1"}, 1, "", f"router over {MTP3}", StairCut),
        ({"LEN_SWITCH": "1", "LOOKUP": "1"}, 0, "", "router over lookup", StairCut),
        ({"LEN_SWITCH": "1", "LOOKUP": "1"}, 1, "", f"router over lookup and {MTP3}", StairCut),
        (
            {"LEN_SWITCH": "1", "LOOKUP": "1"},
            1,
            "small",
            f"router over lookup, {BLOCK} and {MTP3}",
            StairCut,
        ),
        ({"LEN_SWITCH": "1", "MTP_DEPTH": "0"}, 1, "", "off: QWEN38_MTP_DEPTH is 0", type(None)),
        ({}, 0, "", "off: this checkpoint has no MTP head", type(None)),
    ],
)
def test_the_words_name_who_is_made(
    values: dict[str, str], mtp_layers: int, block: str, words: str, kind: type
) -> None:
    switches = knobs(**{"MTP_DEPTH": "3", **values})
    codes = torch.zeros(4, 4, dtype=torch.bfloat16)
    attached = SimpleNamespace(
        name=block,
        config=SimpleNamespace(block_size=16),
        weights=SimpleNamespace(predecessor=codes, successor=codes),
    )
    backend = SimpleNamespace(
        config=SimpleNamespace(mtp_layers=mtp_layers), block=attached if block else None
    )
    assert speculation_words(switches, backend) == words
    made = Drafters(backend, Memory()).of(switches)
    assert type(made) is kind
    if isinstance(made, StairCut):
        named = [head.name for head in made._heads] + (["lookup"] if made._lookup else [])
        for source in ("lookup", "block", "mtp"):
            assert (source in words.lower()) == (source in named)


def test_the_deep_chain_is_as_the_switches_say() -> None:
    drafter = choose(MTP_DEPTH="0", LOOKUP="1")
    assert isinstance(drafter, LookupDrafter)
    assert (drafter.options.deep, drafter.options.deep_after) == (32, 2)
    drafter = choose(MTP_DEPTH="0", LOOKUP="1", DEEP="24", DEEP_AFTER="1")
    assert isinstance(drafter, LookupDrafter)
    assert (drafter.options.deep, drafter.options.deep_after) == (24, 1)


def test_every_switch_that_is_read_makes_a_drafter_anew() -> None:
    asked: set[str] = set()

    class Asked(KnobSet):
        def flag(self, name: str) -> bool:
            asked.add(name)
            return name == "LOOKUP" or super().flag(name)

        def number(self, name: str) -> int:
            asked.add(name)
            return super().number(name)

    assert isinstance(choose_with(Asked({}), Memory()), LookupFirst)
    assert {"MTP_DEPTH", "MTP_TREE", "LOOKUP", "DEEP", "DEEP_AFTER"} <= asked <= set(SWITCHES)


def test_deep_rounds_and_tokens_are_counted_over_all_drafters() -> None:
    memory = Memory()
    for _ in range(2):
        drafter = choose(memory, MTP_DEPTH="0", LOOKUP="1", DEEP_AFTER="0")
        assert drafter is not None
        drafter.begin([*range(60), *range(8)])
        tree = drafter.propose(8, 31)
        assert tree is not None
        drafter.settle(RoundOutcome(tree.truncate(11), (0,), (77,), 0.0, 0.0))
    assert memory.counts == {"tokens drafted by lookup": 20, "deep lookup rounds": 2}


def test_a_corpus_and_a_store_vote_and_are_counted_by_name(model: Path, tmp_path: Path) -> None:
    gram = list(range(10, 18))
    sha = tokenizer_sha256(model)
    build_corpus(tmp_path / "corpus", [[*gram, 20, 21]], tokenizer_sha256=sha)
    store = str(tmp_path / "store")
    names = {"CORPUS": str(tmp_path / "corpus"), "SUFFIX_STORE": store}
    remembered(model, **names).finish([*gram, 30])
    memory = remembered(model, **{**names, "SUFFIX_STORE": store + ":ro"})  # sorted when opened
    assert memory.suffix_store is not None
    memory.suffix_store.wait()
    drafter = choose(memory, MTP_DEPTH="0", LOOKUP="1")
    assert drafter is not None
    drafter.begin(gram[:-1])
    tree = drafter.propose(gram[-1], 15)
    assert tree is not None
    assert sorted(tree.tokens[1:]) == [20, 21, 30]
    drafter.settle(RoundOutcome(tree, (0,), (5,), 0.0, 0.0))
    assert memory.counts == {
        "tokens drafted by lookup": 3,
        "tokens drafted from the corpus": 3,
        "tokens drafted from the store": 3,
    }
    memory.finish([7, 8, 9])
    assert (tmp_path / "store" / "tokens.bin").stat().st_size == 4 * 10


def test_measurements_leave_the_store_out(model: Path, tmp_path: Path) -> None:
    memory = remembered(model, remember=False, SUFFIX_STORE=str(tmp_path / "store"))
    assert memory.suffix_store is None
    assert memory.stores == {}
    memory.finish([2, 3])
    assert not (tmp_path / "store").exists()


def test_without_names_nothing_is_read(tmp_path: Path) -> None:
    memory = remembered(tmp_path / "no model")
    assert (memory.stores, memory.suffix_store) == ({}, None)
    assert memory.rate.rho("local", 8, 0) is None


def test_what_cannot_be_used_is_an_error(model: Path, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="holds no corpus"):
        remembered(model, CORPUS=str(tmp_path / "none"))
    with pytest.raises(CorpusError, match="missing"):
        remembered(model, SUFFIX_STORE=f"{tmp_path / 'none'}:ro")
    with pytest.raises(UsageError, match="names no folder"):
        remembered(model, SUFFIX_STORE=":ro")
    with pytest.raises(UsageError, match=r"rho\.json"):
        remembered(model, STAIR_RHO=str(tmp_path / "rho.json"))


def test_a_prior_scores_from_the_first_round_on(model: Path, tmp_path: Path) -> None:
    prior = tmp_path / "rho.json"
    prior.write_text(json.dumps({"local|8|0": [80, 20]}))
    memory = remembered(model, STAIR_RHO=str(prior))
    drafter = choose(memory, MTP_DEPTH="0", LOOKUP="1")
    assert drafter is not None
    drafter.begin([*range(20), *range(7)])
    tree = drafter.propose(7, 2)
    assert tree is not None
    assert tree.scores == pytest.approx((1.0, 0.8, 0.64), rel=1e-12)


def test_the_store_s_value(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse_store("") is None
    assert parse_store("a/b") == (Path("a/b"), False)
    assert parse_store("~/b:ro") == (tmp_path / "b", True)
