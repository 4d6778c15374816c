# SPDX-License-Identifier: MIT OR Apache-2.0
"""Native mixture of experts: route, the experts' products, and their weighted sum.

One layer is five calls over static buffers; which experts run, and on how many rows, is decided when the tape
runs. R rows, E experts, k of them chosen by a row, H hidden, I inner width of an expert::

    plan = MoePlan.empty(rows=32, experts=E, top_k=k)      # shared by all layers of a tape
    hidden, y = plan.hidden(I), plan.hidden(H)              # bf16 [rows * k, I] and [rows * k, H]
    linear(tape, router, x, logits, rows=R)                 # logits float32 or bf16 [>= R, E]
    moe_route(tape, plan, logits=logits, rows=R, distinct=counts[layer : layer + 1])
    moe_gate_up(tape, gate_up, plan, x=x, out=hidden, rows=R)
    moe_down(tape, down, plan, x=hidden, out=y, rows=R)
    moe_combine(tape, plan, y=y, shared=shared, shared_gate=gate, out=out, rows=R)

The (row, slot) pairs of a pass are sorted by expert, rows ascending inside an expert; their places in that order
are the rows of `hidden` and `y`, so an expert's rows lie together and a distinct expert is read once. The bits of
an expert's product are those of `linear` with its weight.
"""
