# SPDX-License-Identifier: MIT OR Apache-2.0
"""Drafters on the MTP head: which tokens they propose, with which probabilities, in which shape."""

from __future__ import annotations

import math

import pytest
import torch
from backends import BackendKind, Loaded
from mtp_checks import Twin
from oracle import STATE_CASE, oracle_hidden, token_ids

from engine.model.backend import Backend, DraftStep
from engine.spec.decode import DecodeLoop
from engine.spec.mtp import MtpChain, MtpTree
from engine.spec.sampling import Sampling

pytestmark = pytest.mark.usefixtures("one_thread")


def prefilled(kind: BackendKind, loaded: Loaded) -> tuple[Backend, list[int]]:
    ids = token_ids(STATE_CASE, 40, seed=61)
    backend = kind.make(loaded.config, loaded.weights, 96)
    backend.reset(speculate=True)
    backend.prefill(ids[:20])
    return backend, ids


def twin_steps(loaded: Loaded, ids: list[int], anchor: int, depth: int) -> list[torch.Tensor]:
    """Probabilities [vocabulary] of each step of the greedy chain, by the twin in float32."""
    twin = Twin(loaded)
    hidden, tokens = oracle_hidden(loaded.oracle, ids), [*ids[1:], anchor]
    found = []
    for _ in range(depth):
        y = twin.rows(hidden, tokens)[-1:]
        found.append((y @ twin.head.T)[0].softmax(-1))
        hidden, tokens = torch.cat((hidden, y)), [*tokens, int(found[-1].argmax())]
    return found


def test_steps_hold_the_likeliest_tokens_with_their_probabilities(
    backend_factory: BackendKind, loaded: Loaded
) -> None:
    backend, ids = prefilled(backend_factory, loaded)
    exact = backend_factory.name == "reference float32"
    for width in (1, 2, 5):
        steps = backend.draft_steps(ids[20], 4, width)
        assert [step.tokens[0] for step in steps] == backend.draft(ids[20], 4)
        for step, wanted in zip(steps, twin_steps(loaded, ids[:20], ids[20], 4), strict=True):
            assert len(step.tokens) == len(step.probabilities) == width
            assert list(step.probabilities) == sorted(step.probabilities, reverse=True)
            if exact:
                assert list(step.tokens) == wanted.topk(width).indices.tolist()
            elif step.tokens[0] != int(wanted.argmax()):
                break  # in bfloat16 the chain may part from the twin's
            got = torch.tensor(step.probabilities)
            near = 1e-4 if exact else 0.1
            assert torch.allclose(got, wanted[list(step.tokens)], rtol=near, atol=0.1 * near)


def test_a_chain_scores_by_the_product_of_its_steps(
    backend_factory: BackendKind, loaded: Loaded
) -> None:
    backend, ids = prefilled(backend_factory, loaded)
    steps = backend.draft_steps(ids[20], 3, 1)
    drafter = MtpChain(backend, 3)
    chain = drafter.propose(ids[20], 31)
    assert chain is not None
    assert chain.is_chain
    assert chain.tokens == (ids[20], *(step.tokens[0] for step in steps))
    chances = [step.probabilities[0] for step in steps]
    assert chain.scores[1:] == pytest.approx([math.prod(chances[: at + 1]) for at in range(3)])
    assert drafter.read_bytes == backend.draft_bytes(3) > 0
    shorter = drafter.propose(ids[20], 2)
    assert shorter is not None
    assert shorter.tokens == chain.tokens[:3]


def test_a_tree_hangs_the_next_likeliest_tokens_on_every_step(
    backend_factory: BackendKind, loaded: Loaded
) -> None:
    backend, ids = prefilled(backend_factory, loaded)
    steps = backend.draft_steps(ids[20], 4, 3)
    tree = MtpTree(backend, 4, 2).propose(ids[20], 31)
    assert tree is not None
    assert len(tree) == 1 + 4 * 3
    node, score = 0, 1.0
    for step in steps:
        children = tree.children(node)
        assert tuple(tree.tokens[child] for child in children) == step.tokens
        scores = [score * chance for chance in step.probabilities]
        assert [tree.scores[child] for child in children] == pytest.approx(scores)
        node, score = children[0], scores[0]
    assert tree.children(node) == ()
    cut = MtpTree(backend, 4, 2).propose(ids[20], 5)
    assert cut is not None
    assert cut == tree.prune(6)


@pytest.mark.parametrize("make", [MtpChain, lambda backend, depth: MtpTree(backend, depth, 4)])
def test_no_draft_without_a_head_or_a_number(
    backend_factory: BackendKind,
    loaded: Loaded,
    monkeypatch: pytest.MonkeyPatch,
    make: type[MtpChain],
) -> None:
    backend, ids = prefilled(backend_factory, loaded)
    drafter = make(backend, 4)
    nothing = DraftStep((-1,) * 5, (0.0,) * 5)
    honest = backend.draft_steps(ids[20], 1, 5)
    monkeypatch.setattr(backend, "draft_steps", lambda anchor, depth, width: [*honest, nothing])
    tree = drafter.propose(ids[20], 31)
    assert tree is not None
    assert -1 not in tree.tokens
    assert max(tree.depths()) == 1
    monkeypatch.setattr(backend, "draft_steps", lambda anchor, depth, width: [nothing])
    assert drafter.propose(ids[20], 31) is None
    monkeypatch.undo()
    backend.reset(speculate=False)
    backend.prefill(ids[:20])
    assert drafter.propose(ids[20], 31) is None


def test_sizes_that_no_head_has_are_refused(backend_factory: BackendKind, loaded: Loaded) -> None:
    backend, _ = prefilled(backend_factory, loaded)
    for depth in (0, 5):
        with pytest.raises(ValueError, match=f"1 to 4 tokens, got {depth}"):
            MtpChain(backend, depth)
    for width in (0, 5):
        with pytest.raises(ValueError, match=f"1 to 4 side branches, got {width}"):
            MtpTree(backend, 4, width)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_is_the_one_without_drafts(
    backend_factory: BackendKind, loaded: Loaded, temperature: float
) -> None:
    backend, ids = prefilled(backend_factory, loaded)
    texts = []
    for drafter in (None, MtpChain(backend, 2), MtpTree(backend, 4, 4), MtpTree(backend, 1, 1)):
        backend.reset(speculate=drafter is not None)
        loop = DecodeLoop(backend, Sampling(temperature, seed=9), frozenset(), drafter)
        text = [loop.begin(backend.prefill(ids[:20]), ids[:20])]
        while len(text) < 16:
            text += loop.round(16 - len(text)).tokens
        texts.append(text)
    assert texts[1:] == texts[:1] * 3
