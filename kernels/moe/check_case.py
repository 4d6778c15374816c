# SPDX-License-Identifier: MIT OR Apache-2.0
"""A small layer of experts in any weight format, and one pass of it through the native steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.bf16_linear.check import random_weight as random_bf16
from kernels.bf16_linear.pack import pack_bf16
from kernels.build import NativeLibrary
from kernels.checks import poison
from kernels.cpu.buffers import aligned_empty
from kernels.cpu.product import PackedLinear
from kernels.cpu.product_check import bound_of
from kernels.fp8_linear.check import random_codes, random_scales
from kernels.fp8_linear.pack import pack_fp8_blocks, pack_fp8_rows
from kernels.fp8_linear.reference import dequantise_blocks
from kernels.moe.native import (
    MoePlan,
    PackedExperts,
    moe_combine,
    moe_down,
    moe_gate_up,
    moe_route,
    pack_experts,
)
from kernels.nvfp4_linear.check import activations_read, exact_weight, int8_read
from kernels.nvfp4_linear.check import random_weight as random_nvfp4
from kernels.nvfp4_linear.pack import pack_nvfp4
from kernels.tape import Pool, Tape

FORMATS = ("nvfp4", "nvfp4_int8", "fp8_blocks", "fp8_rows", "bf16")
_PACKERS: dict[str, Callable[..., PackedLinear]] = {
    "nvfp4": pack_nvfp4,
    "nvfp4_int8": pack_nvfp4,
    "fp8_blocks": pack_fp8_blocks,
    "fp8_rows": pack_fp8_rows,
    "bf16": pack_bf16,
}
_READERS = {"nvfp4": activations_read, "nvfp4_int8": int8_read}


def random_part(form: str, rows: int, columns: int, seed: int) -> tuple:
    """(a stored weight as the packer of this format takes it, float64 [N, K] of the same numbers)."""
    if form == "bf16":
        weight = random_bf16(rows, columns, seed)
        return weight, weight.double()
    if form.startswith("nvfp4"):
        codes, scales, _ = random_nvfp4(rows, columns, seed)
        part = codes, scales, 0.0001 * (1 + seed % 7)
        return part, exact_weight(*part)
    codes = random_codes(rows, columns, seed)
    if form == "fp8_rows":
        scale = torch.rand(rows, generator=torch.Generator().manual_seed(seed)) * 0.01 + 0.001
        return (codes, scale), codes.double() * scale.double().unsqueeze(1)
    scales = (random_scales(rows, columns, seed).float() * 0.01).bfloat16()
    wide = dequantise_blocks(torch.ones_like(codes), scales).double()
    return (codes, scales), codes.double() * wide


@dataclass(frozen=True)
class LayerCase:
    """Packed experts with the numbers they stand for.

    Attributes:
        gate_up, down: the packed weights under test.
        exact_gate, exact_up: float64 [E, I, H]; exact_down: float64 [E, H, I].
        read: (library, x) -> float64, the activations as this format's products read them.
    """

    label: str
    gate_up: PackedExperts
    down: PackedExperts
    exact_gate: Tensor
    exact_up: Tensor
    exact_down: Tensor
    read: Callable[[NativeLibrary, Tensor], Tensor]

    @property
    def experts(self) -> int:
        """Number of experts."""
        return self.gate_up.experts

    def product_bound(
        self, library: NativeLibrary, x: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(exact, absolute bound) of bf16 x [R, K] against float64 weight [N, K]."""
        # A product, its chain in a block of inputs, the blocks, the scales of a block and of the output.
        terms = 1 + 32 + 3 + 2 + -(-x.shape[1] // 16)
        return bound_of(x, weight, terms, torch.bfloat16, self.read(library, x))


def make_layer(
    form: str, *, experts: int, hidden: int, inner: int, seed: int, amx: bool
) -> LayerCase:
    """Random experts of one format."""
    pack, int8 = _PACKERS[form], form == "nvfp4_int8"
    amx = amx and not int8
    gates, ups, downs = (
        [random_part(form, *shape, seed + 1000 * which + 3 * e) for e in range(experts)]
        for which, shape in enumerate(((inner, hidden), (inner, hidden), (hidden, inner)))
    )
    packed = [
        pack_experts(experts, lambda e: pack([gates[e][0], ups[e][0]], interleave=True, amx=amx)),
        pack_experts(experts, lambda e: pack([downs[e][0]], amx=amx)),
    ]
    return LayerCase(
        f"{form} {experts} experts {hidden}x{inner}",
        *(each.reading_int8() if int8 else each for each in packed),
        *(torch.stack([exact for _, exact in parts]) for parts in (gates, ups, downs)),
        _READERS.get(form, lambda library, x: x.double()),
    )


@dataclass(frozen=True)
class LayerRun:
    """What one pass left: values by row and, inside a row, ascending expert.

    Attributes:
        experts: int64 [R, k] ascending; weights: bf16 [R, k] beside them.
        hidden: bf16 [R, k, I]; y: bf16 [R, k, H]; out: bf16 [R, H].
        distinct: number of distinct experts that the pass reported.
    """

    experts: Tensor
    weights: Tensor
    hidden: Tensor
    y: Tensor
    out: Tensor
    distinct: int


def run_layer(
    pool: Pool,
    case: LayerCase,
    x: Tensor,
    logits: Tensor,
    top_k: int,
    *,
    shared: Tensor | None = None,
    gate: Tensor | None = None,
    eager: bool = False,
) -> LayerRun:
    """One pass over all rows of x, through buffers that are wider and longer than needed.

    Raises:
        AssertionError: something outside the results was written.
    """
    rows, width = x.shape
    inner = case.gate_up.outputs
    spare = 3
    wide_x = poison(aligned_empty((rows, width + width % 2 + 6), torch.bfloat16))
    wide_x[:, :width] = x
    wide_out = poison(aligned_empty((rows + spare, width + 5), torch.bfloat16))
    plan = MoePlan.empty(rows=rows + spare, experts=case.experts, top_k=top_k)
    hidden, y = poison(plan.buffer(inner)), poison(plan.buffer(width))
    counts = torch.full((3,), -7, dtype=torch.int32)
    tape = Tape(pool, eager=eager)
    moe_route(tape, plan, logits=logits, rows=rows, distinct=counts[1:2])
    moe_gate_up(tape, case.gate_up, plan, x=wide_x[:, :width], out=hidden, rows=rows)
    moe_down(tape, case.down, plan, x=hidden, out=y, rows=rows)
    out = wide_out[:rows, :width]
    moe_combine(tape, plan, y=y, shared=shared, shared_gate=gate, out=out, rows=rows)
    if not eager:
        tape.run()
    places = rows * top_k
    outside = [wide_out[rows:], wide_out[:, width:], hidden[places:], y[places:]]
    if not all(bool(part.isnan().all()) for part in outside):
        raise AssertionError("a step wrote outside its result")
    if counts.tolist() != [-7, int(plan.distinct), -7]:
        raise AssertionError(f"the counters hold {counts.tolist()}, not {int(plan.distinct)}")
    place = plan.place[:rows].long()
    listed = plan.listed[: int(plan.distinct)].long()
    starts = plan.first[: len(listed)].contiguous()
    expert_of = listed[torch.bucketize(place, starts.long(), right=True) - 1]
    return LayerRun(
        expert_of,
        plan.place_weight[:rows].clone(),
        hidden[place],
        y[place],
        out.clone(),
        int(plan.distinct),
    )
