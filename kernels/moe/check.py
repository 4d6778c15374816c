# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks of the native mixture of experts: the choice, the plan, every product, the sum, and their faults."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from kernels.build import NativeLibrary
from kernels.checks import CheckResult, compare, expect, half_ulp_bf16, poison, same_bits
from kernels.cpu.buffers import aligned_copy, aligned_empty
from kernels.cpu.product import PackedLinear, linear
from kernels.cpu.product_check import inputs
from kernels.moe import reference
from kernels.moe.check_case import FORMATS, LayerCase, LayerRun, make_layer, run_layer
from kernels.moe.native import MoePlan, moe_route
from kernels.tape import Pool, Tape

KERNEL = "moe"
BATCHES = (*range(1, 33), 33, 70)
# experts, chosen, hidden, inner: odd tiles, one expert a row, all experts for every row.
SHAPES = ((8, 3, 48, 80), (16, 1, 176, 32), (5, 5, 64, 48))
_ROUTE_SHAPES = (
    (1, 8, 3),
    (7, 8, 8),
    (33, 37, 5),
    (5, 256, 8),
    (3, 512, 10),
    (2, 1, 1),
    (2, 1024, 64),
)


def run_route(library: NativeLibrary, logits: Tensor, top_k: int, *, threads: int = 1) -> MoePlan:
    """The plan of one pass over all rows of logits."""
    rows, experts = logits.shape
    plan = MoePlan.empty(rows=rows, experts=experts, top_k=top_k)
    for tensor in (plan.chosen, plan.weights, plan.listed, plan.first, plan.row_of, plan.place):
        poison(tensor)
    with Pool(library, threads) as pool:
        tape = Tape(pool)
        moe_route(tape, plan, logits=logits, rows=rows)
        tape.run()
    return plan


def exact_weights(logits: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """(float64 [R, k], absolute bound) of the weights of the chosen experts."""
    # Their shares: the sum over all experts cancels.
    exact = torch.softmax(logits.double().gather(-1, chosen.long()), -1)
    # 2 ulp of the exponential, its argument rounded once (at most 104 where it is no zero), the sums.
    slack = exact * 2.0**-24 * (8 + 2 * 104 + chosen.shape[1]) + 2.0**-100
    return exact, slack + half_ulp_bf16(exact + slack)


def plan_fault(plan: MoePlan, rows: int) -> str:
    """What is wrong with the order of the places, or nothing."""
    chosen, weights = plan.chosen[:rows], plan.weights[:rows]
    flat = chosen.flatten().long()
    order = flat.argsort(stable=True)
    distinct, counts = flat.unique(return_counts=True)
    size = len(distinct)
    if int(plan.distinct) != size or plan.listed[:size].tolist() != distinct.tolist():
        return f"lists {plan.listed[:size].tolist()}, wanted {distinct.tolist()}"
    if plan.first[: size + 1].tolist() != [0, *counts.cumsum(0).tolist()]:
        return f"first places {plan.first[: size + 1].tolist()}, counts {counts.tolist()}"
    if plan.row_of[: len(flat)].tolist() != (order // plan.top_k).tolist():
        return "rows of places differ from a stable sort by expert"
    place = torch.empty_like(flat)
    place[order] = torch.arange(len(flat))
    wanted, slot = place.view(chosen.shape).sort(-1)
    if plan.place[:rows].tolist() != wanted.tolist():
        return "places of a row are not its places ascending"
    beside = weights.view(torch.int16).gather(-1, slot)  # as integers: a NaN keeps its bits
    if not torch.equal(plan.place_weight[:rows].view(torch.int16), beside):
        return "weights do not lie beside their places"
    return ""


def router_logits(kind: str, rows: int, experts: int, seed: int) -> Tensor:
    """float32 [rows, experts] of one class."""
    logits = torch.randn(rows, experts, generator=torch.Generator().manual_seed(seed)) * 3
    if kind == "ties":
        return logits.round()
    if kind == "all_equal":
        return torch.full_like(logits, 0.75)
    if kind == "large":
        return logits * 2.0**90
    if kind == "denormal":
        return logits * 2.0**-140
    if kind == "minus_infinity":
        logits[:, 1:] = torch.where(logits[:, 1:] > 0, logits[:, 1:], -torch.inf)
        return logits
    if kind == "bf16":
        return logits.bfloat16().float()
    return logits


def _check_route(library: NativeLibrary, seed: int) -> Iterator[CheckResult]:
    name = library.isa
    for rows, experts, top_k in _ROUTE_SHAPES:
        for kind in ("normal", "ties", "all_equal", "large", "denormal", "minus_infinity", "bf16"):
            logits = router_logits(kind, rows, experts, seed)
            wide = poison(aligned_empty((rows, experts + 3), torch.float32))
            wide[:, :experts] = logits
            plan = run_route(library, wide[:, :experts], top_k)
            chosen, _ = reference.route(logits, top_k)
            what = f"route {kind}, {rows} rows, {top_k} of {experts}"
            same = same_bits(plan.chosen, chosen)
            yield expect(KERNEL, name, same, f"{what}: other experts than the twin's")
            exact, bound = exact_weights(logits, chosen)
            two = run_route(library, wide[:, :experts], top_k, threads=2)
            alone = run_route(library, logits[-1:], top_k)
            fixed = same_bits(two.weights, plan.weights) and same_bits(
                alone.weights, plan.weights[-1:]
            )
            yield compare(KERNEL, name, plan.weights, exact, bound, row_invariant=fixed, what=what)
            fault = plan_fault(plan, rows)
            yield expect(KERNEL, name, not fault, f"{what}: {fault}")
            if kind == "bf16":
                narrow = run_route(library, logits.bfloat16(), top_k)
                holds = same_bits(narrow.chosen, plan.chosen)
                holds &= same_bits(narrow.weights, plan.weights)
                yield expect(KERNEL, name, holds, f"{what}: bf16 logits differ from float32")
    yield from _check_route_faults(library, seed)


def _check_route_faults(library: NativeLibrary, seed: int) -> Iterator[CheckResult]:
    """Rows without a softmax stay inside the table, and faults of choice and weights are seen."""
    name = library.isa
    for value in (torch.nan, torch.inf):
        logits = router_logits("normal", 6, 40, seed)
        clean = run_route(library, logits, 4)
        logits[1, 39], logits[4] = value, -torch.inf
        logits[5, :] = value
        plan = run_route(library, logits, 4)
        holds = not plan_fault(plan, 6)
        for row in range(6):
            if row in (1, 4, 5):
                holds &= plan.chosen[row].tolist() == [0, 1, 2, 3]
                holds &= bool(plan.weights[row].isnan().all())
            else:
                holds &= same_bits(plan.chosen[row], clean.chosen[row])
                holds &= same_bits(plan.weights[row], clean.weights[row])
        yield expect(KERNEL, name, holds, f"a row with {value} is routed wrongly or harms others")
    ties = router_logits("ties", 9, 64, seed)
    plan = run_route(library, ties, 6)
    higher = ties.flip(-1).argsort(stable=True, descending=True)[:, :6]
    caught = not torch.equal(plan.chosen.long(), 63 - higher)
    yield expect(KERNEL, name, caught, "ties to the higher expert go unnoticed")
    exact, bound = exact_weights(ties, plan.chosen)
    shares = torch.softmax(ties.double(), -1).gather(-1, plan.chosen.long())
    caught = not compare(KERNEL, name, plan.weights, shares, bound).ok
    yield expect(KERNEL, name, caught, "weights that are not renormalised go unnoticed")
    caught = not compare(KERNEL, name, plan.weights, exact.roll(1, -1), bound).ok
    yield expect(KERNEL, name, caught, "weights of another slot go unnoticed")


def _dense(pool: Pool, packed: PackedLinear, x: Tensor) -> Tensor:
    """The dense product with one expert's weight, bf16 [R, outputs]."""
    out = poison(aligned_empty((len(x), packed.parts[0].size), torch.bfloat16))
    held = aligned_copy(x)
    tape = Tape(pool)
    linear(tape, packed, held, out, rows=len(x), columns=out.shape[1])
    tape.run()
    return out


def _check_products(
    library: NativeLibrary, case: LayerCase, x: Tensor, run: LayerRun, what: str, *, faults: bool
) -> Iterator[CheckResult]:
    """Each expert against the dense product's bits, and the numbers against float64."""
    name = library.isa
    same = True
    with Pool(library, 1) as pool:
        for expert in run.experts.unique().tolist():
            rows, slots = (run.experts == expert).nonzero(as_tuple=True)
            hidden = run.hidden[rows, slots]
            same &= same_bits(hidden, _dense(pool, case.gate_up.expert(expert), x[rows]))
            same &= same_bits(run.y[rows, slots], _dense(pool, case.down.expert(expert), hidden))
    yield expect(KERNEL, name, same, f"{what}: an expert's bits differ from the dense product's")
    yield _compare_down(library, case.exact_down, case, run, f"{what}, down")
    yield _compare_hidden(library, case.exact_gate, case.exact_up, case, x, run, f"{what}, gate up")
    if not faults:
        return
    mutants = {
        "experts swapped": _compare_down(library, case.exact_down.roll(1, 0), case, run, ""),
        "gate and up swapped": _compare_hidden(
            library, case.exact_up, case.exact_gate, case, x, run, ""
        ),
        "experts of gate swapped": _compare_hidden(
            library, case.exact_gate.roll(1, 0), case.exact_up, case, x, run, ""
        ),
        "rows swapped": _compare_hidden(
            library, case.exact_gate, case.exact_up, case, x.roll(1, 0), run, ""
        ),
    }
    for fault, result in mutants.items():
        yield expect(KERNEL, name, not result.ok, f"{what}: the fault '{fault}' goes unnoticed")


def _compare_down(
    library: NativeLibrary, weight: Tensor, case: LayerCase, run: LayerRun, what: str
) -> CheckResult:
    pairs = run.hidden.flatten(0, 1)
    exact = torch.empty_like(run.y.flatten(0, 1), dtype=torch.float64)
    bound = torch.empty_like(exact)
    for place, expert in enumerate(run.experts.flatten().tolist()):
        row = slice(place, place + 1)
        exact[row], bound[row] = case.product_bound(library, pairs[row], weight[expert])
    return compare(KERNEL, library.isa, run.y.flatten(0, 1), exact, bound, what=what)


def _compare_hidden(
    library: NativeLibrary,
    gate: Tensor,
    up: Tensor,
    case: LayerCase,
    x: Tensor,
    run: LayerRun,
    what: str,
) -> CheckResult:
    got = run.hidden.flatten(0, 1)
    exact = torch.empty_like(got, dtype=torch.float64)
    bound = torch.empty_like(exact)
    for place, expert in enumerate(run.experts.flatten().tolist()):
        row = x[place // run.experts.shape[1]][None]
        g, g_off = case.product_bound(library, row, gate[expert])
        u, u_off = case.product_bound(library, row, up[expert])
        silu = functional.silu(g)
        # silu rises by 1.1 at most; its own result is rounded, at worst one step aside.
        off = 1.1 * g_off + 2 * half_ulp_bf16(silu.abs() + 1.1 * g_off)
        exact[place] = silu * u
        reach = off * u.abs() + (silu.abs() + off) * u_off
        bound[place] = reach + half_ulp_bf16((silu * u).abs() + reach)
    return compare(KERNEL, library.isa, got, exact, bound, what=what)


def _check_sum(
    library: NativeLibrary, case: LayerCase, x: Tensor, logits: Tensor, top_k: int, seed: int
) -> Iterator[CheckResult]:
    """The weighted sum to the bit, the shared expert within the rounding of its sigmoid."""
    name, what = library.isa, f"{case.label}, {top_k} chosen, sum"
    shared, gate = inputs("gaussian", *x.shape, seed + 5), inputs("gaussian", len(x), 1, seed + 6)
    with Pool(library, 2) as pool:
        plain = run_layer(pool, case, x, logits, top_k)
        added = run_layer(pool, case, x, logits, top_k, shared=shared)
        gated = run_layer(pool, case, x, logits, top_k, shared=shared, gate=gate)
    sum_of = reference.combine
    wanted = sum_of(plain.y, plain.experts, plain.weights)
    yield expect(KERNEL, name, same_bits(plain.out, wanted), f"{what} differs from the twin")
    wanted = sum_of(plain.y, plain.experts, plain.weights, shared)
    same = same_bits(added.out, wanted)
    yield expect(KERNEL, name, same, f"{what} with an ungated shared expert differs from the twin")
    factor = torch.sigmoid(gate.double())
    exact = factor * shared.double()
    off = 2 * half_ulp_bf16(factor) * shared.double().abs()
    off = off + half_ulp_bf16(exact.abs() + off)
    exact = exact + plain.out.double()
    bound = off + half_ulp_bf16(exact.abs() + off)
    yield compare(KERNEL, name, gated.out, exact, bound, what=f"{what} with the gate")
    # Where the last bits of the exponential cannot turn the rounding of the sigmoid, every bit is known.
    low, high = (factor * (1 + off) for off in (-(2.0**-20), 2.0**-20))
    firm = (low.bfloat16() == high.bfloat16()).flatten()
    wanted = sum_of(plain.y, plain.experts, plain.weights, shared, gate)
    same = bool(firm.any()) and same_bits(gated.out[firm], wanted[firm])
    yield expect(KERNEL, name, same, f"{what} with the gate differs from the twin")
    lost = compare(KERNEL, name, added.out, exact, bound)
    yield expect(KERNEL, name, not lost.ok, f"{what}: a lost gate goes unnoticed")
    if top_k > 1:
        rolled = sum_of(plain.y, plain.experts, plain.weights.roll(1, -1))
        seen = not same_bits(plain.out, rolled)
        yield expect(KERNEL, name, seen, f"{what}: weights of another slot go unnoticed")
        turned = sum_of(plain.y.flip(1), plain.experts, plain.weights.flip(1))
        seen = not same_bits(plain.out, turned)
        yield expect(KERNEL, name, seen, f"{what}: another order of the sum goes unnoticed")


def _invariant(
    library: NativeLibrary, case: LayerCase, x: Tensor, logits: Tensor, top_k: int
) -> str:
    """Which batch changes a row, or nothing."""
    with Pool(library, 1) as one, Pool(library, 2) as two, Pool(library, 3) as three:
        alone = [run_layer(one, case, x[r][None], logits[r][None], top_k) for r in range(len(x))]
        wanted = [
            torch.cat(parts) for parts in zip(*((a.hidden, a.y, a.out) for a in alone), strict=True)
        ]
        for rows in (n for n in BATCHES if n <= len(x)):
            for pool in (one, two, three):
                got = run_layer(pool, case, x[:rows], logits[:rows], top_k, eager=rows % 7 == 0)
                for left, right in zip((got.hidden, got.y, got.out), wanted, strict=True):
                    if not same_bits(left, right[:rows]):
                        return f"{rows} rows on {pool.threads} workers differ from the rows alone"
                if got.distinct != len(got.experts.unique()):
                    return f"{got.distinct} distinct experts reported of {rows} rows"
    return ""


def check(library: NativeLibrary, *, seed: int = 0) -> list[CheckResult]:
    """Routes, plans, products of every format, sums, equal bits in every batch, and faults that must show."""
    results = list(_check_route(library, seed))
    name = library.isa
    for form in FORMATS:
        for index, (experts, top_k, hidden, inner) in enumerate(SHAPES):
            if not form.startswith("nvfp4") and index == 0:
                hidden, inner = hidden - 5, inner - 9
            case = make_layer(
                form, experts=experts, hidden=hidden, inner=inner, seed=seed + index,
                amx=library.has_matrix_unit,
            )  # fmt: skip
            x = inputs("gaussian", max(BATCHES), hidden, seed + 3)
            logits = router_logits("normal", max(BATCHES), experts, seed + 4)
            what = f"{case.label}, {top_k} chosen"
            with Pool(library, 1) as pool:
                for kind in ("gaussian", "outliers", "denormal", "zero_rows"):
                    few = inputs(kind, 5, hidden, seed)
                    run = run_layer(pool, case, few, logits[:5], top_k)
                    results += _check_products(
                        library, case, few, run, f"{what}, {kind}", faults=kind == "gaussian"
                    )
                # All rows to the same experts; the others have none.
                run = run_layer(pool, case, x[:40], logits[:1].expand(40, -1), top_k)
                holds = run.distinct == top_k
                results.append(expect(KERNEL, name, holds, f"{what}: {run.distinct} experts read"))
                results += _check_products(
                    library, case, x[:40], run, f"{what}, one set for all", faults=False
                )
            results += _check_sum(library, case, x[:6], logits[:6], top_k, seed)
            if index == 0:
                fault = _invariant(library, case, x, logits, top_k)
                results.append(expect(KERNEL, name, not fault, f"{what}: {fault}"))
    return results
