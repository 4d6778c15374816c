# SPDX-License-Identifier: MIT OR Apache-2.0
"""The inference engine. `from engine import Engine`; the console goes through `engine.api` alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.engine import Engine

__all__ = ["Engine"]


def __getattr__(name: str) -> object:
    # Engine pulls in torch; the window must be up before that.
    if name == "Engine":
        from engine.engine import Engine

        return Engine
    raise AttributeError(f"module 'engine' has no attribute {name!r}")
