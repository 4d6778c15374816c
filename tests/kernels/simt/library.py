# SPDX-License-Identifier: MIT OR Apache-2.0
"""A library that launches on the CPU: the wrappers and the checks of the GPU kernels run against it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from simt.host import HostKernels

from kernels.cuda_build import Target

# An entry of each source, for its arguments.
ENTRIES = {
    "nvfp4_linear/skinny.cu": "rondo_nvfp4_skinny_t1_r8_a0",
    "nvfp4_linear/expand.cu": "rondo_nvfp4_expand",
    "head/gemv.cu": "rondo_fp8_head_t1_r8",
    "hadamard/wht.cu": "rondo_hadamard_d64",
}


class HostLibrary:
    """What the wrappers need of kernels.cuda_build.CudaLibrary."""

    device = torch.device("cpu")
    target = Target("host", (0, 0))

    def __init__(self, edits: Sequence[tuple[str, str, str]] = ()) -> None:
        self._edits = edits
        self._built: dict[str, HostKernels] = {}
        self.launched: list[str] = []

    def function(self, source: str, entry: str) -> tuple[HostKernels, str]:
        if source not in self._built:
            own = [edit for edit in self._edits if edit[0] in (source.split("/")[1], "skinny.cuh")]
            self._built[source] = HostKernels(source, ENTRIES[source], fp4_convert=False, edits=own)
        return self._built[source], entry

    def launch(
        self,
        function: tuple[HostKernels, str],
        *,
        grid: int,
        threads: int,
        shared_bytes: int,
        arguments: Sequence[Any],
    ) -> None:
        kernels, entry = function
        self.launched.append(entry)
        kernels.launch(
            entry,
            grid=grid,
            threads=threads,
            shared_bytes=shared_bytes,
            arguments=[argument.value or 0 for argument in arguments],
            readable=None,
        )
