# SPDX-License-Identifier: MIT OR Apache-2.0
"""Every pass of the GPU backend over buffers of another device: nothing of the host may be left among them.

The device is one that PyTorch names on every machine and computes on nowhere; its tensors have shapes and no
values, so what reads one on the host fails here, too.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_cuda_backend import FORMATS
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from engine.knobs import KnobSet
from engine.load.synthetic import synthetic_weights
from engine.measure.gpu_proof_block import random_block
from engine.model.cuda import CudaBackend
from engine.model.cuda_bodies import body_of
from engine.model.cuda_smoke import CAPACITY, SMOKE
from engine.model.verify_graph import GraphKey
from kernels.attention import prefill

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor"),
]

ELSEWHERE = torch.device("lazy")
PASSES = (
    ("chain", 5), ("tree", 6), ("flush", 0), ("draft", 3), ("extend", 4), ("extend", 40), ("prefill", 40),
    ("block context", 8), ("block", 16),
)  # fmt: skip


def lower_right(rows: int, length: int) -> Tensor:
    return torch.ones(rows, length, dtype=torch.bool, device=ELSEWHERE).tril(length - rows)


class Moved:
    """Replaces every tensor that an object of the backend holds, however deep, by one of the other device."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        # The old ones are kept, so that no id comes again.
        self._met: dict[int, tuple[Any, Any]] = {}

    def __call__(self, value: Any) -> Any:
        if id(value) in self._met:
            return self._met[id(value)][1]
        if isinstance(value, Tensor):
            with self._mode:
                made = torch.empty_strided(
                    value.shape, value.stride(), dtype=value.dtype, device=ELSEWHERE
                )
            self._met[id(value)] = (value, made)
            return made
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            return type(value)(self(each) for each in value)
        own = type(value).__module__.startswith(("engine.model.cuda", "kernels."))
        if is_dataclass(value) or (own and hasattr(value, "__dict__")):
            self._met[id(value)] = (value, value)
            names = [each.name for each in fields(value)] if is_dataclass(value) else vars(value)
            for name in list(names):
                object.__setattr__(value, name, self(getattr(value, name)))
        return value


@pytest.mark.parametrize("skinny", ["1", "0"])
@pytest.mark.parametrize("weight_format", FORMATS)
def test_no_pass_meets_a_tensor_of_the_host(
    monkeypatch: pytest.MonkeyPatch, weight_format: str, skinny: str
) -> None:
    # PyTorch's own mask is made where no tensor may be one of its kinds.
    monkeypatch.setattr(prefill, "causal_bias", lambda: lower_right)
    library: Any = SimpleNamespace(
        device=torch.device("cpu"), function=lambda *names: names, launch=lambda *_, **__: None
    )
    changes = {"QWEN38_NVFP4_SKINNY": skinny, "QWEN38_FUSED_HEAD": skinny}
    backend = CudaBackend(
        SMOKE,
        synthetic_weights(SMOKE, weight_format, seed=3),
        capacity=CAPACITY,
        knobs=KnobSet.resolve(environ={}, changes=changes),
        device="cpu",
        library=library,
    )
    backend.attach_block(random_block(SMOKE))
    mode = FakeTensorMode()
    move = Moved(mode)
    move(backend._forward)
    move(backend._drafters.block)
    library.device = ELSEWHERE
    backend._ops.paths_of = lambda parents, tree: None  # a kernel's on every GPU
    assert backend._arena.delta.states.device == ELSEWHERE
    for kind, rows in PASSES:
        key = GraphKey(kind, rows, 1024, "", 0, steps=3, width=2)
        with mode, torch.no_grad():
            body_of(key, backend._forward, backend._drafters.block, length=7, first=2)()
    kept = backend._ops.norm
    backend._ops.norm = lambda x, weight, out, rows: kept(
        x, torch.ones_like(weight, device="cpu"), out, rows
    )
    with pytest.raises(Exception, match="device"), mode, torch.no_grad():
        backend._forward.verify(rows=5, parity=0, tree=False, context=64)
