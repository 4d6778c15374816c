# SPDX-License-Identifier: MIT OR Apache-2.0
"""Experts on the native kernels: every stored form, any number of them, long chunks, apart or joined."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from test_native import CAPACITY, EXPERTS, VOCABULARY, sequence
from torch import Tensor

from engine.knobs import KnobSet
from engine.load.stored import Dense, Fp8Row, StoredLinear
from engine.load.synthetic import synthetic_weights
from engine.load.weights import ModelWeights
from engine.model.byte_model import ByteModel
from engine.model.config import ModelConfig
from engine.model.native import NativeBackend
from engine.model.reference import ReferenceBackend
from kernels.build import load_library
from kernels.fp8_linear.quantise import quantise_rows
from kernels.tape import Pool

pytestmark = pytest.mark.usefixtures("one_thread")

CONFIG = replace(EXPERTS, expert_size=128)  # which divides into blocks of FP8


def make(
    weights: ModelWeights, config: ModelConfig = CONFIG, threads: int = 1, **knobs: str
) -> NativeBackend:
    """A backend over a copy of the weights, which it frees."""
    changes = {f"QWEN38_{name}": value for name, value in knobs.items()}
    return NativeBackend(
        config,
        copy.deepcopy(weights),
        capacity=CAPACITY,
        knobs=KnobSet.resolve(environ={}, changes=changes),
        pool=Pool(load_library(), threads),
    )


def with_experts(
    weights: ModelWeights, form: Callable[[str, StoredLinear], StoredLinear]
) -> ModelWeights:
    """The weights with every expert's matrices in another form; `form` gets "gate", "up" or "down"."""

    def changed(layer):
        experts = tuple(
            replace(e, **{part: form(part, getattr(e, part)) for part in ("gate", "up", "down")})
            for e in layer.moe.experts
        )
        return replace(layer, moe=replace(layer.moe, experts=experts))

    assert weights.mtp is not None
    mtp = replace(weights.mtp, layer=changed(weights.mtp.layer))
    return replace(weights, layers=tuple(map(changed, weights.layers)), mtp=mtp)


def rows_fp8(part: str, linear: StoredLinear) -> Fp8Row:
    return Fp8Row(*quantise_rows(linear.dequantise().float()))


def mixed(part: str, linear: StoredLinear) -> StoredLinear:
    """gate and up in two formats, down in a third."""
    if part == "gate":
        return Dense(linear.dequantise())
    return rows_fp8(part, linear) if part == "up" else linear


FORMS = {
    "nvfp4": lambda: synthetic_weights(CONFIG, "nvfp4", seed=5),
    "fp8": lambda: synthetic_weights(CONFIG, "fp8", seed=5),
    "bf16": lambda: synthetic_weights(CONFIG, "bf16", seed=5),
    "fp8 rows": lambda: with_experts(synthetic_weights(CONFIG, "nvfp4", seed=5), rows_fp8),
    "mixed": lambda: with_experts(synthetic_weights(CONFIG, "nvfp4", seed=5), mixed),
}


def histories(backend: NativeBackend) -> tuple[Tensor, Tensor]:
    """Logits of 12 rows: in one pass behind a chunk, and one by one behind single steps."""
    ids = sequence(40, seed=6)
    backend.reset(speculate=False)
    backend.prefill(ids[:20])
    together = torch.from_numpy(backend.verify(ids[20:32]).logits.copy())
    backend.reset(speculate=False)
    for token in ids[:20]:
        backend.prefill([token])
    single = [torch.from_numpy(backend.prefill([token]).logits.copy()) for token in ids[20:32]]
    return together, torch.cat(single)


@pytest.mark.parametrize("form", FORMS)
def test_every_stored_form_keeps_its_bits_and_follows_the_reference(form: str) -> None:
    weights = FORMS[form]()
    backend = make(weights)
    together, single = histories(backend)
    ours = (backend.reset(speculate=False), backend.all_logits(sequence(60, seed=2)))[1]
    backend.close()
    assert torch.equal(together, single)
    apart = make(weights, FUSE_PROJ="0", CPU_THREADS="2")
    assert torch.equal(histories(apart)[0], together)
    assert apart.engaged()["separate experts' gate, up"] > 0
    assert "joined experts' gate, up" not in apart.engaged()
    apart.close()
    reference = ReferenceBackend(CONFIG, weights, capacity=CAPACITY, dtype=torch.float32)
    exact = reference.all_logits(sequence(60, seed=2))
    assert float((ours - exact).abs().mean()) < 0.04 * float(exact.std())


@pytest.mark.parametrize(("experts", "per_token"), [(1, 1), (5, 5), (40, 1), (64, 11)])
def test_any_number_of_experts(experts: int, per_token: int) -> None:
    config = replace(CONFIG, experts=experts, experts_per_token=per_token, expert_size=32)
    backend = make(synthetic_weights(config, "nvfp4", seed=8), config)
    together, single = histories(backend)
    distinct = backend._arena.moe.distinct
    assert distinct[: config.layers].tolist() == [per_token] * config.layers
    backend.close()
    assert torch.equal(together, single)


@pytest.mark.parametrize("form", ["nvfp4", "bf16"])
def test_long_chunks_have_the_bits_of_short_ones(form: str) -> None:
    backend = make(FORMS[form](), threads=2)
    ids = sequence(300, seed=4)
    found = []
    for sizes in ((300,), (33, 256, 11), (7,) * 43):
        backend.reset(speculate=True)
        at = 0
        for size in sizes:
            if at < 300:
                last = backend.prefill(ids[at : at + size]).logits.copy()
                at += size
        found.append((torch.from_numpy(last), backend.draft(3, 3), backend.committed_state()))
    backend.close()
    for logits, drafted, state in found[1:]:
        assert torch.equal(logits, found[0][0])
        assert drafted == found[0][1]
        assert all(torch.equal(state[name], part) for name, part in found[0][2].items())


def test_packing_frees_every_expert_and_counts_its_bytes() -> None:
    weights = synthetic_weights(CONFIG, "nvfp4", seed=5)
    model = ByteModel.of(CONFIG, weights)
    assert model.expert_bytes == 4 * 9 * 3 * (128 * 128 * 9 // 16 + 4)
    assert model.mtp_expert_bytes == model.expert_bytes // 4
    backend = NativeBackend(
        CONFIG, weights, capacity=64, knobs=KnobSet.resolve(environ={}), pool=Pool(load_library(), 1)
    )  # fmt: skip
    backend.close()
    for layer in (*weights.layers, weights.mtp.layer):
        sizes = {e.down.codes.numel() + e.up.codes.numel() for e in layer.moe.experts}
        assert sizes == {0}
        assert layer.moe.router.weight.numel() == 0


def test_the_times_of_rounds_name_the_experts() -> None:
    backend = make(FORMS["nvfp4"]())
    backend.reset(speculate=False)
    backend.prefill([1, 2, 3])
    backend.reset_operation_times()
    backend.verify(sequence(4))
    names = {each.name: each for each in backend.operation_times()}
    read = backend._arena.moe.counted()
    backend.verify([7, 7, 7, 7])
    again = {each.name: each for each in backend.operation_times()}
    read_again = backend._arena.moe.counted()
    backend.close()
    wanted = {"router", "route", "experts gate, up", "experts down", "experts sum"}
    assert wanted <= names.keys()
    assert names["experts down"].calls == CONFIG.layers
    # A matrix of 4.5 bits a weight with a float32 an output, and the rows of its input.
    one, rows = 128 * 128 * 9 // 16 + 4 * 128, CONFIG.layers * 4 * 3 * 2 * 128
    for operation, matrices in (("experts gate, up", 2), ("experts down", 1)):
        assert names[operation].bytes_read == read * matrices * one + rows
        more = again[operation].bytes_read - names[operation].bytes_read
        assert more == read_again * matrices * one + rows


def test_a_bad_expert_is_found_in_its_layer() -> None:
    weights = synthetic_weights(CONFIG, "bf16", seed=5)
    bad = weights.layers[2].moe.router.weight
    bad[4, 0] = float("nan")
    backend = make(weights)
    backend.reset(speculate=False)
    assert backend.prefill([1, 2, VOCABULARY - 1]).best == [-1]
    assert backend.suspect_layer() == "layer 2, MLP"
    backend.close()
