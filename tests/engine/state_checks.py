# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the state of a sequence promises on every backend: trees, rejected rows and abandoned passes."""

from __future__ import annotations

import random

import pytest
import torch
from backends import BackendKind, Loaded
from oracle import STATE_CASE, token_ids
from trees import random_rows

from engine.model.backend import VERIFY_ROWS, Backend

CAPACITY = 96
PROMPT = 21


def prefilled(kind: BackendKind, loaded: Loaded, prompt: int = PROMPT) -> tuple[Backend, list[int]]:
    """A backend that has read `prompt` tokens, and CAPACITY ids that begin with them."""
    ids = token_ids(STATE_CASE, CAPACITY, seed=51)
    backend = kind.make(loaded.config, loaded.weights, CAPACITY)
    backend.reset(speculate=True)
    backend.prefill(ids[:prompt])
    return backend, ids


def decode(backend: Backend, ids: list[int]) -> torch.Tensor:
    """Plain decoding; logits [tokens, vocabulary]."""
    rows = []
    for token in ids:
        rows.append(torch.from_numpy(backend.verify([token]).logits[0].copy()))
        backend.commit(1)
    return torch.stack(rows)


def assert_same(kind: BackendKind, got: Backend, wanted: Backend) -> None:
    """Everything that is committed has the same bits."""
    parts = kind.snapshot(wanted)
    copied = kind.snapshot(got)
    assert copied.keys() == parts.keys()
    for name, part in copied.items():
        assert torch.equal(part, parts[name]), name


def check_nodes_of_a_tree(kind: BackendKind, loaded: Loaded, nodes: int, wide: float) -> None:
    """Every node of a random tree has the logits of plain decoding of its path, to the bit."""
    chance = random.Random(nodes)
    rows = random_rows(chance, nodes, STATE_CASE.vocab, wide=wide)
    prompt = chance.randint(1, 40)
    tree, ids = prefilled(kind, loaded, prompt)
    plain, _ = prefilled(kind, loaded, prompt)
    verified = tree.verify(rows.ids, rows.parents)
    logits = torch.from_numpy(verified.logits.copy())
    assert verified.best == logits.argmax(-1).tolist()
    leaves = rows.leaves()
    for leaf in chance.sample(leaves, min(len(leaves), 5)):
        path = rows.path(leaf)
        plain.reset(speculate=True)
        plain.prefill(ids[:prompt])
        assert torch.equal(logits[path], decode(plain, [rows.ids[node] for node in path]))


def check_committed_paths(kind: BackendKind, loaded: Loaded, seed: int) -> None:
    """Rounds over trees, each with a random path kept: state, tail, KV and MTP cache, then drafts."""
    chance = random.Random(seed)
    tree, _ = prefilled(kind, loaded, 7)
    plain, _ = prefilled(kind, loaded, 7)
    while tree.length < 55:
        nodes = chance.randint(1, 32)
        rows = random_rows(chance, nodes, STATE_CASE.vocab, wide=chance.choice((0.1, 0.5, 1.0)))
        if chance.random() < 0.5:
            tree.draft_steps(rows.ids[0], chance.randint(1, 4), chance.randint(1, 3))
        verified = tree.verify(rows.ids, rows.parents)
        path = rows.path(chance.randrange(nodes))
        logits = torch.from_numpy(verified.logits[path].copy())
        tree.commit(chance.choice((list, tuple))(path))
        assert torch.equal(logits, decode(plain, [rows.ids[node] for node in path]))
        if chance.random() < 0.3:
            assert_same(kind, tree, plain)
        if chance.random() < 0.3:
            token = chance.randrange(STATE_CASE.vocab)
            assert tree.prefill([token]).best == plain.prefill([token]).best
    assert tree.draft(3, 4) == plain.draft(3, 4)
    assert_same(kind, tree, plain)


def check_abandoned_trees(kind: BackendKind, loaded: Loaded) -> None:
    """A tree that is verified and not committed leaves the state as it was, whatever comes next."""
    tree, ids = prefilled(kind, loaded, 9)
    plain, _ = prefilled(kind, loaded, 9)
    rows = random_rows(random.Random(1), 12, STATE_CASE.vocab)
    for ending in ("none", "prefill", "verify"):
        tree.verify(rows.ids, rows.parents)
        tree.commit(rows.path(7))
        decode(plain, [rows.ids[node] for node in rows.path(7)])
        tree.verify(rows.ids, rows.parents)
        if ending == "prefill":
            assert tree.prefill(ids[:2]).best == plain.prefill(ids[:2]).best
        elif ending == "verify":
            assert torch.equal(decode(tree, ids[:2]), decode(plain, ids[:2]))
        assert_same(kind, tree, plain)


def check_refused_trees(kind: BackendKind, loaded: Loaded) -> None:
    """What is no tree, or no path of it, is refused and changes nothing."""
    backend, ids = prefilled(kind, loaded, 9)
    before = kind.snapshot(backend)
    for parents, reason in (
        ([-1, 0], "one parent a row, got 2 for 4 rows"),
        ([-1, 0, 0, 1], "node 3 with parent 1"),
        ([-1, -1, 0, 0], "node 1 with parent -1"),
        ([0, 0, 0, 0], "node 0 with parent 0"),
        ([-1, 0, 4, 0], "node 2 with parent 4"),
    ):
        with pytest.raises(ValueError, match=reason):
            backend.verify(ids[9:13], parents)
    with pytest.raises(ValueError, match=f"at most {VERIFY_ROWS} rows, got 33"):
        backend.verify(ids[:33], [-1, *[0] * 32])
    backend.verify(ids[9:13], [-1, 0, 1, 0])
    for path in ([], [1], [0, 2], [0, 1, 3], [0, 0], [0, 1, 2, 4], [-1], 4, 0, -1):
        with pytest.raises(ValueError, match="commit keeps"):
            backend.commit(path)
    for name, part in kind.snapshot(backend).items():
        assert torch.equal(part, before[name]), name
    backend.commit([0, 3])
    assert backend.length == 11


def check_rejected_rows(kind: BackendKind, loaded: Loaded, drafted: int, kept: int) -> None:
    """`kept` rows of 1 + `drafted` are kept, so at least one is rejected."""
    drafting, ids = prefilled(kind, loaded)
    plain, _ = prefilled(kind, loaded)
    right = ids[PROMPT : PROMPT + kept]
    wrong = [(token + 1) % STATE_CASE.vocab for token in ids[PROMPT + kept : PROMPT + 1 + drafted]]
    drafting.draft(right[0], drafted)
    drafting.verify([*right, *wrong])
    drafting.commit(kept)
    for token in right:
        plain.verify([token])
        plain.commit(1)
    following = ids[PROMPT + kept]
    assert drafting.draft(following, 3) == plain.draft(following, 3)
    assert_same(kind, drafting, plain)


def check_abandoned_pass(kind: BackendKind, loaded: Loaded) -> None:
    """A draft and a verify pass without a commit leave the state as it was."""
    abandoning, ids = prefilled(kind, loaded)
    plain, _ = prefilled(kind, loaded)
    abandoning.draft(ids[0], 4)
    abandoning.verify(ids[:5])
    assert_same(kind, abandoning, plain)
    abandoning.verify(ids[PROMPT : PROMPT + 1])
    plain.verify(ids[PROMPT : PROMPT + 1])
    for backend in (abandoning, plain):
        backend.commit(1)
    assert abandoning.draft(ids[PROMPT + 1], 4) == plain.draft(ids[PROMPT + 1], 4)
    assert_same(kind, abandoning, plain)
