# SPDX-License-Identifier: MIT OR Apache-2.0
"""The operations that each kind of GPU pass stands for; the same for captured and for eager passes."""

from __future__ import annotations

from engine.model.backend import VERIFY_ROWS
from engine.model.block_waiting import CONTEXT
from engine.model.block_waiting import DRAFT as BLOCK
from engine.model.cuda_block import CudaBlock
from engine.model.cuda_forward import CudaForward
from engine.model.cuda_graphs import Body
from engine.model.verify_graph import GraphKey


def body_of(
    key: GraphKey, forward: CudaForward, block: CudaBlock | None, *, length: int, first: int
) -> Body:
    """What a key computes.

    length: committed positions, first: the first waiting row of the MTP head. Only chunks of more than 32
    rows, which no graph holds, read these two.
    """
    rows, parity = key.rows, key.parity
    context = min(key.context_class, len(forward.arena.places))
    if key.kind == "flush":
        return lambda: forward.flush(parity=parity)
    if key.kind == "draft":
        return lambda: forward.draft(rows=rows, steps=key.steps, width=key.width, context=context)
    if key.kind == "extend":
        place = first if rows > VERIFY_ROWS else None
        return lambda: forward.extend(rows=rows, context=context, first=place)
    if key.kind in (CONTEXT, BLOCK):
        assert block is not None
        compute = block.compute_context if key.kind == CONTEXT else block.compute_draft
        return lambda: compute(rows)
    if key.kind == "prefill":
        return lambda: forward.chunk(rows=rows, first=length, parity=parity)
    tree = key.kind == "tree"
    return lambda: forward.verify(rows=rows, parity=parity, tree=tree, context=context)
