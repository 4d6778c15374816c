# SPDX-License-Identifier: MIT OR Apache-2.0
"""Every QWEN38_* switch, declared once.

A row whose `backends` is empty is declared but not part of this version, and says so in `why`.
"""

from __future__ import annotations

import difflib

from engine.errors import UsageError
from engine.hardware import MOST_THREADS
from engine.knob_kinds import PREFIX, Knob
from engine.knob_table_forward import FORWARD
from engine.knob_table_idle import IDLE

GROUPS = {
    "verify": "Verify and commit",
    "delta": "Gated delta rule",
    "products": "Matrix products",
    "drafters": "Drafters",
    "router": "Router",
    "runtime": "Run time",
}
PASS_GROUPS = ("verify", "delta", "products")  # whose switches say how a pass is computed
_CPU = ("native", "reference")
_ALL = (*_CPU, "cuda")

_ROUND: tuple[Knob, ...] = (
    # Verify and commit
    Knob(
        "VERIFY_GRAPH", "bool", "1",
        "Replay a recorded tape of the forward pass in one native call instead of issuing every operation.",
        "identical", "live", "tape replays", "verify",
        backends=("native", "cuda"), why="the readable operations are not recorded",
    ),
    Knob(
        "COMMIT_IN_VERIFY", "bool", "1",
        "Apply the accepted rows inside the next verify pass as it loads each state, instead of in a pass of "
        "their own.",
        "identical", "live", "commit passes", "verify",
        backends=("native", "cuda"), why="the readable operations keep the state behind every row",
        requires=(("RANKK", "1"),),
    ),
    Knob(
        "RANKK", "choice", "1",
        "Commit accepted rows from what the verify pass recorded of them (1), by running their tokens through "
        "the model again (0), or both ways and compare (check). Anything but 1 needs "
        "QWEN38_COMMIT_IN_VERIFY=0.",
        "identical", "recapture", "commits by record", "verify",
        choices=("1", "0", "check"), why="the readable operations keep the state behind every row",
        why_cuda="accepted rows are applied from their record; there is no other way",
    ),
    Knob(
        "VERIFY_ROWS", "int", "32",
        "The most rows, the anchor included, that one verify pass takes.",
        "proposes-only", "live", "rows verified", "verify", 1, 32,
        backends=_ALL,
    ),
    # Drafters
    Knob(
        "MTP_DEPTH", "int", "3",
        "How many tokens the checkpoint's own MTP head drafts for one verify pass; 0 drafts none.",
        "proposes-only", "live", "drafted tokens", "drafters", 0, 4,
        backends=_ALL, needs=("the MTP head",),
    ),
    Knob(
        "MTP_TREE", "int", "0",
        "How many side branches the MTP head's draft gets at each step beside its chain; 0 drafts a chain.",
        "proposes-only", "live", "tree passes", "drafters", 0, 4,
        backends=_ALL, needs=("the MTP head",),
    ),
    Knob(
        "DRAFT_GRAPH", "bool", "1",
        "Replay the drafter's pass from a recorded tape instead of issuing every operation.",
        "proposes-only", "live", "draft tape replays", "drafters",
        backends=("native", "cuda"), why="the readable operations are not recorded",
    ),
    Knob(
        "LOOKUP", "bool", "0",
        "Draft what followed the same last tokens earlier in the text, in the corpus or in the suffix store.",
        "proposes-only", "live", "tokens drafted by lookup", "drafters",
        backends=_ALL,
    ),
    Knob(
        "CORPUS", "path", "",
        "A folder made by `rondo corpus build` that the lookup drafter searches besides the conversation.",
        "proposes-only", "reload", "tokens drafted from the corpus", "drafters",
        backends=_ALL,
    ),
    Knob(
        "SUFFIX_STORE", "text", "",
        "The folder in which lookup keeps finished answers between runs; PATH:ro only reads it; empty keeps "
        "nothing.",
        "proposes-only", "reload", "tokens drafted from the store", "drafters",
        backends=_ALL,
    ),
    Knob(
        "DEEP", "int", "32",
        "How many rows a deep lookup chain may take once a copy runs on; 0 draws none.",
        "proposes-only", "live", "deep lookup rounds", "drafters", 0, 32,
        backends=_ALL,
    ),
    Knob(
        "DEEP_AFTER", "int", "2",
        "After how many wide, fully accepted rounds in a row the lookup chain goes deep.",
        "proposes-only", "live", "deep lookup rounds", "drafters", 0, 99,
        backends=_ALL,
    ),
    Knob(
        "DFLASH2", "path", "",
        "The folder of a block drafter's checkpoint; empty takes the one beside the model, off takes none.",
        "proposes-only", "reload", "tokens drafted by the block drafter", "drafters",
        backends=_ALL,
    ),
    Knob(
        "DF2_TEMP", "float", "1.0",
        "Temperature of the block drafter's probabilities when a tree is chosen from them.",
        "proposes-only", "live", "tokens drafted by the block drafter", "drafters", 0.02, 10,
        backends=_ALL, needs=("the block drafter",),
    ),
    Knob(
        "DF2_TREE_MODE", "choice", "nodes",
        "Grow the block drafter's tree by its best single nodes, or by whole branches.",
        "proposes-only", "live", "tokens drafted by the block drafter", "drafters",
        choices=("nodes", "paths"),
        backends=_ALL, needs=("the block drafter",),
    ),
    Knob(
        "DRAFT_NVFP4", "bool", "0",
        "Keep the block drafter's projections in NVFP4: a quarter of the bytes a draft reads.",
        "proposes-only", "reload", "tokens drafted by the block drafter", "drafters",
        backends=_ALL, needs=("the block drafter",),
    ),
    # Router
    Knob(
        "TREE_NODES", "int", "0",
        "How many nodes besides the anchor a draft may have; 0 leaves it to the drafter.",
        "proposes-only", "live", "rows verified", "router", 0, 31,
        backends=_ALL,
    ),
    Knob(
        "LEN_SWITCH", "bool", "0",
        "Choose drafter and tree size anew for every round by what a row costs and is likely to bring.",
        "proposes-only", "live", "routed rounds", "router",
        backends=_ALL,
    ),
    Knob(
        "LEN_MODE", "choice", "stair",
        "How that choice is made: stair prices every size by the measured steps of a verify pass, fixed always "
        "takes the largest.",
        "proposes-only", "live", "routed rounds", "router",
        choices=("stair", "fixed"), aliases=(("wide", "stair"),),
        backends=_ALL,
    ),
    Knob(
        "STAIR_TABLES", "path", "",
        "A JSON file of verify prices by context length and rows; empty prices by this run's own rounds.",
        "proposes-only", "reload", "routed rounds", "router",
        backends=_ALL,
    ),
    Knob(
        "STAIR_RHO", "path", "",
        "How likely a looked-up line goes on: a file of bench --write-rates; empty starts from a flat prior.",
        "proposes-only", "reload", "routed rounds", "router",
        backends=_ALL,
    ),
    Knob(
        "STAIR_SKIP", "bool", "0",
        "Skip the head's draft while a lookup copy runs.",
        "proposes-only", "live", "rounds without a head draft", "router",
        backends=_ALL,
    ),
    # Runtime
    Knob(
        "OP_TIMES", "bool", "0",
        "Put an event behind every operation of a pass on a GPU, so that the kernel table has times.",
        "identical", "recapture", "timed passes", "runtime",
        backends=("cuda",), why="the native kernels are always timed",
    ),
    Knob(
        "CACHE_GB", "int", "1",
        "Memory for places that later requests go on from, so that no turn of a chat is read from its start; "
        "0 reads it anew. On a GPU and with PyTorch's operations a text may then differ at a near tie.",
        "identical", "live", "prompt tokens kept", "runtime", 0, 1024,
        backends=_ALL,
    ),
    Knob(
        "CPU_ISA", "choice", "",
        "Force the instruction set of the native kernels (reference: the readable PyTorch operations instead); "
        "empty picks the best this processor has.",
        "near-tie", "reload", "instruction set of the loaded library", "runtime",
        choices=("", "amx", "avx512bf16", "avx512vnni", "avx512", "avxvnni", "avx2", "dotprod", "neon",
                 "portable", "reference"),
        backends=_CPU,
        why_cuda="it is about the processor",
    ),
    Knob(
        "CPU_THREADS", "int", "0",
        "How many workers compute a pass, whatever --threads says; 0 leaves the choice made when the model was "
        "loaded.",
        "identical", "live", "passes on other threads", "runtime", 0, MOST_THREADS,
        why="PyTorch's threads are chosen when a model is loaded",
        why_cuda="it is about the processor",
    ),
)  # fmt: skip

# Rows of one group lie together, the acting ones first.
KNOBS: tuple[Knob, ...] = tuple(
    knob for group in GROUPS for knob in (*_ROUND, *FORWARD, *IDLE) if knob.group == group
)
_BY_NAME = {knob.name: knob for knob in KNOBS}


def knob_named(key: str) -> Knob:
    """The switch of a full name; UsageError when there is none."""
    name = key.removeprefix(PREFIX)
    if not key.startswith(PREFIX) or name not in _BY_NAME:
        raise UsageError(
            f"{key} is not a switch of this engine.",
            kept="Nothing was changed.",
            next_step=_guess(name) + "`rondo knobs` lists every switch.",
        )
    return _BY_NAME[name]


def _guess(name: str) -> str:
    near = difflib.get_close_matches(name[:64].upper(), _BY_NAME, n=3, cutoff=0.6)
    if not near:
        return ""
    return f"Did you mean {' or '.join(PREFIX + each for each in near)}? "
