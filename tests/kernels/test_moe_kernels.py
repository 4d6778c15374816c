# SPDX-License-Identifier: MIT OR Apache-2.0
"""The native mixture of experts: every check on every level, random shapes, prompts, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.bf16_linear.pack import pack_bf16
from kernels.build import NativeLibrary
from kernels.checks import same_bits
from kernels.cpu.blocking import Blocking
from kernels.cpu.buffers import aligned_zeros
from kernels.cpu.product_check import inputs
from kernels.fp8_linear.check import random_codes, random_scales
from kernels.fp8_linear.pack import pack_fp8_blocks
from kernels.moe.check import check, router_logits
from kernels.moe.check_case import FORMATS, LayerCase, make_layer, run_layer
from kernels.moe.native import (
    MoePlan,
    PackedExperts,
    expected_distinct,
    moe_combine,
    moe_down,
    moe_gate_up,
    moe_route,
    pack_experts,
)
from kernels.nvfp4_linear.check import random_weight
from kernels.nvfp4_linear.pack import pack_nvfp4
from kernels.tape import Pool, Tape


def _layer(library: NativeLibrary, form: str = "nvfp4", *, experts: int = 12) -> LayerCase:
    amx = library.has_matrix_unit
    return make_layer(form, experts=experts, hidden=96, inner=64, seed=1, amx=amx)


def test_checks_pass(library: NativeLibrary) -> None:
    results = check(library)
    assert len(results) > 400
    assert [result.reason for result in results if not result.ok] == []


@settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    rows=st.integers(1, 50),
    experts=st.integers(1, 40),
    chosen=st.integers(1, 9),
    hidden=st.integers(1, 12),
    inner=st.integers(1, 9),
    form=st.sampled_from(FORMATS),
    workers=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_a_row_alone_has_the_bits_of_its_batch(
    fastest: NativeLibrary,
    rows: int,
    experts: int,
    chosen: int,
    hidden: int,
    inner: int,
    form: str,
    workers: int,
    seed: int,
) -> None:
    amx = fastest.has_matrix_unit
    case = make_layer(
        form, experts=experts, hidden=16 * hidden, inner=16 * inner, seed=seed, amx=amx
    )
    x = inputs("gaussian", rows, 16 * hidden, seed)
    logits = router_logits("ties", rows, experts, seed)
    top_k = min(chosen, experts)
    row = seed % rows
    with Pool(fastest, workers) as pool:
        batch = run_layer(pool, case, x, logits, top_k)
        alone = run_layer(pool, case, x[row][None], logits[row][None], top_k)
    assert same_bits(batch.y[row], alone.y[0])
    assert same_bits(batch.out[row], alone.out[0])
    assert batch.distinct == len(batch.experts.unique())


@pytest.mark.parametrize("form", FORMATS)
def test_prompt_rows_have_the_bits_of_single_rows(library: NativeLibrary, form: str) -> None:
    case = _layer(library, form)
    x = inputs("gaussian", 256, 96, 2)
    logits = router_logits("normal", 256, 12, 3)
    logits[::5] = logits[0]  # one set of experts gets many rows
    with Pool(library, 1) as one, Pool(library, 2) as two:
        chunk = run_layer(two, case, x, logits, 3)
        assert same_bits(run_layer(one, case, x, logits, 3).out, chunk.out)
        for row in (0, 1, 97, 255):
            alone = run_layer(one, case, x[row][None], logits[row][None], 3)
            assert same_bits(alone.y[0], chunk.y[row])
            assert same_bits(alone.out[0], chunk.out[row])


def test_more_workers_than_tiles_change_no_bit(fastest: NativeLibrary) -> None:
    """Some workers have no share of an expert then, and which ones goes round with the experts."""
    case = _layer(fastest)
    with Pool(fastest, 1) as one, Pool(fastest, 5) as five, Pool(fastest, 11) as eleven:
        for rows in (1, 9, 40):
            x = inputs("gaussian", rows, 96, 2)
            logits = router_logits("normal", rows, 12, 3)
            wanted = run_layer(one, case, x, logits, 5).out
            assert bool(wanted.isfinite().all())
            for pool in (five, eleven):
                assert same_bits(run_layer(pool, case, x, logits, 5).out, wanted)


def test_a_broken_router_row_reaches_its_output_alone(library: NativeLibrary) -> None:
    case = _layer(library)
    x = inputs("gaussian", 6, 96, 2)
    logits = router_logits("normal", 6, 12, 3)
    with Pool(library, 2) as pool:
        clean = run_layer(pool, case, x, logits, 3)
        logits[2, 11] = torch.nan
        broken = run_layer(pool, case, x, logits, 3)
    assert bool(broken.out[2].isnan().all())
    assert broken.experts[2].tolist() == [0, 1, 2]
    others = [0, 1, 3, 4, 5]
    assert same_bits(broken.out[others], clean.out[others])


def test_a_nan_code_breaks_its_own_expert_alone(library: NativeLibrary) -> None:
    """Scales of whole outputs that one expert alone needs change no bit of the others."""
    parts = [(random_codes(64, 96, e), random_scales(64, 96, e)) for e in range(4)]
    amx = library.has_matrix_unit

    def packed() -> PackedExperts:
        return pack_experts(4, lambda e: pack_fp8_blocks([parts[e]], amx=amx))

    x = inputs("gaussian", 4, 96, 1)
    logits = torch.full((4, 4), -9.0).fill_diagonal_(9.0)  # row e goes to expert e
    with Pool(library, 1) as pool:
        clean = _gate_up(pool, packed(), x, logits)
        parts[2][0].view(torch.uint8)[5, 7] = 0xFF
        broken = _gate_up(pool, packed(), x, logits)
    assert packed().row_scale is not None
    assert broken.isnan().nonzero().tolist() == [[2, 5]]
    broken[2, 5] = clean[2, 5]
    assert same_bits(broken, clean)


def _gate_up(
    pool: Pool,
    packed: PackedExperts,
    x: torch.Tensor,
    logits: torch.Tensor,
    blocking: Blocking | None = None,
) -> torch.Tensor:
    """The product of each row with its first expert, by place."""
    plan = MoePlan.empty(rows=len(x), experts=packed.experts, top_k=1)
    out = plan.buffer(packed.outputs)
    tape = Tape(pool)
    moe_route(tape, plan, logits=logits, rows=len(x))
    walk = blocking or Blocking()
    moe_gate_up(tape, packed, plan, x=x, out=out, rows=len(x), blocking=walk)
    tape.run()
    return out.clone()


def test_no_blocking_changes_a_bit(fastest: NativeLibrary) -> None:
    case = make_layer("nvfp4", experts=4, hidden=512, inner=96, seed=5, amx=fastest.has_matrix_unit)
    x, logits = inputs("gaussian", 40, 512, 1), router_logits("normal", 40, 4, 2)
    with Pool(fastest, 2) as pool:
        wanted = _gate_up(pool, case.gate_up, x, logits)
        for blocking in (Blocking(rows=1), Blocking(rows=3, tiles=2, inputs=128, ahead_bytes=0)):
            assert same_bits(_gate_up(pool, case.gate_up, x, logits, blocking), wanted)


def test_experts_lie_in_one_allocation(fastest: NativeLibrary) -> None:
    amx = fastest.has_matrix_unit
    apart = [pack_nvfp4([random_weight(40, 64, e)], amx=amx) for e in range(3)]
    torch.set_num_threads(2)  # two experts side by side
    packed = pack_experts(3, lambda e: apart[e])
    assert packed.experts == 3
    assert packed.outputs == 40
    assert packed.expert_bytes == apart[0].weight_bytes
    assert packed.weight_bytes == 3 * packed.expert_bytes
    assert packed.weight.is_contiguous()
    for index, one in enumerate(apart):
        view = packed.expert(index)
        assert same_bits(view.weight, one.weight)
        assert view.weight.data_ptr() == packed.weight.data_ptr() + index * one.weight.numel()
        for held, own in ((view.scale, one.scale), (view.row_scale, one.row_scale)):
            assert (held is None) == (own is None)
            assert held is None or same_bits(held, own)


def test_unlike_experts_are_refused() -> None:
    weights = [torch.ones(32, 64).bfloat16(), torch.ones(32, 96).bfloat16()]
    with pytest.raises(ValueError, match="expert 1 differs from expert 0"):
        pack_experts(2, lambda e: pack_bf16([weights[e]]))
    with pytest.raises(ValueError, match="at least one expert"):
        pack_experts(0, lambda e: pack_bf16([weights[e]]))
    with pytest.raises(ValueError, match="one part, or gate and up interleaved"):
        pack_experts(1, lambda e: pack_bf16([weights[0], weights[0]]))


def test_expected_distinct_is_the_mean_of_random_choices() -> None:
    assert expected_distinct(1, 256, 8) == pytest.approx(8)
    assert expected_distinct(5, 6, 6) == 6
    generator = torch.Generator().manual_seed(1)
    draws = torch.rand(400, 16, 64, generator=generator).topk(4).indices.flatten(1)
    mean = sum(len(draw.unique()) for draw in draws) / len(draws)
    assert expected_distinct(16, 64, 4) == pytest.approx(mean, rel=0.02)


def test_the_model_counts_what_is_read(fastest: NativeLibrary) -> None:
    case = _layer(fastest, experts=3)
    with Pool(fastest, 1) as pool:
        tape = Tape(pool)
        plan = MoePlan.empty(rows=2, experts=3, top_k=3)
        hidden = plan.buffer(64)
        x, counter = aligned_zeros((2, 96), torch.bfloat16), torch.zeros(1, dtype=torch.int32)
        moe_gate_up(tape, case.gate_up, plan, x=x, out=hidden, rows=2)
        moe_gate_up(tape, case.gate_up, plan, x=x, out=hidden, rows=2, distinct=counter)
        mean, counted = tape.models
        with pytest.raises(ValueError, match="distinct must be"):
            moe_gate_up(tape, case.gate_up, plan, x=x, out=hidden, rows=2, distinct=counter.long())
    assert mean.bytes_read == case.gate_up.weight_bytes + 2 * 6 * 96
    assert mean.counter is None
    assert counted.bytes_read == 2 * 6 * 96
    assert counted.counter is counter
    assert counted.counter_bytes == case.gate_up.expert_bytes
    assert mean.flops == counted.flops == 2 * 6 * 96 * 64 * 2


def test_operands_are_refused(fastest: NativeLibrary) -> None:
    case = _layer(fastest)
    plan = MoePlan.empty(rows=4, experts=12, top_k=3)
    x, logits = aligned_zeros((4, 96), torch.bfloat16), torch.zeros(4, 12)
    hidden, y = plan.buffer(64), plan.buffer(96)
    with Pool(fastest, 1) as pool:
        tape = Tape(pool)
        with pytest.raises(ValueError, match=r"rows must lie in 1\.\.4, got 5"):
            moe_route(tape, plan, logits=logits, rows=5)
        with pytest.raises(ValueError, match=r"logits must be torch\.float32 or torch\.bfloat16"):
            moe_route(tape, plan, logits=logits.double(), rows=4)
        with pytest.raises(ValueError, match=r"logits must have shape \[>= 4, 12\]"):
            moe_route(tape, plan, logits=logits[:, :11], rows=4)
        with pytest.raises(ValueError, match=r"distinct must be torch\.int32"):
            moe_route(tape, plan, logits=logits, rows=4, distinct=torch.zeros(1))
        with pytest.raises(ValueError, match=r"out must have shape \[>= 12, 64\]"):
            moe_gate_up(tape, case.gate_up, plan, x=x, out=hidden[:11], rows=4)
        with pytest.raises(ValueError, match=r"x must have shape \[>= 4, 96\]"):
            moe_gate_up(tape, case.gate_up, plan, x=x[:3], out=hidden, rows=4)
        odd = aligned_zeros((4, 97), torch.bfloat16)[:, :96]
        with pytest.raises(ValueError, match="even row stride, got 97"):
            moe_gate_up(tape, case.gate_up, plan, x=odd, out=hidden, rows=4)
        fewer = replace(plan, experts=11)
        with pytest.raises(ValueError, match="the plan is for 11 experts, the weights have 12"):
            moe_down(tape, case.down, fewer, x=hidden, out=y, rows=4)
        with pytest.raises(ValueError, match="needs the output of the shared expert"):
            moe_combine(tape, plan, y=y, out=x, rows=4, shared_gate=x[:, :1])
        with pytest.raises(ValueError, match=r"shared must have shape \[>= 4, 96\]"):
            moe_combine(tape, plan, y=y, out=x, rows=4, shared=hidden[:4])
        assert tape.models == []


@pytest.mark.parametrize(
    ("sizes", "named"),
    [
        ({"rows": 0, "experts": 4, "top_k": 2}, r"rows must lie in 1\.\.65536"),
        ({"rows": 1, "experts": 1025, "top_k": 2}, r"experts must lie in 1\.\.1024"),
        ({"rows": 1, "experts": 4, "top_k": 5}, r"top_k must lie in 1\.\.4"),
        ({"rows": 1, "experts": 512, "top_k": 65}, r"top_k must lie in 1\.\.64"),
    ],
)
def test_plans_out_of_range_are_refused(sizes: dict[str, int], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        MoePlan.empty(**sizes)
