# SPDX-License-Identifier: MIT OR Apache-2.0
"""One sequence computed in any way: chunks of the prompt, single steps, verify rows, a full context."""

from __future__ import annotations

import pytest
import torch
from backends import BackendKind, Loaded
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import STATE_CASE, token_ids
from torch import Tensor

from engine.model.backend import Backend

pytestmark = pytest.mark.usefixtures("one_thread")

CAPACITY = 100


def opened(kind: BackendKind, loaded: Loaded, capacity: int = CAPACITY) -> Backend:
    return kind.make(loaded.config, loaded.weights, capacity)


def step(backend: Backend, token: int) -> Tensor:
    """Decode one token; its logits [vocabulary], copied."""
    logits = torch.from_numpy(backend.verify([token]).logits.copy())[0]
    backend.commit(1)
    return logits


def chunked(backend: Backend, ids: list[int], ends: list[int]) -> Tensor:
    """Logits [T, vocabulary] of prompt chunks that end at `ends`, then single steps."""
    parts, start = [], 0
    for end in ends:
        parts.append(backend.all_logits(ids[start:end]).clone())
        start = end
    parts += [step(backend, token)[None] for token in ids[start:]]
    return torch.cat(parts)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_chunking_then_decode_equals_one_forward(
    backend_factory: BackendKind, loaded: Loaded, data: st.DataObject
) -> None:
    ids = token_ids(STATE_CASE, data.draw(st.integers(1, CAPACITY), label="tokens"), seed=1)
    cuts = data.draw(st.sets(st.integers(1, len(ids)), max_size=6), label="chunk ends")
    whole = opened(backend_factory, loaded)
    wanted = whole.all_logits(ids).clone()
    parts = opened(backend_factory, loaded)
    assert backend_factory.equal(chunked(parts, ids, sorted(cuts)), wanted)
    assert parts.length == whole.length == len(ids)
    kept, kept_whole = backend_factory.snapshot(parts), backend_factory.snapshot(whole)
    assert kept.keys() == kept_whole.keys()
    for name, part in kept.items():
        if part.numel():
            assert backend_factory.equal(part, kept_whole[name]), name


def test_prefill_returns_the_last_row(backend_factory: BackendKind, loaded: Loaded) -> None:
    ids = token_ids(STATE_CASE, 37, seed=2)
    backend = opened(backend_factory, loaded)
    wanted = backend.all_logits(ids)[-1].clone()
    backend.reset(speculate=False)
    last = backend.prefill(ids)
    assert last.logits.shape == (1, STATE_CASE.vocab)
    assert backend_factory.equal(torch.from_numpy(last.logits)[0], wanted)
    assert last.best == [int(wanted.argmax())]


@pytest.mark.usefixtures("nan_poison")
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 32])
def test_verify_rows_have_the_bits_of_single_steps(
    backend_factory: BackendKind, loaded: Loaded, rows: int
) -> None:
    ids = token_ids(STATE_CASE, 41 + rows, seed=3)
    together, alone = opened(backend_factory, loaded), opened(backend_factory, loaded)
    together.prefill(ids[:41])
    alone.prefill(ids[:41])
    verified = together.verify(ids[41:])
    got = torch.from_numpy(verified.logits.copy())
    wanted = torch.stack([step(alone, token) for token in ids[41:]])
    assert torch.equal(got, wanted)
    assert verified.best == wanted.argmax(-1).tolist()
    together.commit(rows)
    for name, part in backend_factory.snapshot(together).items():
        assert torch.equal(part, backend_factory.snapshot(alone)[name]), name


@pytest.mark.parametrize("capacity", [63, 64, 65])
@pytest.mark.parametrize("spare", [0, 1])
def test_a_full_context_equals_a_roomy_one(
    backend_factory: BackendKind, loaded: Loaded, capacity: int, spare: int
) -> None:
    ids = token_ids(STATE_CASE, capacity - spare, seed=4)
    tight, roomy = opened(backend_factory, loaded, capacity), opened(backend_factory, loaded)
    for backend in (tight, roomy):
        backend.reset(speculate=True)
    cut = len(ids) - 6
    assert torch.equal(tight.all_logits(ids[:cut]), roomy.all_logits(ids[:cut]))
    for token in ids[cut:]:
        assert tight.draft(token, 1) == roomy.draft(token, 1)
        assert torch.equal(step(tight, token), step(roomy, token))
    assert tight.length == capacity - spare
    drafted = tight.draft(0, 4)
    assert drafted == roomy.draft(0, 4)[: len(drafted)]


def test_rows_beyond_the_context_are_refused(backend_factory: BackendKind, loaded: Loaded) -> None:
    ids = token_ids(STATE_CASE, 20, seed=5)
    backend = opened(backend_factory, loaded, 16)
    with pytest.raises(ValueError, match="17 rows after 0 do not fit a context of 16"):
        backend.prefill(ids[:17])
    backend.prefill(ids[:14])
    before = backend_factory.snapshot(backend)
    for refused in (backend.prefill, backend.all_logits, backend.verify):
        with pytest.raises(ValueError, match="3 rows after 14 do not fit a context of 16"):
            refused(ids[14:17])
        with pytest.raises(ValueError, match="0 rows"):
            refused([])
    for name, part in backend_factory.snapshot(backend).items():
        assert torch.equal(part, before[name]), name
    backend.verify(ids[14:16])
    backend.commit(2)
    assert backend.length == 16
    with pytest.raises(ValueError, match="1 rows after 16"):
        backend.verify(ids[16:17])
