# SPDX-License-Identifier: MIT OR Apache-2.0
"""The switches of a round on the native backend: equal bits, other passes, other traffic of the state."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from test_native import CAPACITY, CONFIG, VOCABULARY, make, sequence
from trees import random_rows

from engine.errors import UsageError
from engine.knobs import KnobSet
from engine.model.native import NativeBackend
from engine.model.native_commit import difference

SWITCHES = (
    {},
    {"COMMIT_IN_VERIFY": "0"},
    {"COMMIT_IN_VERIFY": "0", "RANKK": "0"},
    {"COMMIT_IN_VERIFY": "0", "RANKK": "0", "VERIFY_GRAPH": "0"},
    {"COMMIT_IN_VERIFY": "0", "RANKK": "check"},
    {"VERIFY_GRAPH": "0"},
    {"DRAFT_GRAPH": "0"},
    {"COMMIT_IN_VERIFY": "0", "VERIFY_GRAPH": "0", "DRAFT_GRAPH": "0"},
)


@pytest.fixture(scope="module")
def backend() -> Iterator[NativeBackend]:
    made = make("nvfp4")
    yield made
    made.close()


def flip(backend: NativeBackend, switches: dict[str, str]) -> None:
    changes = {f"QWEN38_{name}": value for name, value in switches.items()}
    backend.apply_knobs(KnobSet.resolve(environ={}, changes=changes))


def play(backend: NativeBackend, seed: int, flips: list[dict[str, str]]) -> list[object]:
    """Rounds over chains and trees with a prompt chunk between some; all results and the state behind."""
    chance, others = random.Random(seed), random.Random(seed + 100)
    backend.reset(speculate=True)
    backend.prefill(sequence(30))
    results: list[object] = []
    for _ in range(12):
        flip(backend, others.choice(flips))
        anchor = chance.randrange(VOCABULARY)
        steps = backend.draft_steps(anchor, chance.randint(1, 4), chance.randint(1, 3))
        line = [anchor, *(step.tokens[0] for step in steps)]
        if chance.random() < 0.3:
            verified, path = backend.verify(line), list(range(chance.randint(1, len(line))))
        else:
            rows = random_rows(chance, chance.randint(len(line), 20), VOCABULARY, line=line)
            verified = backend.verify(rows.ids, rows.parents)
            path = rows.path(chance.randrange(len(rows.ids)))
        results += [steps, verified.best, torch.from_numpy(verified.logits.copy())]
        backend.commit(path)
        if chance.random() < 0.3:
            results.append(backend.prefill(sequence(chance.randint(1, 5))).best)
    results += backend.committed_state().values()
    return results


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("switches", [*SWITCHES[1:], "flipped between rounds"], ids=str)
def test_no_switch_changes_a_bit(
    backend: NativeBackend, switches: dict[str, str] | str, seed: int
) -> None:
    wanted = play(backend, seed, [{}])
    got = play(backend, seed, list(SWITCHES) if isinstance(switches, str) else [switches])
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted, strict=True):
        same = torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
        assert same


def test_the_state_is_read_once_a_round_with_the_commit_in_verify_and_twice_without(
    backend: NativeBackend,
) -> None:
    state = 4 * CONFIG.value_heads * CONFIG.key_dim * CONFIG.value_dim * len(CONFIG.gdn_layers)
    layers = len(CONFIG.gdn_layers)
    read = []
    for switch in ("1", "0"):
        flip(backend, {"COMMIT_IN_VERIFY": switch})
        backend.reset(speculate=False)
        backend.prefill(sequence(5))
        backend.verify([1])
        backend.commit(1)
        backend.reset_operation_times()
        before = backend.engaged().get("commit passes", 0)
        for _ in range(4):
            backend.verify([1, 2, 3])
            backend.commit(2)
        (delta,) = [each for each in backend.operation_times() if each.name == "gated_delta"]
        passes = 4 if switch == "1" else 8
        assert delta.calls == layers * passes
        operands = 8 * CONFIG.key_heads * CONFIG.key_dim + 6 * CONFIG.value_width  # of one row
        assert delta.bytes_read == state * passes + layers * 4 * 3 * operands
        assert backend.engaged().get("commit passes", 0) - before == passes - 4
        assert backend.written_bytes() == state
        read.append(backend.round_bytes(3, 0))
    assert read[1] - read[0] == state


def test_a_round_that_commits_at_once_leaves_nothing_pending(backend: NativeBackend) -> None:
    flip(backend, {"COMMIT_IN_VERIFY": "0"})
    backend.reset(speculate=False)
    backend.prefill(sequence(5))
    before = backend._arena.delta[0].state.recurrent.clone()
    rows = random_rows(random.Random(3), 12, VOCABULARY)
    backend.verify(rows.ids, rows.parents)
    assert torch.equal(backend._arena.delta[0].state.recurrent, before)
    backend.commit(rows.path(11))
    committed = backend._arena.delta[0].state.recurrent.clone()
    assert not torch.equal(committed, before)
    backend.committed_state()
    assert torch.equal(backend._arena.delta[0].state.recurrent, committed)


def test_each_way_to_commit_counts_and_reads_what_it_does(backend: NativeBackend) -> None:
    layers = len(CONFIG.gdn_layers)
    for way, by_record, by_replay, walks in (("1", 3, 0, 2), ("0", 0, 3, 2), ("check", 3, 3, 3)):
        flip(backend, {"COMMIT_IN_VERIFY": "0", "RANKK": way})
        backend.reset(speculate=False)
        backend.prefill(sequence(5))
        backend.reset_operation_times()
        before = backend.engaged()
        for _ in range(3):
            backend.verify([1, 2, 3])
            backend.commit(2)
        times = {each.name: each.calls for each in backend.operation_times()}
        assert times["gated_delta"] == 3 * layers * walks
        assert times["head"] == 3  # a replay needs no logits
        seen = backend.engaged()
        names = ("commits by record", "commits by replay", "commits compared")
        counts = [seen.get(name, 0) - before.get(name, 0) for name in names]
        assert counts == [by_record, by_replay, min(by_record, by_replay)]
        state = backend.written_bytes()
        assert state == (2 if way == "check" else 1) * backend._bytes.state_bytes
        once = backend._bytes.round_bytes(3, 0, backend.length)
        again = once - backend._bytes.head_bytes
        state = backend._bytes.state_bytes
        wanted = {"1": once + state, "0": once + again, "check": once + again + state}[way]
        assert backend.round_bytes(3, 0) == wanted
    assert backend.engaged()["largest commit difference (1e-9)"] == 0


def test_a_comparison_of_commits_shows_a_difference(backend: NativeBackend) -> None:
    flip(backend, {"COMMIT_IN_VERIFY": "0", "RANKK": "check"})
    backend.reset(speculate=False)
    backend.prefill(sequence(5))
    backend.verify([1, 2, 3])
    record = backend._arena.delta[0].records[backend._commits.parity]
    record.correction[0, 1, 0] += 0.5
    backend.commit(2)
    assert backend.engaged()["largest commit difference (1e-9)"] >= 10**6
    after = backend.committed_state()
    flip(backend, {})
    backend.reset(speculate=False)
    backend.prefill([*sequence(5), 1, 2])
    for name, values in backend.committed_state().items():
        assert torch.equal(after[name], values), name  # the replay is what stays


@pytest.mark.parametrize(
    ("other", "apart"),
    [(1.0, 0), (1.5, 5 * 10**8), (1.0 + 2.0**-40, 1), (float("nan"), 10**18)],
)
def test_a_difference_is_never_rounded_away(other: float, apart: int) -> None:
    one = torch.tensor([1.0, float("nan")], dtype=torch.float64)
    assert difference(one, torch.tensor([other, float("nan")], dtype=torch.float64)) == apart


def test_a_replay_needs_commits_of_their_own() -> None:
    for way in ("0", "check"):
        with pytest.raises(UsageError, match="COMMIT_IN_VERIFY=1 needs QWEN38_RANKK=1"):
            KnobSet({}).changed({"QWEN38_RANKK": way})


def test_a_tree_runs_its_own_recording_and_a_line_the_chains(backend: NativeBackend) -> None:
    flip(backend, {})
    backend.reset(speculate=False)
    backend.prefill(sequence(3))
    backend._graphs.clear()
    backend.verify([1, 2, 3], [-1, 0, 1])
    backend.verify([1, 2, 3])
    assert [key.kind for key in backend._graphs._kept] == ["chain"]
    backend.verify([1, 2, 3], [-1, 0, 0])
    backend.verify([1, 2, 3, 4], [-1, 0, 0, 2])
    backend.verify([1, 2, 3, 4], [-1, 0, 1, 0])
    assert [(key.kind, key.rows) for key in backend._graphs._kept] == [
        ("chain", 3),
        ("tree", 3),
        ("tree", 4),
    ]


@pytest.mark.parametrize("nodes", [32, 20, 2])
def test_a_tree_needs_room_for_all_its_rows(backend: NativeBackend, nodes: int) -> None:
    flip(backend, {})
    backend.reset(speculate=False)
    backend.prefill(sequence(CAPACITY - nodes + 1)[: CAPACITY - nodes])
    rows = random_rows(random.Random(1), nodes, VOCABULARY)
    backend.verify(rows.ids, rows.parents)
    backend.commit(rows.path(nodes - 1))
    with pytest.raises(ValueError, match="do not fit a context"):
        backend.verify(rows.ids, rows.parents)
