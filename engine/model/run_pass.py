# SPDX-License-Identifier: MIT OR Apache-2.0
"""How what drafts or commits has a backend run one of its passes."""

from __future__ import annotations

from typing import Protocol


class RunPass(Protocol):
    """Runs a recording by its kind; see `GraphKey`."""

    def __call__(
        self, kind: str, rows: int, *, steps: int = 0, width: int = 0, in_round: bool = False
    ) -> None: ...
