# SPDX-License-Identifier: MIT OR Apache-2.0
"""The operations of a native pass, each by the way the switches ask for, with a counter for every way.

The functions stand in for the kernels' own of the same names and take what those take. A tape without switches
gets the kernels.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor

from engine.model.host_steps import (
    HostCall,
    host_attention,
    host_attention_prepare,
    host_norm,
    host_product,
)
from engine.model.host_steps_delta import host_delta_prepare, host_gated_delta
from engine.model.switches import Switches
from kernels.attention import native as attention_kernel
from kernels.causal_conv import native as conv_kernel
from kernels.cpu import product as product_kernel
from kernels.cpu.blocking import DEFAULT, Blocking
from kernels.cpu.product import PRIVATE_ROWS, PackedLinear
from kernels.elementwise.native import add
from kernels.gated_delta import native as delta_kernel
from kernels.gated_delta.buffers import DeltaRecord
from kernels.kv_cache.native import KvCache
from kernels.moe.pack import PackedExperts
from kernels.rms_norm import native as norm_kernel
from kernels.rope import native as rope_kernel
from kernels.tape import Pool, StepModel, Tape

_KERNELS = Switches()
Packed = TypeVar("Packed", PackedLinear, PackedExperts)
_WIDE_FROM = 17  # rows from which the wide tile table counts


class PassTape(Tape):
    """A tape of one pass under given switches."""

    def __init__(self, pool: Pool, switches: Switches, *, eager: bool = False) -> None:
        super().__init__(pool, eager=eager)
        self.switches = switches
        self.bundle = -1  # of its paths; see `Engaged.bundle`


def rms_norm(
    tape: Tape,
    *,
    x: Tensor,
    scale: Tensor,
    out: Tensor,
    eps: float,
    rows: int,
    residual: Tensor | None = None,
    total: Tensor | None = None,
    name: str = "rms_norm",
) -> None:
    """See `kernels.rms_norm.native.rms_norm`."""
    switches = _switches(tape)
    if residual is not None and total is not None and not (switches.norm and switches.add_norm):
        add(tape, x=residual, y=x, out=total, rows=rows)
        tape.count("adds and norms apart")
        x, residual, total, name = total, None, None, "rms_norm"
    if not switches.norm:
        _host(tape, name, host_norm(x, scale, out, eps, rows), "norms by PyTorch")
        return
    tape.count("norm kernels")
    if residual is not None:
        tape.count("add-norm kernels")
    norm_kernel.rms_norm(
        tape,
        x=x,
        scale=scale,
        out=out,
        eps=eps,
        rows=rows,
        residual=residual,
        total=total,
        name=name,
    )


def linear(
    tape: Tape,
    packed: PackedLinear,
    x: Tensor,
    out: Tensor,
    *,
    rows: int,
    name: str = "linear",
    columns: int | None = None,
    barrier: bool = True,
) -> None:
    """See `kernels.cpu.product.linear`."""
    kind, by_kernel = _product_way(_switches(tape), packed, out, rows)
    if by_kernel:
        tape.count(f"{kind} kernels")
        if out.dtype == torch.bfloat16:  # a head keeps what decides between near ties
            packed = as_read(tape, packed)
        product_kernel.linear(
            tape,
            packed,
            x,
            out,
            rows=rows,
            name=name,
            columns=columns,
            barrier=barrier,
            blocking=_blocking(tape, packed, rows),
        )
        return
    width = packed.columns if columns is None else columns
    _host(tape, name, host_product(packed, x, out, rows, width), f"{kind} expanded")


def as_read(tape: Tape, packed: Packed) -> Packed:
    """A weight, or those of experts, for the product that reads its input as the switches want it."""
    shape = packed if isinstance(packed, PackedLinear) else packed.shape
    if not shape.takes_int8:
        return packed
    int8 = _switches(tape).int8_inputs
    tape.count(f"NVFP4 products of {8 if int8 else 16}-bit inputs")
    return packed.reading_int8() if int8 else packed


def attention(
    tape: Tape,
    *,
    rows: int,
    cache: KvCache,
    name: str = "attention",
    **operands: Any,
) -> None:
    """See `kernels.attention.native.attention`."""
    switches = _switches(tape)
    operands["cache"] = cache
    tape.count("attention over an e4m3 cache" if cache.scaled else "attention over a bf16 cache")
    if rows <= PRIVATE_ROWS:
        kind, by_kernel = "narrow attention", switches.attention
    else:
        limit = switches.attention_library_from
        kind, by_kernel = "wide attention", not limit or rows < limit
    if by_kernel:
        tape.count(f"{kind} kernels")
        attention_kernel.attention(tape, rows=rows, name=name, **operands)
    else:
        _host(tape, name, host_attention(rows=rows, **operands), f"{kind} by PyTorch")


def attention_prepare(tape: Tape, *, name: str = "attention_prepare", **operands: Any) -> None:
    """See `kernels.rope.native.attention_prepare`."""
    if _switches(tape).attention_prepare:
        tape.count("attention preparation kernels")
        rope_kernel.attention_prepare(tape, name=name, **operands)
    else:
        call = host_attention_prepare(**operands)
        _host(tape, name, call, "attention preparation by PyTorch")


def delta_prepare(
    tape: Tape,
    *,
    rows: int,
    record: DeltaRecord | None = None,
    name: str = "delta_prepare",
    **operands: Any,
) -> None:
    """See `kernels.causal_conv.native.delta_prepare`."""
    switches = _switches(tape)
    if record is None:
        kind, by_kernel = "prefill preparation", True
    elif rows == 1:
        kind, by_kernel = "one-row preparation", switches.delta_prepare_one
    else:
        kind, by_kernel = "verify preparation", switches.delta_prepare_more
    if by_kernel:
        tape.count(f"{kind} kernels")
        conv_kernel.delta_prepare(tape, rows=rows, record=record, name=name, **operands)
    else:
        call = host_delta_prepare(rows=rows, record=record, **operands)
        _host(tape, name, call, f"{kind} by PyTorch")


def gated_delta(
    tape: Tape,
    *,
    rows: int,
    record: DeltaRecord | None = None,
    parents: Tensor | None = None,
    name: str = "gated_delta",
    **operands: Any,
) -> None:
    """See `kernels.gated_delta.native.gated_delta`."""
    operands |= {"rows": rows, "record": record, "parents": parents}
    kind, together = _delta_way(
        _switches(tape), rows, recorded=record is not None, tree=parents is not None
    )
    if not together:
        tape.count(f"{kind} kernels")
        delta_kernel.gated_delta(tape, name=name, **operands)
    else:
        way = "by a solve" if together > 1 else "row by row"
        call = host_gated_delta(together=together, **operands)
        _host(tape, name, call, f"{kind} {way}")


def _delta_way(switches: Switches, rows: int, *, recorded: bool, tree: bool) -> tuple[str, int]:
    """What this recurrence is called, and how many rows a second way takes at once (0: the kernel)."""
    if not rows:
        return "delta commit", int(not switches.commit)
    if not recorded:
        slow = switches.prefill_chunk if switches.prefill_solve else 1
        return "delta prefill", 0 if switches.delta_prefill else slow
    limit = switches.solve_tree_rows if tree else switches.solve_chain_rows
    if switches.solve and 1 < rows <= limit:
        return "delta verify", rows
    if tree:
        return "delta tree", int(not switches.delta_tree)
    if rows == 1:
        return "delta one-row", int(not switches.delta_one)
    return "delta chain", int(not switches.delta_chain)


def _product_way(
    switches: Switches, packed: PackedLinear, out: Tensor, rows: int
) -> tuple[str, bool]:
    """What this product is called, and whether a kernel computes it."""
    if rows == 1 and out.dtype == torch.float32:  # only a head leaves its sums unrounded
        return "one-row head", switches.head
    if packed.function != "rondo_nvfp4_linear":
        return "other product", True
    if rows <= PRIVATE_ROWS:
        return "narrow NVFP4", switches.narrow_nvfp4
    return "wide NVFP4", switches.wide_nvfp4 and rows < switches.wide_nvfp4_until


def _blocking(tape: Tape, packed: PackedLinear, rows: int) -> Blocking:
    """The sizes that a table has for this product, or the default."""
    switches = _switches(tape)
    if packed.int8:
        return DEFAULT
    if packed.function == "rondo_nvfp4_linear" and rows <= PRIVATE_ROWS:
        if rows < _WIDE_FROM:
            table, path = switches.narrow_tiles, "narrow NVFP4"
        else:
            table, path = switches.wide_tiles, "wide NVFP4"
    elif packed.function == "rondo_fp8_linear" and rows <= PRIVATE_ROWS:
        table, path = switches.fp8_tiles, "FP8"
    else:
        return DEFAULT
    found = table.of(packed)
    if found is not None:
        tape.count(f"{path} products by a table")
    return found or DEFAULT


def _host(tape: Tape, name: str, call: HostCall, path: str) -> None:
    tape.count(path)
    tape.host(StepModel(f"{name} (PyTorch)"), call)


def _switches(tape: Tape) -> Switches:
    return tape.switches if isinstance(tape, PassTape) else _KERNELS
