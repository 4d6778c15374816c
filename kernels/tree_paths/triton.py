# SPDX-License-Identifier: MIT OR Apache-2.0
"""Paths of a draft tree on a GPU, once a round: every kernel that reads ancestors takes them from here.

`paths_of(parents, paths, depths)`; twin `reference.tree_paths`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.tree_paths.reference import MAX_NODES
from kernels.triton_build import Compiled, Variant, launch_options
from kernels.triton_operands import require, require_device


@triton.jit
def _paths_of(parents, paths, depths, NODES: tl.constexpr):
    node = tl.arange(0, NODES)
    level = tl.arange(0, NODES)
    table = tl.full((NODES, NODES), -1, tl.int32)
    depth = tl.zeros((NODES,), tl.int32)
    for row in range(NODES):
        parent = tl.load(parents + row)
        above = tl.sum(tl.where((node == parent)[:, None], table + 1, 0), 0) - 1
        own = tl.where(parent < 0, 0, tl.sum(tl.where(node == parent, depth + 1, 0), 0))
        path = tl.where(level == own, row, above)
        table = tl.where((node == row)[:, None], path[None, :], table)
        depth = tl.where(node == row, own, depth)
    tl.store(paths + node[:, None] * NODES + level[None, :], table)
    tl.store(depths + node, depth)


GATE = Compiled(
    "tree_paths/triton.py",
    Variant(
        "tree_paths",
        _paths_of,
        {"parents": "*i32", "paths": "*i32", "depths": "*i32"},
        {"NODES": MAX_NODES},
    ),
)
entries, cubins, shared_bytes = GATE.entries, GATE.cubins, GATE.shared_bytes


def paths_of(parents: Tensor, paths: Tensor, depths: Tensor) -> None:
    """paths[r, d] = node r's ancestor at depth d, itself included, -1 below; depths[r] = its depth.

    Args:
        parents: int32 [32], each before its node, -1 for a root; all 32 are read.
        paths: int32 [32, 32]; depths: int32 [32].

    Raises:
        ValueError: an operand differs from the above; nothing was launched.
    """
    require("parents", parents, torch.int32, (MAX_NODES,))
    require("paths", paths, torch.int32, (MAX_NODES, MAX_NODES))
    require("depths", depths, torch.int32, (MAX_NODES,))
    require_device(parents=parents, paths=paths, depths=depths)
    _paths_of[(1,)](parents, paths, depths, MAX_NODES, **launch_options(4))
