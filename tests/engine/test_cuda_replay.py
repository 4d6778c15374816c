# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a replayed pass computes, without a GPU: its operations are recorded with the tensors they ran on.

A replay calls them again on those very tensors, as a CUDA graph does: a number of the host that a body takes
for one of the device, or a buffer that is replaced after a capture, shows as another answer than an eager
pass's.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from drafters import make_drafter
from test_cuda_backend import CONFIG as LARGER
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from trees import random_rows

from engine.knobs import KnobSet
from engine.load.synthetic import synthetic_weights
from engine.model.config import FULL, LINEAR
from engine.model.cuda import CudaBackend
from engine.model.cuda_arena import TreePaths
from engine.model.cuda_forward import CudaForward
from engine.model.cuda_graphs import Body, CudaRecording
from engine.model.cuda_ops import CudaOps
from kernels.tree_paths.reference import tree_paths

pytestmark = pytest.mark.usefixtures("one_thread")

CONFIG = replace(LARGER, layers=2, layer_types=(LINEAR, FULL))
CAPACITY = 160
POOL = (0, 1)
Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], list[Tensor]]

_library = torch.library.Library("rondo_replay", "DEF")
_library.define("paths_of(Tensor parents, Tensor(a!) paths, Tensor(b!) depths) -> ()")


@torch.library.impl(_library, "paths_of", "CPU")
def _paths_of(parents: Tensor, paths: Tensor, depths: Tensor) -> None:
    for out, found in zip((paths, depths), tree_paths(parents.clone()), strict=True):
        out.copy_(found)


class PlainOps(CudaOps):
    """The operations through PyTorch; the paths of a tree are one operation, as their kernel is."""

    def paths_of(self, parents: Tensor, tree: TreePaths) -> None:
        torch.ops.rondo_replay.paths_of(parents, tree.paths, tree.depths)


class Log(TorchDispatchMode):
    """Notes every operation that writes, and puts back what it wrote: a capture computes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self._before: dict[int, tuple[Any, Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = dict(zip((each.name for each in func._schema.arguments), args, strict=False))
        given |= kwargs
        written = [each.name for each in func._schema.arguments if each.is_write]
        for name in written:
            memory = given[name].untyped_storage()
            self._before.setdefault(memory.data_ptr(), (memory, memory.clone()))
        out = func(*args, **kwargs)
        read = {memory.data_ptr() for memory in _memory((args, kwargs))}
        made = [] if written else [each for each in tree_leaves(out) if isinstance(each, Tensor)]
        if written or not read & {memory.data_ptr() for memory in _memory(made)}:
            self.calls.append((func, args, kwargs, made))
        return out

    def put_back(self) -> None:
        for memory, before in self._before.values():
            memory.copy_(before)


class Replayed(CudaRecording):
    """A recording whose graph is a Log."""

    calls: list[Call] | None = None

    def capture(self, pool: tuple[int, int], settle: Body, restore: Body) -> None:
        assert pool == POOL
        settle()
        self._body()
        restore()
        log = Log()
        with log:
            self._issue()
        log.put_back()
        self.calls = log.calls

    def run(self) -> None:
        if self.calls is None:
            self._issue()
            return
        for func, args, kwargs, made in self.calls:
            again = tree_leaves(func(*args, **kwargs))
            for out, value in zip(made, again if made else (), strict=True):
                out.copy_(value)


def _memory(values: Any) -> list[Any]:
    return [t.untyped_storage() for t in tree_leaves(values) if isinstance(t, Tensor) and t.numel()]


@pytest.fixture(autouse=True)
def small_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two prompts of a play lie in two classes of contexts."""
    monkeypatch.setattr("engine.model.verify_graph._FIRST_CLASS_TOKENS", 64)


def play(folder: Path, seed: int, *, replayed: bool, knobs: dict[str, str]) -> list[Any]:
    """Logits, drafts and states of rounds that a seed fixes."""
    draw = random.Random(seed)
    backend = CudaBackend(
        CONFIG,
        synthetic_weights(CONFIG, "bf16", seed=seed),
        capacity=CAPACITY,
        knobs=KnobSet.resolve(environ={}, changes=knobs),
        device="cpu",
        make_ops=PlainOps,
    )
    if replayed:
        backend._captures, backend._graphs.pool = True, POOL
        backend._graphs._new_pool = lambda: POOL
    backend.record_rounds(2, 2)
    backend.attach_block(make_drafter(folder, CONFIG))
    found: list[Any] = []
    for prompt in (5, 80):
        backend.reset(speculate=True)
        found.append(backend.prefill(_ids(draw, prompt)).logits.copy())
        for _ in range(4):
            rows = random_rows(draw, draw.choice((2, 4, 7)), CONFIG.vocab_size)
            tree = rows.parents if draw.random() < 0.6 else None
            found.append(backend.verify(rows.ids, tree).logits.copy())
            backend.commit(rows.path(draw.choice(rows.leaves())) if tree else draw.randint(1, 2))
            depth, width = draw.randint(1, 2), draw.randint(1, 2)
            for step in backend.draft_steps(rows.ids[0], depth, width):
                found.append((step.tokens, step.probabilities))
            found.append(backend.draft_block(rows.ids[0], 3).logits)
        found += [part for _, part in sorted(backend.committed_state().items())]
    assert (backend.engaged().get("graph captures", 0) > 9) == replayed
    return found


def _ids(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(CONFIG.vocab_size) for _ in range(count)]


def equal(first: list[Any], second: list[Any]) -> bool:
    """Whether both plays found the same bits."""
    pairs = zip(first, second, strict=True)
    return all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in _parts(pairs))


def _parts(pairs: Any) -> Any:
    for one, other in pairs:
        yield from zip(one, other, strict=True) if isinstance(one, tuple) else ((one, other),)


@pytest.mark.parametrize("commits", ["1", "0"])
def test_replayed_rounds_are_the_rounds_issued_eagerly(
    commits: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    knobs = {"QWEN38_COMMIT_IN_VERIFY": commits}
    eager = play(tmp_path / "eager", 3, replayed=False, knobs=knobs)
    monkeypatch.setattr("engine.model.cuda.CudaRecording", Replayed)
    assert equal(play(tmp_path / "replayed", 3, replayed=True, knobs=knobs), eager)


def test_a_number_of_the_host_in_a_body_would_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = CudaForward.verify

    def frozen(self: CudaForward, **options: Any) -> None:
        self.inputs.ids.copy_(torch.tensor(self.inputs.ids.tolist()))
        verify(self, **options)

    eager = play(tmp_path / "eager", 3, replayed=False, knobs={})
    monkeypatch.setattr(CudaForward, "verify", frozen)
    monkeypatch.setattr("engine.model.cuda.CudaRecording", Replayed)
    assert not equal(play(tmp_path / "replayed", 3, replayed=True, knobs={}), eager)
