# SPDX-License-Identifier: MIT OR Apache-2.0
"""QWEN38_NVFP4_INT8: where it acts, what it leaves alone, and that no drafter and no kept prefix is heard."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from backends import KINDS, Loaded
from checkpoints import make_checkpoint
from test_native import CONFIG, EXPERTS, case_of, make, sequence

from engine import Engine
from engine.api import GenerateRequest, Message
from engine.cli import main
from engine.errors import UsageError
from engine.load.stored import Nvfp4
from engine.load.synthetic import synthetic_weights
from engine.load.weights import parts_of
from engine.measure import roof
from engine.measure.agree_configurations import configurations_named
from engine.measure.agreement import agree
from engine.model import native_moe
from engine.model.config import ModelConfig
from engine.model.projection import Packing, takes_int8
from engine.model.reference import ReferenceBackend
from engine.model.steps import PassTape, linear
from engine.model.switches import Switches
from engine.paths import demo_model
from kernels.build import load_library
from kernels.cpu.product import linear as kernel
from kernels.moe.pack import PackedExperts
from kernels.nvfp4_linear.check import random_weight
from kernels.nvfp4_linear.pack import pack_nvfp4
from kernels.tape import Pool, Tape

ON, OFF = {"QWEN38_NVFP4_INT8": "1"}, {"QWEN38_NVFP4_INT8": "0"}
NEED = "an NVFP4 weight for the vector units is not loaded"
TAKEN, LEFT = "NVFP4 products of 8-bit inputs", "NVFP4 products of 16-bit inputs"


@pytest.fixture
def vector_units() -> None:
    if load_library().has_matrix_unit:
        pytest.skip("the products of the matrix unit read bf16")


@pytest.mark.usefixtures("vector_units")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_head_keeps_its_inputs(dtype: torch.dtype) -> None:
    """Only a head leaves its sums unrounded."""
    packed = pack_nvfp4([random_weight(40, 64, 1)])
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    results = []
    with Pool(load_library(), 1) as pool:
        for switches, weight, call in (
            (Switches(int8_inputs=True), packed, linear),
            (Switches(), packed, kernel),
            (Switches(), packed.reading_int8(), kernel),
        ):
            out = torch.zeros(3, 48, dtype=dtype)
            call(PassTape(pool, switches, eager=True), weight, x, out, rows=3)
            results.append(out)
    found, plain, rounded = results
    assert not torch.equal(plain, rounded)
    assert torch.equal(found, rounded if dtype == torch.bfloat16 else plain)


@pytest.mark.usefixtures("vector_units")
@pytest.mark.parametrize("case", ["nvfp4 NVFP4_INT8", "nvfp4 experts NVFP4_INT8"])
def test_a_forward_stays_near_the_reference(case: str) -> None:
    config, form, _ = case_of(case)
    ids = sequence(60, seed=2)
    weights = synthetic_weights(config, form, seed=5)
    exact = ReferenceBackend(config, weights, capacity=64, dtype=torch.float32).all_logits(ids)
    found = {}
    for each in (case, case.removesuffix(" NVFP4_INT8")):
        backend = make(each)
        found[each] = backend.all_logits(ids)
        taken = backend.engaged()
        backend.close()
        assert (TAKEN in taken, LEFT in taken) == (each == case, each != case)
    off = {each: float((logits - exact).abs().mean()) for each, logits in found.items()}
    spread = float(exact.std())
    assert off[case] < 0.06 * spread
    assert off[case] > 1.2 * off[case.removesuffix(" NVFP4_INT8")]


@pytest.mark.usefixtures("vector_units")
@pytest.mark.parametrize("joined", ["1", "0"])
def test_every_product_of_experts_reads_8_bits(
    monkeypatch: pytest.MonkeyPatch, joined: str
) -> None:
    seen = []

    def watched(name: str) -> None:
        issue = getattr(native_moe, name)

        def issued(tape: Tape, packed: PackedExperts, *rest: Any, **operands: Any) -> None:
            seen.append((name, packed.shape.int8))
            issue(tape, packed, *rest, **operands)

        monkeypatch.setattr(native_moe, name, issued)

    watched("moe_gate_up")
    watched("moe_down")
    backend = make("nvfp4 experts NVFP4_INT8", FUSE_PROJ=joined)
    backend.prefill([1, 2, 3])
    backend.close()
    assert set(seen) == {("moe_gate_up", True), ("moe_down", True)}


@pytest.mark.usefixtures("vector_units")
def test_the_tested_kind_reads_8_bits(loaded: Loaded) -> None:
    (kind,) = [kind for kind in KINDS if "8-bit" in kind.name]
    backend = kind.make(loaded.config, loaded.weights, 64)
    backend.reset(speculate=True)
    backend.prefill([1, 2, 3])
    backend.draft(4, 2)
    assert backend.engaged()[TAKEN] > 0
    assert LEFT not in backend.engaged()
    backend.close()


@pytest.mark.parametrize("config", [CONFIG, EXPERTS], ids=["dense", "experts"])
def test_only_an_nvfp4_weight_of_a_layer_on_the_vector_units_counts(config: ModelConfig) -> None:
    weights = synthetic_weights(config, "nvfp4", seed=5)
    other = synthetic_weights(config, "bf16", seed=5)
    head = next(part for part in parts_of(weights) if isinstance(part, Nvfp4))
    assert takes_int8(weights, Packing())
    assert takes_int8(replace(other, mtp=weights.mtp), Packing())
    assert not takes_int8(replace(other, head=head), Packing())
    assert not takes_int8(weights, Packing(amx=True))


def test_a_model_without_such_weights_says_so(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    with Engine.open(tmp_path, profile=None, threads=1, knobs=ON) as engine:
        assert f"QWEN38_NVFP4_INT8=1 changes nothing: {NEED}." in engine.card.notices
    with Engine.open(tmp_path, profile=None, threads=1) as engine:
        row = {row.name: row for row in engine.knob_rows()}["QWEN38_NVFP4_INT8"]
        assert (row.available, row.reason) == (False, NEED)
        with pytest.raises(UsageError, match=NEED):
            engine.set_knobs(ON)


@pytest.mark.usefixtures("vector_units")
def test_drafts_and_kept_prefixes_change_no_text() -> None:
    question = "why is decoding memory bound? " * 12
    request = GenerateRequest(messages=(Message("user", question),), max_tokens=12)
    with Engine.open(demo_model(), profile=None, threads=1, context_tokens=512) as engine:
        row = {row.name: row for row in engine.knob_rows()}["QWEN38_NVFP4_INT8"]
        assert row.available
        plain = engine.generate(request, resume=True)
        assert engine.generate(request, resume=True).kept_prompt_tokens > 0
        engine.set_knobs(ON)
        first = engine.generate(request, resume=True)
        assert first.kept_prompt_tokens == 0
        again = engine.generate(request, resume=True)
        assert again.kept_prompt_tokens > 0
        assert again.token_ids == first.token_ids
        wanted = configurations_named(["served", "mtp-3", "half-right", "trees", "eager"])
        report = agree(engine, ["the pace", question], tokens=24, configurations=wanted)
        assert report.ok
        assert report.differences == ()
        assert engine.engaged()[TAKEN] > 0
        engine.set_knobs(OFF)
        back = engine.generate(request, resume=True)
        assert back.kept_prompt_tokens == 0
        assert back.token_ids == plain.token_ids


@pytest.mark.parametrize(
    ("options", "int8"),
    [
        ([], False),
        (["--knob", "QWEN38_NVFP4_INT8=1"], True),
        (["--knob", "QWEN38_NVFP4_INT8=1", "--weights", "bf16"], False),
    ],
)
def test_a_bench_has_the_peak_of_what_its_products_multiply(
    monkeypatch: pytest.MonkeyPatch, options: list[str], int8: bool
) -> None:
    asked = []

    def refused(threads: int, **wanted: bool) -> None:
        asked.append(wanted)
        raise UsageError("No probe.", next_step="None.")

    monkeypatch.setattr(roof, "native_probes", refused)
    assert main(["bench", "--shape", "demo", "--threads", "1", *options])
    assert asked == [{"int8": int8}]


@pytest.mark.usefixtures("vector_units")
@pytest.mark.parametrize(("int8", "dot"), [(True, "probe_dot_int8"), (False, "probe_dot")])
def test_the_probes_of_a_machine_measure_that_peak(int8: bool, dot: str) -> None:
    with roof.native_probes(1, 1 << 20, int8=int8) as probe:
        assert probe._dot == f"rondo_{dot}"
