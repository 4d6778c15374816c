# SPDX-License-Identifier: MIT OR Apache-2.0
"""Keys and values in e4m3: another path, half the bytes, and every bit as soundly kept as in bf16."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from checkpoints import make_checkpoint
from test_commit_in_verify import SWITCHES, flip, play
from test_native import CAPACITY, CONFIG, make, sequence
from test_switches import counted, run

from engine import Engine
from engine.api import GenerateRequest
from engine.errors import UsageError
from engine.knobs import KnobSet
from engine.load.synthetic import synthetic_weights
from engine.model.byte_model import ByteModel
from engine.model.choose import scaled_kv
from engine.model.native import NativeBackend
from kernels.kv_cache.reference import dequantise, quantise

PATH = {True: "attention over an e4m3 cache", False: "attention over a bf16 cache"}


@pytest.fixture(scope="module")
def backend() -> Iterator[NativeBackend]:
    made = make("nvfp4", KV_FP8="1")
    yield made
    made.close()


@pytest.fixture(scope="module")
def bf16() -> Iterator[NativeBackend]:
    made = make("nvfp4")
    yield made
    made.close()


def test_the_other_cache_is_taken_and_stays_near(
    backend: NativeBackend, bf16: NativeBackend
) -> None:
    paths = {}
    results = {}
    for one, scaled in ((backend, True), (bf16, False)):
        before = one.engaged()
        results[scaled] = run(one)
        paths[scaled] = counted(one, before)
    for scaled, counts in paths.items():
        assert counts[PATH[scaled]] > 0
        assert PATH[not scaled] not in counts
        assert counts["tape replays"] > 0
        assert "eager passes" not in counts
    logits, state = results[True]
    wanted, exact = results[False]
    assert not torch.equal(logits, wanted)
    assert float((logits - wanted).abs().mean()) < 0.05 * float(wanted.std())
    assert float((logits - wanted).abs().max()) < 0.4 * float(wanted.std())
    # The first attention layer's inputs are the same: its entries are the quantised ones, to the bit.
    first = CONFIG.attention_layers[0]
    assert first == min(CONFIG.attention_layers)
    for name in (f"keys {first}", f"values {first}"):
        assert torch.equal(state[name], dequantise(*quantise(exact[name])))
    assert state["mtp keys"].dtype == torch.float32
    assert exact["mtp keys"].dtype == torch.bfloat16


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("switches", [*SWITCHES[1:], "flipped between rounds"], ids=str)
def test_no_switch_of_a_round_changes_a_bit(
    backend: NativeBackend, switches: dict[str, str] | str, seed: int
) -> None:
    wanted = play(backend, seed, [{}])
    got = play(backend, seed, list(SWITCHES) if isinstance(switches, str) else [switches])
    flip(backend, {})
    for one, other in zip(got, wanted, strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        ("DECODE_ATTN", "0", "narrow attention by PyTorch"),
        ("GQA_FROM", "33", "wide attention by PyTorch"),
        ("FUSED_ATTN_PREP", "0", "attention preparation by PyTorch"),
    ],
)
def test_the_second_ways_read_and_write_the_same_cache(
    backend: NativeBackend, name: str, value: str, taken: str
) -> None:
    logits, _ = run(backend)
    before = backend.engaged()
    flip(backend, {name: value, "COMMIT_IN_VERIFY": "0"})
    try:
        flipped, _ = run(backend)
    finally:
        flip(backend, {})
    assert counted(backend, before)[taken] > 0
    # A rounding that changes a code changes more than one that changes a bf16 value.
    assert float((flipped - logits).abs().mean()) < 0.02 * float(logits.std())
    assert torch.equal(run(backend)[0], logits)


def test_threads_change_no_bit(backend: NativeBackend) -> None:
    logits, state = run(backend)
    for threads in ("2", "3"):
        flip(backend, {"CPU_THREADS": threads})
        again, same = run(backend)
        assert torch.equal(again, logits)
        assert all(torch.equal(values, same[name]) for name, values in state.items())
    flip(backend, {})


def test_a_number_that_is_none_in_the_cache_reaches_the_text(backend: NativeBackend) -> None:
    """A row with a NaN has a NaN for a scale; what attends to it says so, what was rejected does not."""
    backend.reset(speculate=False)
    backend.prefill(sequence(5))
    cache = backend._arena.kv[CONFIG.attention_layers[0]]
    assert cache.key_scales is not None
    kept = cache.key_scales[0, 3].item()
    cache.key_scales[0, 3] = float("nan")
    assert backend.verify([1, 2]).best == [-1, -1]
    cache.key_scales[0, 3] = kept
    cache.key_scales[:, 5:] = float("nan")  # the rows that were not kept
    assert -1 not in backend.verify([1, 2]).best


def test_a_loaded_model_keeps_its_cache() -> None:
    with pytest.raises(UsageError, match="when a model is loaded"):
        KnobSet({}).flipped({"QWEN38_KV_FP8": "1"}, backend="native", offers=())


def test_a_round_reads_half_the_context(backend: NativeBackend, bf16: NativeBackend) -> None:
    layers, heads = len(CONFIG.attention_layers), CONFIG.kv_heads
    weights = synthetic_weights(CONFIG, "nvfp4", seed=5)
    both = [ByteModel.of(CONFIG, weights, scaled_kv=scaled) for scaled in (False, True)]
    plain, scaled = (each.kv_bytes_per_token for each in both)
    assert scaled == layers * 2 * heads * (CONFIG.head_dim + 4)
    assert plain == layers * 2 * heads * 2 * CONFIG.head_dim
    read, held = [], []
    for one in (bf16, backend):
        one.reset(speculate=True)
        one.prefill(sequence(200))
        read.append(one.round_bytes(1, 0))
        held.append(
            sum(cache.keys.nbytes + cache.values.nbytes for cache in one._arena.kv.values())
        )
        one.reset_operation_times()
        one.verify([1])
        one.commit(1)
        (times,) = [each for each in one.operation_times() if each.name == "attention"]
        seen = 200 + 1
        width = plain if one is bf16 else scaled
        assert times.bytes_read == width * seen + layers * 2 * CONFIG.attention_width
    assert read[0] - read[1] == 200 * (plain - scaled)
    assert held[0] == 2 * held[1]
    assert held[1] >= layers * 2 * heads * CONFIG.head_dim * CAPACITY


@pytest.mark.parametrize(
    ("on", "isa", "device", "float32", "expected"),
    [
        ("1", "", "cpu", False, True),
        ("1", "avx2", "auto", False, True),
        ("0", "", "cpu", False, False),
        ("1", "reference", "cpu", False, False),
        ("1", "", "cuda", False, False),
        ("1", "", "cpu", True, False),
    ],
)
def test_the_estimate_is_that_of_the_kernels_that_will_run(
    on: str, isa: str, device: str, float32: bool, expected: bool
) -> None:
    knobs = KnobSet({}).changed({"QWEN38_KV_FP8": on, "QWEN38_CPU_ISA": isa})
    assert scaled_kv(knobs, device=device, float32=float32) is expected


@pytest.mark.parametrize("changes", [{}, {"MTP_TREE": "2"}, {"RANKK": "0"}], ids=str)
def test_speculation_writes_what_plain_decoding_does(
    tmp_path: Path, changes: dict[str, str]
) -> None:
    make_checkpoint(tmp_path)
    knobs = {"QWEN38_KV_FP8": "1", "QWEN38_COMMIT_IN_VERIFY": "0" if changes else "1"}
    knobs |= {f"QWEN38_{name}": value for name, value in changes.items()}
    with Engine.open(tmp_path, profile=None, knobs=knobs, threads=1, device="cpu") as engine:
        texts = []
        for speculate in (True, False):
            request = GenerateRequest(
                prompt="the engine", max_tokens=60, speculate=speculate, ignore_stop_tokens=True
            )
            texts.append(engine.generate(request).token_ids)
        assert texts[0] == texts[1]
        assert engine.engaged()[PATH[True]] > 0
