# SPDX-License-Identifier: MIT OR Apache-2.0
"""The checks of the GPU kernels; each module offers `check(library, *, seed)` with a CudaLibrary."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kernels.checks import CheckResult

if TYPE_CHECKING:
    from kernels.cuda_build import CudaLibrary

CUDA_CHECKS = {
    "nvfp4_linear": "kernels.nvfp4_linear.cuda_check",
    "head": "kernels.head.cuda_check",
    "hadamard": "kernels.hadamard.cuda_check",
    "rms_norm": "kernels.rms_norm.triton_check",
    "causal_conv": "kernels.causal_conv.triton_check",
    "attention": "kernels.attention.triton_check",
    "gated_delta": "kernels.gated_delta.triton_check",
    "fp8_linear": "kernels.fp8_linear.triton_check",
    "argmax": "kernels.head.triton_check",
    "e2m1": "kernels.e2m1.triton_check",
}


def run_cuda_checks(
    library: CudaLibrary, *, names: tuple[str, ...] | None = None, seed: int = 0
) -> Iterator[CheckResult]:
    """Results of every check of the GPU kernels (or of the operations `names`), as they come.

    A check that raises becomes a failed result that names the exception.

    Raises:
        ValueError: a name is unknown.
    """
    for name in names or ():
        if name not in CUDA_CHECKS:
            raise ValueError(f"no GPU kernel is called {name!r}; known: {', '.join(CUDA_CHECKS)}")
    for name, module in CUDA_CHECKS.items():
        if names is not None and name not in names:
            continue
        try:
            yield from importlib.import_module(module).check(library, seed=seed)
        except Exception as error:
            reason = f"the check stopped: {type(error).__name__}: {error}"
            target = library.target.name
            yield CheckResult(name, target, "cuda", "fail", 0.0, 0.0, None, reason)


def run_short_checks(library: CudaLibrary) -> Iterator[CheckResult]:
    """The checks of the compiled products on one small shape: what a model is opened on a GPU with."""
    from kernels.head import cuda_check as head
    from kernels.nvfp4_linear import cuda_check as nvfp4

    yield from nvfp4.check(library, shapes=((44, 640),), orders=((4, 0),))
    yield from head.check(library, shapes=((44, 640),))
