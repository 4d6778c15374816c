# SPDX-License-Identifier: MIT OR Apache-2.0
"""The native backend keeps one arithmetic: the same bits however a sequence is computed."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.knobs import KnobSet
from engine.load.stored import Dense
from engine.load.synthetic import synthetic_weights
from engine.load.weights import parts_of
from engine.model.byte_model import ByteModel
from engine.model.config import ModelConfig
from engine.model.native import NativeBackend
from engine.model.reference import ReferenceBackend
from kernels.build import load_library
from kernels.tape import Pool

CAPACITY = 320
VOCABULARY = 250  # no multiple of a tile, so that pads would show
CONFIG = ModelConfig.from_dict(
    {
        "model_type": "qwen3_5_text",
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "intermediate_size": 256,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CAPACITY,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e6,
            "partial_rotary_factor": 0.25,
        },
        "mtp_num_hidden_layers": 1,
        "tie_word_embeddings": False,
    }
)
EXPERTS = replace(CONFIG, experts=9, experts_per_token=3, expert_size=80)
FORMATS = ("nvfp4", "bf16")
CASES = (*FORMATS, "nvfp4 experts", "bf16 experts")
OTHER_NUMBERS = ("nvfp4 KV_FP8", "nvfp4 NVFP4_INT8", "nvfp4 experts NVFP4_INT8")


def case_of(text: str) -> tuple[ModelConfig, str, list[str]]:
    """(config, weight format, switches that are on) of a case in words."""
    weight_format, *words = text.split()
    config = EXPERTS if "experts" in words else CONFIG
    return config, weight_format, [word for word in words if word != "experts"]


def make(case: str, threads: int = 1, **knobs: str) -> NativeBackend:
    config, weight_format, on = case_of(case)
    knobs |= dict.fromkeys(on, "1")
    changes = {f"QWEN38_{name}": value for name, value in knobs.items()}
    return NativeBackend(
        config,
        synthetic_weights(config, weight_format, seed=5),
        capacity=CAPACITY,
        knobs=KnobSet.resolve(environ={}, changes=changes),
        pool=Pool(load_library(), threads),
    )


def sequence(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, count).tolist()


def one_by_one(backend: NativeBackend, ids: list[int]) -> torch.Tensor:
    backend.reset(speculate=False)
    return torch.stack([torch.from_numpy(backend.prefill([i]).logits[0].copy()) for i in ids])


@pytest.fixture(scope="module", params=[*CASES, *OTHER_NUMBERS])
def backend(request: pytest.FixtureRequest) -> Iterator[NativeBackend]:
    made = make(request.param)
    yield made
    made.close()


@pytest.fixture(scope="module")
def plain(backend: NativeBackend) -> torch.Tensor:
    return one_by_one(backend, sequence(80))


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32])
def test_rows_of_a_verify_pass_have_the_bits_of_single_steps(
    backend: NativeBackend, plain: torch.Tensor, rows: int
) -> None:
    ids = sequence(80)
    backend.reset(speculate=False)
    backend.prefill(ids[:5])
    verified = backend.verify(ids[5 : 5 + rows])
    assert torch.equal(torch.from_numpy(verified.logits), plain[5 : 5 + rows])
    assert verified.best == plain[5 : 5 + rows].argmax(-1).tolist()


@settings(max_examples=15)
@given(data=st.data())
def test_any_chunking_of_a_prompt_gives_the_same_bits(
    backend: NativeBackend, plain: torch.Tensor, data: st.DataObject
) -> None:
    ids, at, parts = sequence(80), 0, []
    backend.reset(speculate=False)
    while at < len(ids):
        size = data.draw(st.integers(1, 40))
        parts.append(backend.all_logits(ids[at : at + size]))
        at += size
    assert torch.equal(torch.cat(parts), plain)


@settings(max_examples=15)
@given(data=st.data())
def test_rejected_rows_leave_no_trace(
    backend: NativeBackend, plain: torch.Tensor, data: st.DataObject
) -> None:
    """Any history of verify passes, some rows wrong, then the state of plain decoding to the bit."""
    ids = sequence(80)
    backend.reset(speculate=False)
    at = data.draw(st.integers(1, 6))
    backend.prefill(ids[:at])
    while at < 60:
        keep = data.draw(st.integers(1, 9))
        wrong = data.draw(st.integers(0, 20))
        rows = ids[at : at + keep] + sequence(wrong, seed=at)
        kept = min(keep, len(ids) - at)
        verified = backend.verify(rows)
        assert torch.equal(torch.from_numpy(verified.logits[:kept]), plain[at : at + kept])
        backend.commit(kept)
        at += kept
        if data.draw(st.booleans()):
            assert torch.equal(torch.from_numpy(backend.prefill([ids[at]]).logits[0]), plain[at])
            at += 1
    backend.prefill([ids[at]])
    after = backend.committed_state()
    one_by_one(backend, ids[: at + 1])
    expected = backend.committed_state()
    assert after.keys() == expected.keys()
    for name, part in after.items():
        assert torch.equal(part, expected[name]), name


def test_the_mtp_cache_and_its_drafts_do_not_depend_on_the_history(backend: NativeBackend) -> None:
    ids = sequence(60, seed=3)
    drafts = []
    for keeps in ((1,) * 40, (3, 1, 4, 2) * 4, (4,) * 10):
        backend.reset(speculate=True)
        backend.prefill(ids[:20])
        at = 20
        for index, keep in enumerate(keeps):
            if at + 5 >= 60:
                break
            if index % 3:
                backend.draft(ids[at], 1 + index % 4)
            backend.verify(ids[at : at + 5])
            backend.commit(keep)
            at += keep
        while at < 60:
            backend.prefill([ids[at]])
            at += 1
        drafts.append(backend.draft(7, 4))
    assert drafts[0] == drafts[1] == drafts[2]


@pytest.mark.parametrize("weight_format", [*CASES, *OTHER_NUMBERS])
def test_two_threads_and_eager_passes_have_the_same_bits(weight_format: str) -> None:
    ids = sequence(70, seed=9)
    results = []
    for threads, replay in ((1, "1"), (2, "1"), (1, "0"), (2, "0")):
        other = make(weight_format, threads, VERIFY_GRAPH=replay, DRAFT_GRAPH=replay)
        other.reset(speculate=True)
        logits = [torch.from_numpy(other.prefill(ids[:40]).logits.copy())]
        drafted = other.draft(ids[40], 3)
        logits.append(torch.from_numpy(other.verify([ids[40], *drafted]).logits.copy()))
        other.commit(2)
        logits.append(torch.from_numpy(other.prefill([5]).logits.copy()))
        results.append((torch.cat(logits), drafted))
        assert bool(len(other._graphs)) == (replay == "1")
        other.close()
    for logits, drafted in results[1:]:
        assert drafted == results[0][1]
        assert torch.equal(logits, results[0][0])


@pytest.mark.parametrize("weight_format", CASES)
def test_the_native_forward_follows_the_reference(weight_format: str) -> None:
    ids = sequence(90, seed=2)
    config, form, _ = case_of(weight_format)
    weights = synthetic_weights(config, form, seed=5)
    reference = ReferenceBackend(config, weights, capacity=CAPACITY, dtype=torch.float32)
    exact = reference.all_logits(ids)
    backend = make(weight_format)
    ours = backend.all_logits(ids)
    backend.close()
    spread = float(exact.std())
    assert float((ours - exact).abs().mean()) < 0.03 * spread
    assert float((ours - exact).abs().max()) < 0.3 * spread


def test_a_round_allocates_nothing(backend: NativeBackend) -> None:
    """Resident memory does not grow with the rounds, and no buffer moves.

    It may grow once: pages that were given back at the load are touched again by whatever comes first.
    """
    process = psutil.Process()
    addresses = [t.data_ptr() for t in (backend._arena.logits, backend._arena.residual)]
    backend.reset(speculate=True)
    backend.prefill(sequence(10))
    recorded, resident_bytes = [], []
    for index in range(500):
        if backend.length + 4 > CAPACITY:
            backend.reset(speculate=True)
            backend.prefill(sequence(10))
        drafted = backend.draft(3, 3)
        backend.verify([3, *drafted])
        backend.commit(1 + index % 3)
        if index % 100 == 99:
            recorded.append(len(backend._graphs))
            resident_bytes.append(process.memory_info().rss)
    assert recorded[1:] == recorded[:1] * 4
    grown = [after - before for before, after in itertools.pairwise(resident_bytes)]
    assert min(grown) < 1 << 18
    assert addresses == [t.data_ptr() for t in (backend._arena.logits, backend._arena.residual)]


def test_a_bad_weight_is_named(backend: NativeBackend) -> None:
    scale = backend._forward.weights.layers[2].post_norm
    kept = scale[3].item()
    scale[3] = float("nan")
    try:
        backend.reset(speculate=False)
        assert backend.prefill([1, 2, 3]).best == [-1]
        assert backend.suspect_layer() == "layer 2, MLP"
    finally:
        scale[3] = kept


@pytest.mark.parametrize(
    ("weight", "row", "named"),
    [("embed", 9, "the token embedding"), ("final_norm", 0, "the final norm")],
)
def test_a_bad_weight_outside_the_layers_is_named(
    backend: NativeBackend, weight: str, row: int, named: str
) -> None:
    tensor = getattr(backend._forward.weights, weight)
    kept = tensor[row].clone()
    tensor[row] = float("nan")
    try:
        backend.reset(speculate=False)
        # The bad token is not the chunk's first.
        assert backend.prefill([1, 2, 9]).best == [-1]
        assert backend.suspect_layer() == named
    finally:
        tensor[row] = kept
    backend.reset(speculate=False)
    backend.prefill([1, 2, 9])
    assert "state of this sequence" in backend.suspect_layer()


def test_operation_times_are_those_of_rounds_alone(backend: NativeBackend) -> None:
    backend.reset(speculate=True)
    backend.reset_operation_times()
    backend.prefill(sequence(256))
    backend.prefill([7])
    backend.all_logits(sequence(3))
    assert backend.operation_times() == []
    drafted = backend.draft(3, 2)
    backend.verify([3, *drafted])
    backend.commit(1)
    calls = {each.name: each.calls for each in backend.operation_times()}
    assert calls["head"] == 1
    assert calls["draft head"] == 2


def test_a_dropped_backend_is_freed_without_a_collection() -> None:
    """A cycle would keep the weights of the last model beside those of the next."""
    backend = make("nvfp4")
    backend.prefill([1, 2, 3])
    backend.close()
    gone = weakref.ref(backend)
    gc.disable()
    try:
        del backend
        assert gone() is None
    finally:
        gc.enable()


def test_rows_outside_the_context_or_the_pass_are_refused(backend: NativeBackend) -> None:
    backend.reset(speculate=False)
    with pytest.raises(ValueError, match="320"):
        backend.prefill(sequence(CAPACITY + 1))
    backend.reset(speculate=False)
    with pytest.raises(ValueError, match="32"):
        backend.verify(sequence(33))
    backend.verify(sequence(4))
    for keep in (0, 5):
        with pytest.raises(ValueError, match="1 to 4"):
            backend.commit(keep)


@pytest.mark.parametrize("weight_format", ["nvfp4", "fp8", "bf16"])
def test_packing_frees_the_stored_weights(weight_format: str) -> None:
    weights = synthetic_weights(CONFIG, weight_format, seed=5)
    stored = ByteModel.of(CONFIG, weights).trunk_bytes
    backend = NativeBackend(
        CONFIG,
        weights,
        capacity=64,
        knobs=KnobSet.resolve(environ={}),
        pool=Pool(load_library(), 1),
    )
    backend.close()
    assert stored > 100_000
    linears = [part for part in parts_of(weights) if not isinstance(part, torch.Tensor)]
    assert len(linears) > 30
    for linear in linears:
        codes = linear.weight if isinstance(linear, Dense) else linear.codes
        assert codes.numel() == 0
    assert weights.embed.numel() == 0
