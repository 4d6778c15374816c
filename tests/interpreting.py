# SPDX-License-Identifier: MIT OR Apache-2.0
"""Triton's interpreter as the tests use it, of every Triton that the project takes."""

from __future__ import annotations

from functools import wraps
from typing import Any


def read_loaded_bounds() -> None:
    """Let a loop's bound be a loaded number in every Triton from 3.6.

    Older interpreters call int() on an array of one element, which NumPy deprecates and from 2.4 refuses.
    """
    from triton.runtime import interpreter  # only where there is Triton

    patch = interpreter._patch_lang_tensor

    def patch_tensor(tensor: type, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_tensor


def record_launches(names: set[str]) -> None:
    """Add "module.kernel" to `names` whenever a kernel has run in the interpreter."""
    from triton.runtime.interpreter import GridExecutor

    call = GridExecutor.__call__

    @wraps(call)
    def recorded(self: Any, *arguments: Any, **named: Any) -> None:
        call(self, *arguments, **named)
        names.add(f"{self.fn.__module__}.{self.fn.__name__}")

    GridExecutor.__call__ = recorded
