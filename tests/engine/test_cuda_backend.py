# SPDX-License-Identifier: MIT OR Apache-2.0
"""The GPU backend's body on a CPU, through PyTorch: rows, trees, rollback, the MTP head, prompt chunks.

The same checks hold the other backends; what a machine without a GPU cannot show stands in tests/gpu.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
from backends import BackendKind, Loaded
from mtp_checks import check_drafts_need_a_head, check_mtp_cache_over_rounds
from oracle import STATE_CASE, token_ids
from resume_checks import (
    Rounds,
    check_back_to_a_mark,
    check_end_of_marks,
    check_head_that_rested,
    check_mark_behind_a_draft,
    check_on_from_the_end,
)
from state_checks import (
    check_abandoned_pass,
    check_abandoned_trees,
    check_committed_paths,
    check_nodes_of_a_tree,
    check_refused_trees,
    check_rejected_rows,
)
from test_commit_in_verify import play
from test_native import CAPACITY, CONFIG, VOCABULARY, one_by_one, sequence
from torch import Tensor

from engine.knobs import KnobSet
from engine.load.stored import Dense
from engine.load.synthetic import synthetic_weights
from engine.load.weights import ModelWeights
from engine.measure.price_store import live_prices
from engine.model.backend import Backend
from engine.model.byte_model import ByteModel
from engine.model.config import ModelConfig
from engine.model.cuda import CudaBackend
from engine.model.cuda_arena import arena_bytes
from engine.model.cuda_graphs import Body, CudaRecording
from engine.model.cuda_times import OFF, OperationTimes
from engine.model.cuda_weights import device_bytes, is_expanded, unsupported_shape
from engine.model.dense import in_dtype
from engine.model.reference import ReferenceBackend
from engine.spec.decode import DecodeLoop
from engine.spec.lookup import LookupDrafter
from engine.spec.mtp import MtpChain, MtpTree
from engine.spec.sampling import Sampling
from engine.spec.staircut_build import build_staircut

pytestmark = pytest.mark.usefixtures("one_thread")

FORMATS = ("nvfp4", "fp8", "bf16")


def make(weight_format: str, config: ModelConfig = CONFIG, **knobs: str) -> CudaBackend:
    changes = {f"QWEN38_{name}": value for name, value in knobs.items()}
    return CudaBackend(
        config,
        synthetic_weights(config, weight_format, seed=5),
        capacity=CAPACITY,
        knobs=KnobSet.resolve(environ={}, changes=changes),
        device="cpu",
    )


def _make(config: ModelConfig, weights: ModelWeights, capacity: int) -> Backend:
    own = copy.deepcopy(in_dtype(weights, torch.bfloat16))
    knobs = KnobSet.resolve(environ={})
    return CudaBackend(config, own, capacity=capacity, knobs=knobs, device="cpu")


def _snapshot(backend: Backend) -> dict[str, Tensor]:
    assert isinstance(backend, CudaBackend)
    return backend.committed_state()


KIND = BackendKind("cuda", 5e-2, _make, _snapshot)


@pytest.fixture(scope="module")
def backend() -> Iterator[CudaBackend]:
    made = make("nvfp4")
    yield made
    made.close()


@pytest.mark.parametrize("weight_format", FORMATS)
def test_the_forward_follows_the_reference(weight_format: str) -> None:
    ids = sequence(90, seed=2)
    weights = synthetic_weights(CONFIG, weight_format, seed=5)
    exact = ReferenceBackend(CONFIG, weights, capacity=CAPACITY, dtype=torch.float32).all_logits(
        ids
    )
    backend = make(weight_format)
    ours = backend.all_logits(ids)
    spread = float(exact.std())
    assert float((ours - exact).abs().mean()) < 0.03 * spread
    assert float((ours - exact).abs().max()) < 0.3 * spread
    backend.reset(speculate=False)
    last = torch.from_numpy(backend.prefill(ids).logits)[0]
    assert float((last - exact[-1]).abs().max()) < 0.3 * spread


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 16, 17, 32])
def test_rows_of_a_verify_pass_have_the_bits_of_single_steps(
    backend: CudaBackend, rows: int
) -> None:
    ids = sequence(45)
    plain = one_by_one(backend, ids[: 5 + rows])
    backend.reset(speculate=False)
    backend.prefill(ids[:5])
    verified = backend.verify(ids[5 : 5 + rows])
    assert torch.equal(torch.from_numpy(verified.logits), plain[5:])
    assert verified.best == plain[5:].argmax(-1).tolist()


@pytest.mark.usefixtures("nan_poison")
@pytest.mark.parametrize(("nodes", "wide"), [(3, 1.0), (9, 1.0), (17, 0.2), (32, 0.9)])
def test_a_node_of_a_tree_has_the_bits_of_its_path(loaded: Loaded, nodes: int, wide: float) -> None:
    check_nodes_of_a_tree(KIND, loaded, nodes, wide)


def test_a_committed_path_leaves_the_state_of_decoding_it(loaded: Loaded) -> None:
    check_committed_paths(KIND, loaded, seed=1)


@pytest.mark.parametrize(("drafted", "kept"), [(1, 1), (4, 3), (7, 2), (7, 7)])
def test_rejected_rows_leave_no_trace(loaded: Loaded, drafted: int, kept: int) -> None:
    check_rejected_rows(KIND, loaded, drafted, kept)


def test_an_abandoned_pass_leaves_no_trace(loaded: Loaded) -> None:
    check_abandoned_pass(KIND, loaded)
    check_abandoned_trees(KIND, loaded)


def test_what_is_no_tree_or_no_path_is_refused(loaded: Loaded) -> None:
    check_refused_trees(KIND, loaded)


def test_the_mtp_cache_stays_in_step(loaded: Loaded) -> None:
    check_mtp_cache_over_rounds(KIND, loaded, seed=0)
    check_drafts_need_a_head(KIND, loaded)


@pytest.mark.parametrize("after", [[], [(2, 1), (0, 0), (4, 4)]])
def test_a_sequence_goes_back_to_a_mark(loaded: Loaded, after: Rounds) -> None:
    some = [(3, 1), (0, 0), (2, 2)]
    check_back_to_a_mark(KIND, loaded, start=13, before=some, away=some, more=11, after=after)
    check_end_of_marks(KIND, loaded)
    check_head_that_rested(KIND, loaded)
    check_mark_behind_a_draft(KIND, loaded)


@pytest.mark.parametrize(("before", "after"), [(True, True), (True, False), (False, True)])
def test_a_sequence_goes_on_from_its_end(loaded: Loaded, before: bool, after: bool) -> None:
    check_on_from_the_end(KIND, loaded, before=before, after=after)


def test_a_prompt_in_chunks_is_the_prompt(loaded: Loaded) -> None:
    """Chunks of more than 32 rows round otherwise; shorter ones are verify passes."""
    ids = token_ids(STATE_CASE, 96, seed=2)
    logits, states = [], []
    for cuts in ([96], [40, 96], [32, 64, 96], [33, 34, 80, 96]):
        backend = KIND.make(loaded.config, loaded.weights, 100)
        backend.reset(speculate=True)
        start = 0
        for end in cuts:
            verified = backend.prefill(ids[start:end])
            start = end
        logits.append(torch.from_numpy(verified.logits[-1].copy()))
        states.append(KIND.snapshot(backend))
    for one, state in zip(logits[1:], states[1:], strict=True):
        assert KIND.equal(one, logits[0])
        assert state.keys() == states[0].keys()
        assert all(
            KIND.equal(part.float(), states[0][name].float()) for name, part in state.items()
        )


def test_a_commit_pass_of_its_own_changes_no_bit(backend: CudaBackend) -> None:
    wanted = play(backend, 0, [{}])
    got = play(backend, 0, [{}, {"COMMIT_IN_VERIFY": "0"}])
    backend.apply_knobs(KnobSet.resolve(environ={}))
    assert backend.engaged()["commit passes"] > 0
    for one, other in zip(got, wanted, strict=True):
        assert torch.equal(one, other) if isinstance(one, Tensor) else one == other


def test_greedy_text_does_not_depend_on_the_drafter(backend: CudaBackend) -> None:
    texts, rounds = [], []
    for drafter in (None, MtpChain(backend, 3), MtpTree(backend, 4, 2)):
        backend.reset(speculate=True)
        loop = DecodeLoop(backend, Sampling(0.0, 1.0, 0, 0.0, 0), frozenset(), drafter)
        text, count = [loop.begin(backend.prefill(sequence(40)))], 0
        while len(text) < 24:
            text += loop.round(24 - len(text)).tokens
            count += 1
        texts.append(text)
        rounds.append(count)
    assert texts[0] == texts[1] == texts[2]
    assert rounds[0] == 23


def test_the_router_times_this_backend_and_changes_no_token(backend: CudaBackend) -> None:
    prices = live_prices(backend, KnobSet({}))
    assert prices.source.startswith("measured at load")
    assert prices.draft_ms is not None
    assert backend.length == 0
    router = build_staircut(backend, prices, lookup=LookupDrafter())
    prompt = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6]
    texts = []
    for drafter in (None, router):
        backend.reset(speculate=drafter is not None)
        loop = DecodeLoop(backend, Sampling(), frozenset(), drafter)
        text = [loop.begin(backend.prefill(prompt), prompt)]
        while len(text) < 24:
            text += loop.round(24 - len(text)).tokens
        texts.append(text)
    assert texts[0] == texts[1]


def test_an_unknown_token_gives_no_number_and_does_not_spread(backend: CudaBackend) -> None:
    ids = sequence(12)
    backend.reset(speculate=False)
    backend.prefill(ids[:5])
    wanted = backend.verify(ids[5:8]).best
    backend.verify([*ids[5:7], -1])
    assert backend.verify([*ids[5:8], -1]).best == [*wanted, -1]
    assert backend.verify(ids[5:8]).best == wanted


@pytest.mark.parametrize(
    ("weight", "named"),
    [
        ("post_norm", "layer 2, MLP"),
        ("embed", "the token embedding"),
        ("final_norm", "the final norm"),
    ],
)
def test_a_bad_weight_is_named(backend: CudaBackend, weight: str, named: str) -> None:
    placed = backend._forward.weights
    tensor = placed.layers[2].post_norm if weight == "post_norm" else getattr(placed, weight)
    kept = tensor[1].clone()
    tensor[1] = float("nan")
    try:
        backend.reset(speculate=False)
        assert backend.prefill([3, 2, 1]).best == [-1]
        assert backend.suspect_layer() == named
    finally:
        tensor[1] = kept
    backend.reset(speculate=False)
    assert backend.prefill([3, 2, 1]).best != [-1]
    assert "state of this sequence" in backend.suspect_layer()


def test_logits_are_those_of_the_rows_that_were_asked_for(backend: CudaBackend) -> None:
    backend.reset(speculate=False)
    verified = backend.verify([1, 2, 3])
    assert verified.logits.shape == (3, VOCABULARY)
    assert verified.logits.argmax(-1).tolist() == verified.best
    assert backend.prefill(sequence(40)).logits.shape == (1, VOCABULARY)


def test_without_events_the_times_say_how_to_get_them(backend: CudaBackend) -> None:
    assert backend.operation_times() == OFF
    assert "QWEN38_OP_TIMES" in OFF
    assert OperationTimes().by_operation(timed=True) == []  # until the first round


def test_placing_frees_the_stored_weights() -> None:
    weights = synthetic_weights(CONFIG, "nvfp4", seed=5)
    assert ByteModel.of(CONFIG, weights).trunk_bytes > 100_000
    knobs = KnobSet.resolve(environ={})
    backend = CudaBackend(CONFIG, weights, capacity=64, knobs=knobs, device="cpu")
    assert weights.layers[0].in_qkv.codes.numel() == 0
    assert weights.embed.numel() == 0
    assert backend.prefill([1, 2]).best[0] >= 0


@pytest.mark.parametrize("weight_format", FORMATS)
def test_the_bytes_on_the_device_are_known_before(weight_format: str) -> None:
    weights = synthetic_weights(CONFIG, weight_format, seed=5)
    wanted = [device_bytes(weights.layers[0].in_qkv), device_bytes(weights.layers[0].in_z)]
    assert not is_expanded(weights.layers[0].in_qkv)
    backend = CudaBackend(
        CONFIG, weights, capacity=CAPACITY, knobs=KnobSet.resolve(environ={}), device="cpu"
    )
    projection = backend._forward.weights.layers[0].project
    assert sum(product.nbytes for product, _ in projection.products) == sum(wanted)
    held = backend._arena.nbytes
    assert held <= arena_bytes(CONFIG, CAPACITY) <= 1.3 * held


def test_a_shape_that_the_operations_do_not_take_is_named() -> None:
    assert unsupported_shape(CONFIG) == ""
    odd = ModelConfig(**{**{f: getattr(CONFIG, f) for f in CONFIG.__slots__}, "hidden_size": 72})
    assert "hidden_size" in unsupported_shape(odd)


def test_a_dense_tied_head_shares_the_embedding() -> None:
    config = ModelConfig(**{**{f: getattr(CONFIG, f) for f in CONFIG.__slots__}, "tied": True})
    weights = synthetic_weights(config, "bf16", seed=5)
    assert isinstance(weights.head_linear, Dense)
    knobs = KnobSet.resolve(environ={})
    backend = CudaBackend(config, weights, capacity=64, knobs=knobs, device="cpu")
    placed = backend._forward.weights
    assert placed.head.products[0][0].weight.data_ptr() == placed.embed.data_ptr()
    assert backend.prefill([1, 2]).best[0] >= 0


class _Replayed(CudaRecording):
    """A recording whose capture keeps the body: what that reads on the host it reads once, as a graph does."""

    def capture(self, pool: object, settle: Callable[[], object], restore: Body) -> None:
        settle()
        self._body()
        restore()
        self._graph = SimpleNamespace(replay=self._body)  # type: ignore[assignment]


def test_a_captured_body_reads_all_that_changes_from_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The warm-up leaves no trace, and a replay serves other tokens, lengths, trees and commits."""
    monkeypatch.setattr("engine.model.cuda.CudaRecording", _Replayed)
    backend = make("bf16")
    wanted = play(backend, 1, [{}])
    assert len(backend._graphs) == 0
    backend._captures, backend._graphs.pool = True, (0, 0)
    backend.reset(speculate=False)
    backend.record_rounds(3, 2)
    assert len(backend._graphs) == 4 * 2 + 2 + 4
    for switches in ({}, {"COMMIT_IN_VERIFY": "0"}, {"DRAFT_GRAPH": "0"}):
        got = play(backend, 1, [switches])
        for one, other in zip(got, wanted, strict=True):
            assert torch.equal(one, other) if isinstance(one, Tensor) else one == other
    counts = backend.engaged()
    assert counts["tape replays"] > counts["graph captures"] > 14
    backend._captures = False
