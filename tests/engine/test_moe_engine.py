# SPDX-License-Identifier: MIT OR Apache-2.0
"""A mixture-of-experts model in the engine: its text, its card, its bytes, its gate, and where it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from backends import CONTEXT_TOKENS, Loaded
from checkpoints import MOE, make_checkpoint
from oracle import MOE_CASES, Case, oracle_logits

from app.load.card import card_rows
from engine import Engine
from engine.api import GenerateRequest
from engine.errors import RondoError, UsageError
from engine.load.checkpoint import read_checkpoint
from engine.load.quantise import quantise_checkpoint
from engine.load.stored import Dense
from engine.load.synthetic import synthetic_weights
from engine.measure.agreement import agree
from engine.measure.bench import linear_flops
from engine.measure.peers.worker import require_dense
from engine.measure.shapes import named_shape
from engine.model.byte_model import ByteModel
from engine.model.native import NativeBackend
from engine.model.native_moe import unsupported_experts
from engine.model.reference import ReferenceBackend
from engine.spec.decode import Round
from ops.drafter.target import Target

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = "the pace of memory"
LoadedCase = Callable[[Case], Loaded]


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of NVFP4 experts."""
    folder = tmp_path_factory.mktemp("experts")
    sizes = {"hidden_size": 128, "moe_intermediate_size": 64, "max_position_embeddings": 256}
    make_checkpoint(folder / "bf16", stacked=".", **(MOE | sizes))
    quantise_checkpoint(folder / "bf16", folder / "nvfp4", method="rtn")
    return folder / "nvfp4"


@pytest.mark.parametrize("case", MOE_CASES, ids=lambda case: case.name)
def test_greedy_text_is_that_of_transformers(loaded_case: LoadedCase, case: Case) -> None:
    loaded = loaded_case(case)
    request = GenerateRequest(prompt=PROMPT, max_tokens=24, ignore_stop_tokens=True)
    with Engine.open(
        loaded.folder,
        profile=None,
        knobs={"QWEN38_MTP_DEPTH": "3"},
        compute="float32",
        threads=1,
        context_tokens=CONTEXT_TOKENS,
    ) as engine:
        drafted = engine.generate(request)
        plain = engine.generate(replace(request, speculate=False))
        ids = list(engine.encode(PROMPT))
    tokens = engine._checkpoint.tokenizer.vocab_size
    for _ in range(24):
        ids.append(int(oracle_logits(loaded.oracle, ids)[-1, :tokens].argmax()))
    assert list(plain.token_ids) == ids[-24:]
    assert drafted.token_ids == plain.token_ids
    assert drafted.drafted_tokens > 0


def test_the_card_tells_the_experts(quantised: Path) -> None:
    with Engine.open(quantised, threads=1) as engine:
        card = engine.card
    assert (card.backend, card.experts) == ("native", "2 of 5 experts a token")
    assert dict(card_rows(card))["Parameters"].endswith(" k, 2 of 5 experts a token")
    assert card.weight_format == "NVFP4 + FP8 head"
    assert not card.notices


def test_speculation_agrees_with_plain_decoding(quantised: Path) -> None:
    with Engine.open(quantised, threads=1) as engine:
        report = agree(engine, [PROMPT, "the engine reads"], tokens=24)
    assert report.exact_backend
    assert report.ok
    assert report.identical == report.prompts == 2


def test_a_round_reads_the_experts_that_its_rows_run(quantised: Path) -> None:
    """The native passes count as many distinct experts as the readable ones, and the telemetry says so."""
    read = read_checkpoint(quantised)
    model = ByteModel.of(read.config, read.weights)
    slow = ReferenceBackend(read.config, read.weights, capacity=64, dtype=torch.bfloat16)
    knobs = {"QWEN38_MTP_DEPTH": "3"}
    with Engine.open(quantised, profile=None, knobs=knobs, threads=1) as engine:
        backend = engine._backend
        assert isinstance(backend, NativeBackend)
        ids = [10, 47, 300, 12, 91, 205, 77, 3]
        counts = []
        for each in (slow, backend):
            each.reset(speculate=False)
            each.prefill(ids[:2])
            each.verify(ids[2:8])
            counts.append(len(slow._chosen) if each is slow else backend._arena.moe.counted())
            wanted = model.round_bytes(6, 0, 2, experts_read=counts[-1])
            assert each.round_bytes(6, 0) == wanted
        assert abs(counts[0] - counts[1]) <= 2, "but for a close choice of a router"
        assert 2 * read.config.layers < counts[1] <= 5 * read.config.layers
        rounds: list[Round] = []
        request = GenerateRequest(prompt=PROMPT, max_tokens=30, ignore_stop_tokens=True)
        engine.generate(request, on_round=lambda done, *_: rounds.append(done))
    many = [done for done in rounds if done.rows > 1]
    least = model.round_bytes(1, 0, 0)
    most = model.trunk_bytes + model.expert_bytes + model.head_bytes + model.state_bytes
    most += model.kv_bytes_per_token * 64
    assert many
    for done in many:
        assert least < done.bytes_read <= most + model.draft_bytes(done.drafted, 64)


def test_a_gpu_refuses_and_the_processor_computes(
    quantised: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    why = "mixture-of-experts layers run on the processor only so far."
    with Engine.open(quantised, threads=1) as engine:
        assert engine.card.backend == "native"
        assert engine.card.notices == (f"The GPU is not used, the processor computes: {why}",)
    with pytest.raises(RondoError, match=f"The GPU cannot compute: {why}") as refused:
        Engine.open(quantised, device="cuda")
    assert "--device cpu" in refused.value.next_step


def test_experts_of_two_formats_in_a_layer_run_on_the_readable_operations(quantised: Path) -> None:
    read = read_checkpoint(quantised)
    assert unsupported_experts(read.config, read.weights) == ""
    layer = read.weights.layers[1]
    assert layer.moe is not None
    first, *others = layer.moe.experts
    plain = replace(first, up=Dense(first.up.dequantise()))
    mixed = replace(layer, moe=replace(layer.moe, experts=(plain, *others)))
    weights = replace(read.weights, layers=(read.weights.layers[0], mixed))
    assert "one format" in unsupported_experts(read.config, weights)
    assert "1024 experts" in unsupported_experts(replace(read.config, experts=2000), weights)
    odd = replace(read.config, expert_size=63)
    assert "even" in unsupported_experts(odd, read.weights)


def test_a_drafter_is_trained_for_dense_models_only(quantised: Path) -> None:
    with pytest.raises(UsageError, match="mixture-of-experts"):
        Target.read(quantised)


# Measuring


def test_named_shapes_have_experts_and_are_cut_by_layers() -> None:
    shape = named_shape("qwen3.5-35b-a3b:4", vocab=512)
    config = shape.config
    assert (config.experts, config.experts_per_token, config.expert_size) == (256, 8, 512)
    assert shape.note == "4 of 40 layers, vocabulary 512 in place of 248320"
    small = replace(config, layers=1, layer_types=config.layer_types[:1], experts=12)
    model = ByteModel.of(small, synthetic_weights(small))
    assert model.expert_bytes == 12 * 3 * (2048 * 512 * 9 // 16 + 4)


def test_flops_are_those_of_the_experts_that_run() -> None:
    config = named_shape("qwen3.5-35b-a3b:4", vocab=512).config
    idle = 4 * (256 - 8) * 3 * 2048 * 512
    small = 4 * (2 * 2048 + 2 * 256) + 2048  # norms; the rest multiplies
    matrices = config.parameters - idle - 2 * 512 * 2048 - small
    deltas = 3 * (4 * config.qkv_rows + 2 * 32 + 128 - 2 * 256)
    assert linear_flops(config, 1, 0) == pytest.approx(2 * (matrices - deltas), rel=1e-4)


def test_peers_are_given_dense_shapes_only() -> None:
    require_dense(named_shape("qwen3.5-0.8b").config)
    with pytest.raises(UsageError, match="mixture-of-experts"):
        require_dense(named_shape("qwen3.5-35b-a3b").config)
