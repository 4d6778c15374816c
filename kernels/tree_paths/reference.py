# SPDX-License-Identifier: MIT OR Apache-2.0
"""Readable paths of a draft tree: what every row of a verify pass has above it."""

from __future__ import annotations

import torch
from torch import Tensor

MAX_NODES = 32


def tree_paths(parents: Tensor) -> tuple[Tensor, Tensor]:
    """The path from its root to every node, and every node's depth.

    Args:
        parents: int32 [32] in depth-first pre-order, -1 for a root; a chain is -1, 0, 1, 2, ...

    Returns:
        (paths int32 [32, 32], depths int32 [32]): paths[r, d] is node r's ancestor at depth d, r itself at its
        own depth and -1 below.

    Raises:
        ValueError: a parent that does not come before its node.
    """
    paths = torch.full((MAX_NODES, MAX_NODES), -1, dtype=torch.int32)
    depths = torch.zeros(MAX_NODES, dtype=torch.int32)
    for node, parent in enumerate(parents.tolist()):
        if not -1 <= parent < node:
            raise ValueError(f"node {node} has parent {parent}, which does not come before it")
        if parent >= 0:
            depths[node] = depths[parent] + 1
            paths[node] = paths[parent]
        paths[node, depths[node]] = node
    return paths, depths
