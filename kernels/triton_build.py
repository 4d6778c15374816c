# SPDX-License-Identifier: MIT OR Apache-2.0
"""Compiles Triton kernels for a target without a GPU, cached by content, for the gate of kernels/cubin_gate.py.

A module with Triton kernels lists its variants: one compiled form of a kernel each, with the constants and the
launch options that the served model's shapes take. At run time Triton compiles what a launch asks for; the
variants are what is held to budgets on a machine without a GPU.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.build_cache import NativeBuildError, cache_folder, hash_text, locked

WARP_THREADS = 32


def launch_options(warps: int, stages: int = 1, *, fusion: bool = True) -> dict[str, Any]:
    """What a kernel is compiled with, for a launch and for the gate alike.

    Nothing is left to a default of Triton's: its 3 stages are other machine code than the gate holds to its
    budgets, and its fusion is on up to 3.9, which warns, and off from 3.10.

    Args:
        warps: of a program.
        stages: steps of operands in flight.
        fusion: whether a product and a sum may become one operation with one rounding.
    """
    return {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": fusion}


@dataclass(frozen=True)
class Variant:
    """One compiled form of a kernel.

    Attributes:
        entry: its name in the manifests.
        kernel: the function under triton.jit.
        types: argument -> "*bf16" and the like for pointers (aligned to 16 bytes), "i32", "fp32", or "i32:16"
            for a number that is a multiple of 16; constants are not named here.
        constants: constexpr argument -> value.
        warps, stages: launch options.
        fusion: whether a product and a sum may become one operation with one rounding.
    """

    entry: str
    kernel: Any
    types: Mapping[str, str]
    constants: Mapping[str, Any] = field(default_factory=dict)
    warps: int = 4
    stages: int = 1
    fusion: bool = True


class Compiled:
    """The variants of one module as the gate asks for them.

    Its `cubins` and `shared_bytes` raise NativeBuildError when the interpreter stands in for the compiler
    (TRITON_INTERPRET) or a kernel does not compile; the text names the kernel.
    """

    def __init__(self, source: str, *variants: Variant) -> None:
        """source: the module's path below kernels/."""
        self.source, self.variants = source, variants

    def entries(self) -> dict[str, tuple[str, ...]]:
        """Every variant's name, by source."""
        return {self.source: tuple(variant.entry for variant in self.variants)}

    def cubins(self, target: str) -> dict[str, bytes]:
        """Machine code of every entry; `target` as nvcc names it, "sm_90a"."""
        return {variant.entry: _image(variant, target)[0] for variant in self.variants}

    def shared_bytes(self, target: str) -> dict[str, int]:
        """Shared memory a launch of every entry asks for."""
        return {variant.entry: _image(variant, target)[1] for variant in self.variants}


def _image(variant: Variant, target: str) -> tuple[bytes, int]:
    if not hasattr(variant.kernel, "cache_key"):
        raise NativeBuildError("TRITON_INTERPRET is set: there is nothing to compile")
    names = variant.kernel.arg_names
    signature = {
        name: "constexpr" if name in variant.constants else variant.types[name].split(":")[0]
        for name in names
    }
    aligned = [
        index
        for index, name in enumerate(names)
        if name not in variant.constants
        and (variant.types[name].startswith("*") or variant.types[name].endswith(":16"))
    ]
    options = launch_options(variant.warps, variant.stages, fusion=variant.fusion)
    recipe = [triton.__version__, variant.kernel.cache_key, signature, aligned, options, target]
    recipe.append(sorted(variant.constants.items()))
    folder = cache_folder("triton")
    path = folder / f"{variant.entry}-{target}-{hash_text(repr(recipe))}.cubin"
    facts = path.with_suffix(".json")
    with locked(folder / "build.lock"):
        if not facts.exists():
            source = ASTSource(
                fn=variant.kernel,
                signature=signature,
                constexprs=dict(variant.constants),
                attrs={(index,): [["tt.divisibility", 16]] for index in aligned},
            )
            capability = int(target.removeprefix("sm_").removesuffix("a"))
            place = GPUTarget("cuda", capability, WARP_THREADS)
            try:
                made = triton.compile(source, target=place, options=options)
            except Exception as error:
                raise NativeBuildError(
                    f"{variant.entry} does not compile for {target}: {type(error).__name__}: {error}"
                ) from error
            path.write_bytes(made.asm["cubin"])
            facts.write_text(json.dumps({"shared_bytes": made.metadata.shared}))
    return path.read_bytes(), json.loads(facts.read_text())["shared_bytes"]
