# SPDX-License-Identifier: MIT OR Apache-2.0
"""What only a GPU can show: captured passes equal eager ones to the bit, and the kernels hold their checks."""

from __future__ import annotations

import pytest
import torch

from engine.measure.gpu_proof import Prover

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="PyTorch sees no GPU; `bash ops/gpu_check.sh` runs it"
    ),
]


def test_every_statement_holds() -> None:
    from engine.model.cuda_kernels import KernelOps
    from engine.model.cuda_ready import ready_library

    library = ready_library()
    failed = [each for each in Prover(library, library.device, KernelOps).run() if not each.ok]
    assert not failed


def test_the_checks_of_the_kernels_hold() -> None:
    from kernels.cuda_build import CudaLibrary
    from kernels.cuda_registry import run_cuda_checks

    assert not [result for result in run_cuda_checks(CudaLibrary()) if not result.ok]
