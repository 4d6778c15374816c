# SPDX-License-Identifier: MIT OR Apache-2.0
"""The proofs that a GPU is asked for, played through PyTorch on a CPU: they hold, and a fault shows in them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.measure.gpu_proof import Proof, Prover
from engine.model.cuda_ops import CudaOps

pytestmark = pytest.mark.usefixtures("one_thread")


def failed(ops: type[CudaOps]) -> list[Proof]:
    prover = Prover(None, torch.device("cpu"), ops, rows=(1, 2, 9))
    return [proof for proof in prover.run() if not proof.ok]


def test_all_hold_but_the_times_that_a_gpu_alone_gives() -> None:
    assert [proof.name for proof in failed(CudaOps)] == ["operations of captured rounds are timed"]


class _Forgetful(CudaOps):
    """Every other norm is off by a hundredth, so that no pass equals its repetition."""

    turn = 0

    def norm(self, x: Tensor, weight: Tensor, out: Tensor, rows: int) -> None:
        super().norm(x, weight, out, rows)
        type(self).turn += 1
        if self.turn % 2:
            out[:rows] *= 1.01


def test_a_pass_that_differs_from_its_repetition_is_found() -> None:
    names = " ".join(proof.name for proof in failed(_Forgetful))
    assert "single steps" in names
    assert "a block drafter" in names
