# SPDX-License-Identifier: MIT OR Apache-2.0
"""Triton's interpreter as the tests use it, of every Triton that the project takes."""

from __future__ import annotations

from functools import wraps
from importlib import import_module
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
    """Add "module.kernel" to `names` whenever a kernel has run in the interpreter.

    A launch must say every option, as the module's gate has them for some form of the kernel: what is left to a
    default of Triton's is other machine code than the gate saw.
    """
    from triton.runtime.interpreter import GridExecutor

    call = GridExecutor.__call__

    @wraps(call)
    def recorded(self: Any, *arguments: Any, **named: Any) -> None:
        name = f"{self.fn.__module__}.{self.fn.__name__}"
        variants = import_module(self.fn.__module__).GATE.variants
        forms = [form for form in variants if form.kernel.__name__ == self.fn.__name__]
        gated = {(form.stages, form.fusion) for form in forms}
        said = (named.get("num_stages"), named.get("enable_fp_fusion"))
        assert "num_warps" in named, f"{name}: launched with Triton's number of warps"
        assert said in gated, f"{name}: launched with {said}, the gate has {gated}"
        call(self, *arguments, **named)
        names.add(name)

    GridExecutor.__call__ = recorded
