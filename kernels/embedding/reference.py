# SPDX-License-Identifier: MIT OR Apache-2.0
"""Readable token embedding."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def embed(table: Tensor, ids: Tensor) -> Tensor:
    """Rows of the table: table [V, N], integer ids [...] -> [..., N] in the table's dtype."""
    return functional.embedding(ids, table)
