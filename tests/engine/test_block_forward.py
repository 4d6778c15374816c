# SPDX-License-Identifier: MIT OR Apache-2.0
"""The block drafter's forward against its twin, its cache against recomputation, the text against plain."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from backends import CONTEXT_TOKENS, KINDS, BackendKind, Loaded
from drafters import make_drafter, own_copy
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import STATE_CASE, token_ids
from torch import Tensor

from engine.errors import UnsupportedModelError
from engine.knobs import KnobSet
from engine.load.drafter import BlockCheckpoint
from engine.model.backend import Backend
from engine.model.block_reference import ReferenceBlock
from engine.model.block_waiting import WaitingRows
from engine.model.cuda import CudaBackend
from engine.model.dense import in_dtype
from engine.model.native import NativeBackend
from engine.model.reference import ReferenceBackend
from engine.spec.block import BlockDrafter

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = 21
CAPACITY = 96
IDS = token_ids(STATE_CASE, CAPACITY, seed=11)
NATIVE = KINDS[-1]


@pytest.fixture(scope="module")
def compiled() -> BackendKind:
    """The backend whose drafter is held to the readable one; a module of another backend names its own."""
    return NATIVE


@pytest.fixture(scope="module")
def drafter(loaded: Loaded, tmp_path_factory: pytest.TempPathFactory) -> BlockCheckpoint:
    """A random drafter of the small model."""
    return make_drafter(tmp_path_factory.mktemp("drafter"), loaded.config)


def following(kind: BackendKind, loaded: Loaded, drafter: BlockCheckpoint) -> Backend:
    """A backend that takes the drafter along, behind the prompt."""
    backend = kind.make(loaded.config, loaded.weights, CAPACITY)
    backend.attach_block(own_copy(drafter))
    backend.reset(speculate=True)
    backend.prefill(IDS[:PROMPT])
    return backend


def block_of(backend: Backend) -> WaitingRows | ReferenceBlock:
    """The drafter that the backend took along, knowing every committed row."""
    if isinstance(backend, NativeBackend):
        backend.block_room()
        return backend._drafters.block
    return backend._drafters.block if isinstance(backend, CudaBackend) else backend._block


def context(backend: Backend) -> list[Tensor]:
    """Every key and value of the drafter's cache, layer by layer."""
    block = block_of(backend)
    both = block.context(*(() if isinstance(block, ReferenceBlock) else (backend._run,)))
    return [part for pair in both for part in pair]


def assert_same_context(kind: BackendKind, one: Backend, other: Backend) -> None:
    for got, wanted in zip(context(one), context(other), strict=True):
        assert got.shape == wanted.shape
        assert kind.equal(got.float(), wanted.float())


def twin_of(loaded: Loaded, drafter: BlockCheckpoint) -> ReferenceBlock:
    """The readable pass over the same embedding and head."""
    weights = in_dtype(loaded.weights, torch.bfloat16)
    twin = ReferenceBlock(
        drafter.config,
        drafter.weights,
        embedding=weights.embed,
        head=weights.head_linear.dequantise().float(),
        tokens=loaded.config.vocab_size,
        capacity=CAPACITY,
        dtype=torch.bfloat16,
    )
    twin.reset(active=True)
    return twin


@pytest.mark.parametrize("changes", [{}, {"tap_offset": 0}, {"window": 9}, {"conv_group": 8}])
def test_a_draft_agrees_with_its_twin(
    compiled: BackendKind, loaded: Loaded, tmp_path: Path, changes: dict[str, int]
) -> None:
    drafter = make_drafter(tmp_path, loaded.config, **changes)
    backend = following(compiled, loaded, drafter)
    twin = twin_of(loaded, drafter)
    block = block_of(backend)
    twin.take(block.streams[:PROMPT].clone())
    for got, pair in zip(block.context(backend._run), twin.context(), strict=True):
        for mine, wanted in zip(got, pair, strict=True):
            assert (mine.float() - wanted.float()).abs().max() <= 0.03 * wanted.float().abs().max()
    for width in (16, 2, 8):
        got, wanted = backend.draft_block(IDS[PROMPT], width), twin.draft(IDS[PROMPT], width)
        assert got.tokens.shape == wanted.tokens.shape == (width - 1, drafter.config.top_k)
        size = np.abs(wanted.logits).max()
        assert np.abs(got.logits - wanted.logits).max() <= 0.05 * size
        assert (
            np.abs(got.projected - wanted.projected).max() <= 0.05 * np.abs(wanted.projected).max()
        )
        # A token that leads clearly leads in both.
        clear = wanted.logits[:, 0] - wanted.logits[:, 1] > 0.1 * size
        assert (got.tokens[clear, 0] == wanted.tokens[clear, 0]).all()


def test_streams_are_those_of_the_named_layers(loaded: Loaded, tmp_path: Path) -> None:
    """The readable trunk's residuals, layer by layer, against what the native passes left."""
    taps = (0, 1, loaded.config.layers - 1)
    drafter = make_drafter(tmp_path, loaded.config, taps=taps)
    config = drafter.config
    native = NATIVE.make(loaded.config, loaded.weights, CAPACITY)
    readable = KINDS[1].make(loaded.config, loaded.weights, CAPACITY)
    assert isinstance(native, NativeBackend)
    assert isinstance(readable, ReferenceBackend)
    for backend in (native, readable):
        backend.attach_block(own_copy(drafter))
        backend.reset(speculate=True)
        backend.prefill(IDS[:PROMPT])
    readable.reset(speculate=False)
    _, _, wanted = readable._forward(IDS[:PROMPT], 0, readable._recurrent)
    got = block_of(native).streams[:PROMPT]
    hidden = config.hidden_size
    for part in range(len(config.taps)):
        columns = slice(part * hidden, (part + 1) * hidden)
        mine, theirs = got[:, columns].float(), wanted[:, columns].float()
        assert (mine - theirs).abs().max() <= 0.05 * theirs.abs().max()
        others = [
            wanted[:, slice(o * hidden, (o + 1) * hidden)].float() for o in range(3) if o != part
        ]
        assert all(
            (mine - other).abs().mean() > 2 * (mine - theirs).abs().mean() for other in others
        )


def accepted_path(
    kind: BackendKind, loaded: Loaded, drafter: BlockCheckpoint
) -> tuple[Backend, Backend]:
    """Backends behind the same tokens: those of one were a path of a tree, those of the other single rows."""
    tree, plain = (following(kind, loaded, drafter) for _ in range(2))
    right = IDS[PROMPT : PROMPT + 3]
    # Rows 1 and 2 are a wrong branch in front of the accepted path 0, 3, 4.
    wrong = [(token + 7) % STATE_CASE.vocab for token in right[1:]]
    tree.verify([right[0], *wrong, *right[1:]], [-1, 0, 1, 0, 3])
    tree.commit([0, 3, 4])
    for token in right:
        plain.verify([token])
        plain.commit(1)
    return tree, plain


def test_the_cache_follows_the_accepted_rows_of_a_tree(
    backend_factory: BackendKind, loaded: Loaded, drafter: BlockCheckpoint
) -> None:
    tree, plain = accepted_path(backend_factory, loaded, drafter)
    assert_same_context(backend_factory, tree, plain)
    rows = [backend.draft_block(IDS[PROMPT + 3], 8) for backend in (tree, plain)]
    assert (rows[0].tokens == rows[1].tokens).all()


@settings(max_examples=6, deadline=None)
@given(
    rounds=st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 6), st.booleans()), min_size=1, max_size=6
    )
)
def test_the_cache_equals_recomputation(
    backend_factory: BackendKind,
    loaded: Loaded,
    drafter: BlockCheckpoint,
    rounds: list[tuple[int, int, bool]],
) -> None:
    """Any history of (rows, accepted, whether the drafter was asked) against one prefill of the same tokens."""
    followed = following(backend_factory, loaded, drafter)
    at = PROMPT
    for extra, accepted, asked in rounds:
        if asked:
            followed.draft_block(IDS[at], 8)
        accepted = min(accepted, extra)
        rows = IDS[at : at + 1 + accepted]
        misses = [(t + 5) % STATE_CASE.vocab for t in IDS[at + 1 + accepted : at + 1 + extra]]
        followed.verify([*rows, *misses])
        followed.commit(1 + accepted)
        at += 1 + accepted
    fresh = backend_factory.make(loaded.config, loaded.weights, CAPACITY)
    fresh.attach_block(own_copy(drafter))
    fresh.reset(speculate=True)
    fresh.prefill(IDS[:at])
    assert_same_context(backend_factory, followed, fresh)


def test_long_prompts_and_idle_rounds_overflow_the_waiting_rows(
    compiled: BackendKind, loaded: Loaded, drafter: BlockCheckpoint
) -> None:
    ids = token_ids(STATE_CASE, 400, seed=3)
    backends = []
    for chunk in (400, 37):
        backend = compiled.make(loaded.config, loaded.weights, CONTEXT_TOKENS)
        backend.attach_block(own_copy(drafter))
        backend.reset(speculate=True)
        for at in range(0, 400, chunk):
            backend.prefill(ids[at : at + chunk])
        backends.append(backend)
    assert len(context(backends[0])[0]) == 400
    assert_same_context(compiled, *backends)


def test_behind_a_mark_the_cache_begins_anew_at_its_place(
    backend_factory: BackendKind, loaded: Loaded, drafter: BlockCheckpoint
) -> None:
    back, plain = (following(backend_factory, loaded, drafter) for _ in range(2))
    anew = backend_factory.make(loaded.config, loaded.weights, CAPACITY)
    anew.attach_block(own_copy(drafter))
    anew.prefill(IDS[:PROMPT])
    anew.resume(None, speculate=True)
    mark = back.mark()
    back.prefill(IDS[:40])
    back.draft_block(IDS[40], 8)
    back.resume(mark, speculate=True)
    for backend in (back, plain, anew):
        backend.prefill(IDS[PROMPT : CAPACITY - 5])
    assert len(context(back)[0]) == CAPACITY - 5 - PROMPT
    assert_same_context(backend_factory, back, anew)
    assert back.block_room() == plain.block_room() < drafter.config.block_size


def test_proposals_never_change_the_text(
    backend_factory: BackendKind, loaded: Loaded, drafter: BlockCheckpoint
) -> None:
    """Greedy rounds on the drafter's trees and chains against plain decoding."""
    plain = following(backend_factory, loaded, drafter)
    wanted, token = [], IDS[PROMPT]
    for _ in range(30):
        token = plain.verify([token]).best[0]
        plain.commit(1)
        wanted.append(token)
    for mode in ("nodes", "paths"):
        backend = following(backend_factory, loaded, drafter)
        source = BlockDrafter(backend, width=8, mode=mode)
        text, anchor = [], IDS[PROMPT]
        while len(text) < 30:
            tree = source.propose(anchor, 12)
            assert tree is not None
            assert len(tree) > 8
            verified = backend.verify(tree.tokens, tree.parents)
            path, tokens = tree.walk(verified.best.__getitem__)
            backend.commit(path)
            text += tokens
            anchor = tokens[-1]
        assert text[:30] == wanted


def test_room_ends_with_the_context(
    backend_factory: BackendKind, loaded: Loaded, tmp_path: Path
) -> None:
    drafter = make_drafter(tmp_path, loaded.config, context_tokens=PROMPT + 4)
    backend = following(backend_factory, loaded, drafter)
    assert backend.block_room() == 4
    for width in (1, 5):
        with pytest.raises(ValueError, match="2 to 4 rows"):
            backend.draft_block(IDS[PROMPT], width)
    source = BlockDrafter(backend)
    lattice = source.lattice(IDS[PROMPT], 9)
    assert lattice is not None
    assert len(lattice.tokens) == 3  # the anchor takes the fourth row
    for token in IDS[PROMPT : PROMPT + 30]:  # decoding goes on without the drafter
        backend.verify([token])
        backend.commit(1)
    assert source.propose(IDS[PROMPT], 9) is None


def test_without_speculation_nothing_is_kept(
    backend_factory: BackendKind, loaded: Loaded, drafter: BlockCheckpoint
) -> None:
    backend = following(backend_factory, loaded, drafter)
    assert backend.block_bytes() > 0
    backend.reset(speculate=False)
    backend.prefill(IDS[:PROMPT])
    assert backend.block_room() == 0


def test_a_backend_without_a_drafter_says_so(backend_factory: BackendKind, loaded: Loaded) -> None:
    backend = backend_factory.make(loaded.config, loaded.weights, CAPACITY)
    assert (backend.block_room(), backend.block_bytes()) == (0, 0)
    with pytest.raises(ValueError, match="no block drafter"):
        backend.draft_block(1, 8)


def test_a_shape_beyond_the_kernels_is_refused(loaded: Loaded, tmp_path: Path) -> None:
    drafter = make_drafter(tmp_path, loaded.config, head_dim=24)
    backend = NATIVE.make(loaded.config, loaded.weights, CAPACITY)
    with pytest.raises(UnsupportedModelError, match="head_dim a multiple of 16"):
        backend.attach_block(drafter)


def test_eager_and_replayed_drafts_have_the_same_bits(
    loaded: Loaded, drafter: BlockCheckpoint
) -> None:
    rows = []
    for replay in ("1", "0"):
        backend = following(NATIVE, loaded, drafter)
        assert isinstance(backend, NativeBackend)
        backend.apply_knobs(KnobSet.resolve(environ={}, changes={"QWEN38_DRAFT_GRAPH": replay}))
        rows.append(backend.draft_block(IDS[PROMPT], 16))
        counted = backend.engaged()
        assert ("draft tape replays" in counted) == (replay == "1")
        assert ("draft eager passes" in counted) == (replay == "0")
    assert (rows[0].tokens == rows[1].tokens).all()
    assert (rows[0].logits == rows[1].logits).all()
    assert (rows[0].projected == rows[1].projected).all()
