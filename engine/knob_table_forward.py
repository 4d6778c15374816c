# SPDX-License-Identifier: MIT OR Apache-2.0
"""Switches of the forward pass: norms, head, attention and the gated delta rule.

On the CPU "off" is the readable PyTorch operation between two native calls: slower, and a second opinion.
"""

from __future__ import annotations

from engine.knob_kinds import Knob

_BOTH = ("native", "cuda")
_READABLE = "the readable operations are all there is on this backend"

FORWARD: tuple[Knob, ...] = (
    Knob(
        "FUSED_NORM", "bool", "1",
        "Take RMS norms in a kernel; off, in PyTorch, with the residual sum apart.",
        "near-tie", "recapture", "norm kernels", "verify",
        backends=_BOTH, why=_READABLE,
    ),
    Knob(
        "FUSED_ADDNORM", "bool", "1",
        "Add to the residual stream and take the norm of the sum in one kernel; off, in two.",
        "identical", "recapture", "add-norm kernels", "verify",
        backends=_BOTH, why=_READABLE,
    ),
    Knob(
        "FUSED_HEAD", "bool", "1",
        "Compute the logits of a single row in a kernel; off, expand the head and use the library's product.",
        "near-tie", "recapture", "one-row head kernels", "verify",
        backends=_BOTH, why=_READABLE,
    ),
    Knob(
        "DECODE_ATTN", "bool", "1",
        "Attend in a kernel in passes of up to 32 rows; off, through the library's scaled dot product.",
        "near-tie", "recapture", "narrow attention kernels", "verify",
        backends=_BOTH, why=_READABLE,
    ),
    Knob(
        "GQA_FROM", "int", "0",
        "From how many rows of a prompt chunk attention goes through the library; 0 never.",
        "near-tie", "recapture", "wide attention by PyTorch", "verify", 0, 65536,
        why=_READABLE,
    ),
    Knob(
        "FUSED_ATTN_PREP", "bool", "1",
        "Take head norms, rotary embedding and the KV append in one kernel; off, in PyTorch.",
        "near-tie", "recapture", "attention preparation kernels", "verify",
        backends=_BOTH, why=_READABLE,
    ),
    Knob(
        "FUSED_COMMIT", "bool", "1",
        "Apply accepted rows to the state in a kernel; off, in PyTorch. Acts where a commit is its own pass.",
        "near-tie", "recapture", "delta commit kernels", "verify",
        backends=_BOTH, why=_READABLE,
    ),
    Knob(
        "KV_FP8", "bool", "0",
        "Keep keys and values, the MTP head's too, in e4m3 with a scale for each head and token: half the "
        "bytes of the context.",
        "other-numbers", "reload", "attention over an e4m3 cache", "verify",
        why="the readable operations keep plain rows",
        why_cuda="the cache and its attention kernel hold bf16 alone",
    ),
    Knob(
        "GRAPH_MAX_CTX", "int", "262144",
        "The longest context that is served from recordings; beyond it every operation is issued anew.",
        "identical", "live", "tape replays", "verify", 0, 1048576,
        backends=_BOTH, why=_READABLE,
    ),
    Knob(
        "FUSED_GDN", "bool", "1",
        "Walk the recurrence of a verify pass of one row in a kernel; off, in PyTorch.",
        "near-tie", "recapture", "delta one-row kernels", "delta",
        backends=_BOTH, why=_READABLE,
    ),
    Knob(
        "FUSED_GDNPRE", "bool", "1",
        "Take convolution, unit length and gates of a verify pass of one row in a kernel; off, in PyTorch.",
        "near-tie", "recapture", "one-row preparation kernels", "delta",
        backends=_BOTH, why=_READABLE,
    ),
    Knob(
        "FUSED_GDNBLOCK", "bool", "1",
        "Walk the recurrence of a chain of rows in a kernel; off, in PyTorch.",
        "near-tie", "recapture", "delta chain kernels", "delta",
        backends=_BOTH, why=_READABLE,
    ),
    Knob(
        "FUSED_GDNTREE", "bool", "1",
        "Walk the recurrence of a draft tree in a kernel; off, in PyTorch.",
        "near-tie", "recapture", "delta tree kernels", "delta",
        backends=_BOTH, why=_READABLE,
    ),
    Knob(
        "FUSED_GDNVERIFY", "bool", "1",
        "Take convolution, unit length and gates of several rows to verify in a kernel; off, in PyTorch.",
        "near-tie", "recapture", "verify preparation kernels", "delta",
        backends=_BOTH, why=_READABLE,
    ),
    Knob(
        "FUSED_GDNPREFILL", "bool", "1",
        "Walk the recurrence of prompt chunks in a kernel; off, in PyTorch by chunks.",
        "near-tie", "recapture", "delta prefill kernels", "delta",
        backends=_BOTH, why=_READABLE,
    ),
    Knob(
        "GDN_CHUNK", "int", "64",
        "Rows solved together where prompt chunks go through PyTorch (FUSED_GDNPREFILL=0).",
        "near-tie", "recapture", "delta prefill by a solve", "delta", 2, 256,
        backends=_BOTH, why=_READABLE,
    ),
    Knob(
        "UT_INVERSE", "bool", "1",
        "Solve such a chunk's triangular system at once; off, walk its rows one by one.",
        "near-tie", "recapture", "delta prefill by a solve", "delta",
        why=_READABLE,
    ),
    Knob(
        "GDNV_EXACT", "bool", "1",
        "Walk a draft tree with the bits of plain decoding; off, by a stack of factors, whose time does not "
        "grow with the depth.",
        "near-tie", "recapture", "exact tree walks", "delta",
        backends=("cuda",), why="the walk on the CPU always has those bits",
    ),
    Knob(
        "GDNV_WY", "bool", "0",
        "Solve the rows of a verify pass at once through one triangular system in PyTorch instead of walking "
        "them.",
        "near-tie", "recapture", "delta verify by a solve", "delta",
        backends=_BOTH, why=_READABLE,
    ),
    Knob(
        "GDNV_WY_MAXT", "int", "32",
        "The largest tree that is solved at once.",
        "near-tie", "recapture", "delta verify by a solve", "delta", 0, 32,
        backends=_BOTH, why=_READABLE,
    ),
    Knob(
        "GDNV_WY_CHAIN_MAXT", "int", "32",
        "The longest chain that is solved at once.",
        "near-tie", "recapture", "delta verify by a solve", "delta", 0, 32,
        backends=_BOTH, why=_READABLE,
    ),
    Knob(
        "GDN_AB", "bool", "1",
        "Compute the projections for decay and beta of a delta layer as one product; off, as two.",
        "identical", "reload", "joined delta gates", "delta",
        backends=_BOTH, why=_READABLE,
    ),
    Knob(
        "SKINNY_TILES", "path", "",
        "A table from `rondo tune` of sizes by weight shape for NVFP4 products of 1 to 16 rows. Sizes measured "
        "at another instruction level are not used.",
        "identical", "recapture", "narrow NVFP4 products by a table", "products",
        backends=_BOTH, why=_READABLE,
    ),
    Knob(
        "SKINNY_TILES_WIDE", "path", "",
        "Such a table for NVFP4 products of 17 to 32 rows.",
        "identical", "recapture", "wide NVFP4 products by a table", "products",
        backends=_BOTH, why=_READABLE,
    ),
    Knob(
        "FP8_TILES", "path", "",
        "Such a table for FP8 products of up to 32 rows.",
        "identical", "recapture", "FP8 products by a table", "products",
        backends=_BOTH, why=_READABLE,
    ),
    Knob(
        "FUSE_PROJ", "bool", "1",
        "Compute q, k and v as one product, likewise qkv and z, gate and up; off, one by one.",
        "identical", "reload", "joined MLP gate, up", "products",
        backends=_BOTH, why=_READABLE,
    ),
    Knob(
        "NVFP4_SKINNY", "bool", "1",
        "Multiply NVFP4 weights with up to 32 rows in a kernel; off, expand them for the library's product.",
        "near-tie", "recapture", "narrow NVFP4 kernels", "products",
        backends=_BOTH, why=_READABLE,
    ),
    Knob(
        "NVFP4_INT8", "bool", "0",
        "Round the inputs of NVFP4 kernels to 8 bits, sixteen to a step, in place of reading them as bf16: "
        "faster and less exact. The head, and products by the library, keep bf16.",
        "other-numbers", "recapture", "NVFP4 products of 8-bit inputs", "products",
        why=_READABLE, why_cuda="the kernels there multiply bf16",
        needs=("an NVFP4 weight for the vector units",),
    ),
    Knob(
        "NVFP4_PREFILL_V2", "bool", "1",
        "Multiply NVFP4 weights with 33 and more rows in a kernel; off, expand them for the library's product.",
        "near-tie", "recapture", "wide NVFP4 kernels", "products",
        backends=_BOTH, why=_READABLE,
    ),
    Knob(
        "NVFP4_PREFILL_V2_UNTIL", "int", "1024",
        "From how many rows NVFP4 weights are expanded for the library's product all the same.",
        "near-tie", "recapture", "wide NVFP4 kernels", "products", 33, 65536,
        backends=_BOTH, why=_READABLE,
    ),
)  # fmt: skip
