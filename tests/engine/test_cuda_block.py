# SPDX-License-Identifier: MIT OR Apache-2.0
"""The block drafter of the GPU backend on a CPU, through PyTorch, by the tests that hold the other backends."""

from __future__ import annotations

import copy
from pathlib import Path

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


KIND = BackendKind("cuda", 0.05, _make, lambda backend: {})

drafter = shared.drafter


@pytest.fixture(scope="module")
def backend_factory() -> BackendKind:
    return KIND


@pytest.fixture(scope="module")
def compiled() -> BackendKind:
    return KIND


# With the fixtures of this module, what holds of the other backends' drafters is held to here.
test_a_draft_agrees_with_its_twin = shared.test_a_draft_agrees_with_its_twin
test_the_cache_follows_a_tree = shared.test_the_cache_follows_the_accepted_rows_of_a_tree
test_waiting_rows_overflow = shared.test_long_prompts_and_idle_rounds_overflow_the_waiting_rows
test_behind_a_mark_it_begins_anew = shared.test_behind_a_mark_the_cache_begins_anew_at_its_place
test_proposals_never_change_the_text = shared.test_proposals_never_change_the_text
test_room_ends_with_the_context = shared.test_room_ends_with_the_context
test_without_speculation_nothing_is_kept = shared.test_without_speculation_nothing_is_kept
test_a_backend_without_a_drafter_says_so = shared.test_a_backend_without_a_drafter_says_so


def test_streams_are_those_of_the_named_layers(loaded: Loaded, tmp_path: Path) -> None:
    drafter = make_drafter(tmp_path, loaded.config, taps=(0, 1, loaded.config.layers - 1))
    native = shared.following(shared.NATIVE, loaded, drafter)
    backend = shared.following(KIND, loaded, drafter)
    wanted, got = (shared.block_of(each).streams[:PROMPT].float() for each in (native, backend))
    assert (got - wanted).abs().max() <= 0.05 * wanted.abs().max()


def test_a_tree_leaves_the_bits_of_single_rows(loaded: Loaded, drafter: BlockCheckpoint) -> None:
    tree, plain = shared.accepted_path(KIND, loaded, drafter)
    for got, wanted in zip(shared.context(tree), shared.context(plain), strict=True):
        assert len(got) > 0
        assert torch.equal(got, wanted)


def test_a_number_that_is_none_names_no_token(loaded: Loaded, drafter: BlockCheckpoint) -> None:
    backend = shared.following(KIND, loaded, drafter)
    values = backend._drafters.block._kv.values
    backend.draft_block(IDS[PROMPT], 16)
    values[:, :, PROMPT + 20] = torch.nan  # behind the block: no row sees it
    assert (backend.draft_block(IDS[PROMPT], 8).tokens >= 0).all()
    values[:, :, PROMPT - 1] = torch.nan
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
