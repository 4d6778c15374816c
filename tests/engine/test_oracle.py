# SPDX-License-Identifier: MIT OR Apache-2.0
"""The forward against `transformers` on random models: float32 logits, BF16 top tokens, no tensor idle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import pytest
import torch
from backends import CONTEXT_TOKENS, Loaded
from oracle import CASES, MOE_CASES, Case, oracle_logits, token_ids
from torch import Tensor

from engine.engine import Engine
from engine.load.stored import Dense
from engine.load.weights import ExpertWeights, LayerWeights, ModelWeights, MoeWeights
from engine.model.config import ModelConfig
from engine.model.reference import ReferenceBackend

pytestmark = pytest.mark.usefixtures("one_thread")

LENGTHS = (1, 2, 3, 7, 63, 64, 65, 129, 300)
CHUNKS = (1, 5, 64, 2, 31, 300)  # the lengths of chunks, in this order, until the prompt ends
TOLERANCE = 2e-4
SURE_MARGIN = 0.1
ABLATION = 50 * TOLERANCE
each_case = pytest.mark.parametrize("case", [*CASES, *MOE_CASES], ids=lambda case: case.name)
LoadedCase = Callable[[Case], Loaded]


def ours(config: ModelConfig, weights: ModelWeights, dtype: torch.dtype) -> ReferenceBackend:
    return ReferenceBackend(config, weights, capacity=max(LENGTHS), dtype=dtype)


def in_chunks(backend: ReferenceBackend, ids: list[int]) -> Tensor:
    parts, at = [], 0
    for count in CHUNKS:
        if at < len(ids):
            parts.append(backend.all_logits(ids[at : at + count]))
            at += count
    return torch.cat(parts)


@each_case
def test_float32_logits_agree(loaded_case: LoadedCase, case: Case) -> None:
    loaded = loaded_case(case)
    backend = ours(loaded.config, loaded.weights, torch.float32)
    for length in LENGTHS:
        ids = token_ids(case, length, seed=length)
        wanted = oracle_logits(loaded.oracle, ids)
        assert 0.5 < wanted.abs().amax(-1).mean() < 8.0, "the oracle's logits are of order 1"
        backend.reset(speculate=False)
        assert (backend.all_logits(ids) - wanted).abs().max() < TOLERANCE
        backend.reset(speculate=True)
        assert (in_chunks(backend, ids) - wanted).abs().max() < TOLERANCE


@each_case
def test_the_engine_opens_and_agrees(loaded_case: LoadedCase, case: Case) -> None:
    loaded = loaded_case(case)
    with Engine.open(
        loaded.folder, compute="float32", threads=1, context_tokens=CONTEXT_TOKENS
    ) as engine:
        for length, chunk in ((1, 64), (45, 7), (300, 128)):
            ids = token_ids(case, length, seed=100 + length)
            got = engine.logits(ids, chunk=chunk)
            assert (got - oracle_logits(loaded.oracle, ids)).abs().max() < TOLERANCE


@each_case
def test_bfloat16_top_tokens_agree(loaded_case: LoadedCase, case: Case) -> None:
    loaded = loaded_case(case)
    backend = ours(loaded.config, loaded.weights, torch.bfloat16)
    sure_rows = wrong_rows = 0
    for length in LENGTHS:
        ids = token_ids(case, length, seed=length)
        wanted = oracle_logits(loaded.oracle, ids)
        best = wanted.topk(2).values
        sure = best[:, 0] - best[:, 1] > SURE_MARGIN
        backend.reset(speculate=False)
        got = backend.all_logits(ids)
        wrong_rows += int((got.argmax(-1) != wanted.argmax(-1))[sure].sum())
        sure_rows += int(sure.sum())
    # A close choice of a router may fall the other way in bf16, and with it a token.
    assert wrong_rows <= (sure_rows // 100 if case.experts[0] else 0)
    assert sure_rows > sum(LENGTHS) / 2, "most rows have a clear winner"


@each_case
def test_every_tensor_matters(loaded_case: LoadedCase, case: Case) -> None:
    """The agreement above would not survive the loss of any tensor."""
    loaded = loaded_case(case)
    ids = token_ids(case, 12, seed=24)
    wanted = ours(loaded.config, loaded.weights, torch.float32).all_logits(ids)
    for name, weights in damaged(loaded.weights):
        got = ours(loaded.config, weights, torch.float32).all_logits(ids)
        assert (got - wanted).abs().max() > ABLATION, name


def damaged(weights: ModelWeights) -> list[tuple[str, ModelWeights]]:
    """The model without each tensor of each layer in turn."""
    variants = [("final norm", replace(weights, final_norm=torch.zeros_like(weights.final_norm)))]
    for index, layer in enumerate(weights.layers):
        changes = [
            (f.name, {f.name: neutral(layer, f.name)}) for f in fields(layer) if f.name != "moe"
        ]
        changes += [(name, {"moe": moe}) for name, moe in damaged_experts(layer.moe)]
        for name, change in changes:
            changed = replace(layer, **change)
            layers = (*weights.layers[:index], changed, *weights.layers[index + 1 :])
            variants.append((f"layer {index} {name}", replace(weights, layers=layers)))
    return variants


def damaged_experts(moe: MoeWeights | None) -> list[tuple[str, MoeWeights]]:
    """The routed part without its router, its shared gate, and without each matrix of all its experts."""
    if moe is None:
        return []
    variants = [("shared gate", replace(moe, shared_gate=neutral(moe, "shared_gate")))]
    if len(moe.experts) > 1:
        variants.append(("router", replace(moe, router=neutral(moe, "router"))))
    for part in ("gate", "up", "down"):
        experts = tuple(replace(e, **{part: neutral(e, part)}) for e in moe.experts)
        variants.append((f"experts' {part}", replace(moe, experts=experts)))
    return variants


def neutral(layer: LayerWeights | MoeWeights | ExpertWeights, name: str) -> Tensor | Dense:
    value = getattr(layer, name)
    if isinstance(value, Dense):
        return Dense(torch.zeros_like(value.weight))
    return torch.ones_like(value) if name == "gdn_norm" else torch.zeros_like(value)


def test_cases_cover_the_family() -> None:
    assert {case.group for case in CASES} == {1, 2, 3}
    assert {case.tied for case in CASES} == {True, False}
    assert {case.nested for case in CASES} == {True, False}
    assert {case.rotary for case in CASES} == {0.25, 0.5}
    assert min(case.head_dim for case in CASES) == 32
    assert max(case.head_dim for case in CASES) == 256
    assert {each.experts[1] / each.experts[0] for each in MOE_CASES} == {0.25, 0.3, 0.5, 1.0}
    assert (min(len(case.kinds) for case in CASES), max(len(c.kinds) for c in CASES)) == (4, 12)
