# SPDX-License-Identifier: MIT OR Apache-2.0
"""The block drafter of the GPU backend on a CPU, through PyTorch, by the tests that hold the other backends."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import test_block_forward as shared
import torch
from backends import BackendKind, Loaded
from drafters import make_drafter, own_copy

from engine.errors import UnsupportedModelError
from engine.knobs import KnobSet
from engine.load.drafter import BlockCheckpoint
from engine.load.weights import ModelWeights
from engine.model.backend import Backend
from engine.model.block_reference import ReferenceBlock
from engine.model.config import ModelConfig
from engine.model.cuda import CudaBackend
from engine.model.dense import in_dtype

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT, IDS = shared.PROMPT, shared.IDS


def _make(config: ModelConfig, weights: ModelWeights, capacity: int) -> Backend:
    return CudaBackend(
        config,
        copy.deepcopy(in_dtype(weights, torch.bfloat16)),
        capacity=capacity,
        knobs=KnobSet.resolve(environ={}),
        device="cpu",
    )


KIND = BackendKind("cuda", 2.0**-4, _make, lambda backend: {})


@pytest.fixture(scope="module")
def drafter(loaded: Loaded, tmp_path_factory: pytest.TempPathFactory) -> BlockCheckpoint:
    return make_drafter(tmp_path_factory.mktemp("drafter"), loaded.config)


@pytest.mark.parametrize("changes", [{}, {"tap_offset": 0}, {"window": 9}, {"conv_group": 8}])
def test_a_draft_agrees_with_its_twin(
    loaded: Loaded, tmp_path: Path, changes: dict[str, int]
) -> None:
    drafter = make_drafter(tmp_path, loaded.config, **changes)
    backend = shared.following(KIND, loaded, drafter)
    assert isinstance(backend, CudaBackend)
    weights = in_dtype(loaded.weights, torch.bfloat16)
    twin = ReferenceBlock(
        drafter.config,
        drafter.weights,
        embedding=weights.embed,
        head=weights.head_linear.dequantise().float(),
        tokens=loaded.config.vocab_size,
        capacity=shared.CAPACITY,
        dtype=torch.bfloat16,
    )
    twin.reset(active=True)
    twin.take(backend._block.streams[:PROMPT].clone())
    for got, pair in zip(backend._block.context(backend._run), twin.context(), strict=True):
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
        clear = wanted.logits[:, 0] - wanted.logits[:, 1] > 0.1 * size
        assert (got.tokens[clear, 0] == wanted.tokens[clear, 0]).all()


def test_streams_are_those_of_the_named_layers(loaded: Loaded, tmp_path: Path) -> None:
    drafter = make_drafter(tmp_path, loaded.config, taps=(0, 1, loaded.config.layers - 1))
    native = shared.following(shared.NATIVE, loaded, drafter)
    backend = shared.following(KIND, loaded, drafter)
    wanted, got = (each._block.streams[:PROMPT].float() for each in (native, backend))
    assert (got - wanted).abs().max() <= 0.05 * wanted.abs().max()


def test_the_cache_follows_the_accepted_rows_of_a_tree(
    loaded: Loaded, drafter: BlockCheckpoint
) -> None:
    tree, plain = (shared.following(KIND, loaded, drafter) for _ in range(2))
    right = IDS[PROMPT : PROMPT + 3]
    wrong = [(token + 7) % loaded.config.vocab_size for token in right[1:]]
    tree.verify([right[0], *wrong, *right[1:]], [-1, 0, 1, 0, 3])
    tree.commit([0, 3, 4])
    for token in right:
        plain.verify([token])
        plain.commit(1)
    pairs = [backend._block.context(backend._run) for backend in (tree, plain)]
    for got, wanted in zip(*pairs, strict=True):
        assert all(torch.equal(*both) for both in zip(got, wanted, strict=True))
    rows = [backend.draft_block(IDS[PROMPT + 3], 8) for backend in (tree, plain)]
    assert (rows[0].tokens == rows[1].tokens).all()


def test_long_prompts_and_idle_rounds_overflow_the_waiting_rows(
    loaded: Loaded, drafter: BlockCheckpoint
) -> None:
    ids = shared.token_ids(shared.STATE_CASE, 400, seed=3)
    found = []
    for chunk in (400, 37):
        backend = KIND.make(loaded.config, loaded.weights, shared.CONTEXT_TOKENS)
        backend.attach_block(own_copy(drafter))
        backend.reset(speculate=True)
        for at in range(0, 400, chunk):
            backend.prefill(ids[at : at + chunk])
        found.append([part for pair in backend._block.context(backend._run) for part in pair])
    for got, wanted in zip(*found, strict=True):
        assert len(got) == 400
        assert (got.float() - wanted.float()).abs().max() <= 0.05 * wanted.float().abs().max()


def test_proposals_never_change_the_text(loaded: Loaded, drafter: BlockCheckpoint) -> None:
    shared.test_proposals_never_change_the_text(KIND, loaded, drafter)


def test_room_ends_with_the_context(loaded: Loaded, tmp_path: Path) -> None:
    shared.test_room_ends_with_the_context(KIND, loaded, tmp_path)


def test_without_speculation_nothing_is_kept(loaded: Loaded, drafter: BlockCheckpoint) -> None:
    shared.test_without_speculation_nothing_is_kept(KIND, loaded, drafter)


def test_a_number_that_is_none_names_no_token(loaded: Loaded, drafter: BlockCheckpoint) -> None:
    backend = shared.following(KIND, loaded, drafter)
    backend.draft_block(IDS[PROMPT], 16)
    backend._block._kv.values[:, :, PROMPT + 20] = torch.nan  # behind the block: no row sees it
    assert (backend.draft_block(IDS[PROMPT], 8).tokens >= 0).all()
    backend._block._kv.values[:, :, PROMPT - 1] = torch.nan
    assert (backend.draft_block(IDS[PROMPT], 8).tokens == -1).all()


def test_a_shape_beyond_the_operations_is_refused(loaded: Loaded, tmp_path: Path) -> None:
    drafter = make_drafter(tmp_path, loaded.config, head_dim=24)
    backend = KIND.make(loaded.config, loaded.weights, 96)
    with pytest.raises(UnsupportedModelError, match="head_dim a multiple of 16"):
        backend.attach_block(drafter)
    assert (backend.block_room(), backend.block_bytes()) == (0, 0)
    with pytest.raises(ValueError, match="no block drafter"):
        backend.draft_block(1, 8)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("an instruction that this device has not"), UnsupportedModelError),
        (torch.OutOfMemoryError("CUDA out of memory."), torch.OutOfMemoryError),
    ],
)
def test_a_drafter_that_fails_on_the_device_is_left_out(
    loaded: Loaded,
    drafter: BlockCheckpoint,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    told: type[Exception],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    backend = KIND.make(loaded.config, loaded.weights, shared.CAPACITY)
    monkeypatch.setattr("engine.model.cuda_block_plain.candidates", fail)
    with pytest.raises(told, match=str(error)):
        backend.attach_block(own_copy(drafter))
    backend.reset(speculate=True)
    backend.prefill(IDS[:PROMPT])
    assert (backend.block, backend.block_room()) == (None, 0)
