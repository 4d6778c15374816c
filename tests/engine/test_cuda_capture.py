# SPDX-License-Identifier: MIT OR Apache-2.0
"""The rules of a CUDA graph, held to without a GPU: streams of a capture, its pool, and what no body may do."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from backends import Loaded
from drafters import make_drafter
from test_cuda_backend import FORMATS, make
from test_cuda_block import KIND as BLOCK
from test_native import CONFIG
from torch.utils._python_dispatch import TorchDispatchMode

from engine.knobs import KnobSet
from engine.load.synthetic import synthetic_weights
from engine.model import cuda_graphs
from engine.model.cuda import CudaBackend
from engine.model.cuda_arena import TreePaths
from engine.model.cuda_graphs import CudaGraphs, CudaRecording
from engine.model.cuda_ops import CudaOps
from kernels.attention import prefill

pytestmark = pytest.mark.usefixtures("one_thread")

GPU = torch.device("cuda", 0)
FORBIDDEN = {
    "aten::_local_scalar_dense": "a value is read on the host",
    "aten::nonzero": "a size depends on a value",
    "aten::masked_select": "a size depends on a value",
    "aten::lift_fresh": "a host's list becomes a tensor",
    "aten::_pin_memory": "page-locked memory is allocated",
}


class CaptureRules(TorchDispatchMode):
    """Raises on operations that no graph can hold, or that would freeze a number of the host in it."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func._schema.name
        masks = (each for part in args if isinstance(part, list | tuple) for each in part)
        is_masked = name.startswith("aten::index") and any(
            isinstance(each, torch.Tensor) and each.dtype == torch.bool for each in masks
        )
        if name in FORBIDDEN or is_masked:
            raise RuntimeError(f"{name}: {FORBIDDEN.get(name, 'a size depends on a value')}")
        return func(*args, **(kwargs or {}))


class Ruled(CudaRecording):
    """Every pass under the rules of a capture, which prompt chunks of more than 32 rows never meet."""

    def run(self) -> None:
        with CaptureRules():
            super().run()


class PlainOps(CudaOps):
    """The operations through PyTorch, but for the paths of a tree, which a kernel finds on every GPU."""

    def paths_of(self, parents: torch.Tensor, tree: TreePaths) -> None:
        """Leave them: what a tree holds makes no difference to what operations do."""


class Streams:
    """Stands in for the streams and captures of `torch.cuda`, and notes what happens on which."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0
        self.notes: list[tuple[str, str]] = []
        self.breaks = False
        self.now = self._stream("own")
        names = {
            "current_stream": lambda device: self.now,
            "Stream": lambda device: self._made(),
            "stream": self._on,
            "graph": self._graph,
            "CUDAGraph": SimpleNamespace,
            "set_stream": lambda stream: setattr(self, "now", stream),
        }
        for name, value in names.items():
            monkeypatch.setattr(torch.cuda, name, value)

    def body(self) -> None:
        self.notes.append(("body", self.now.name))

    def _stream(self, name: str) -> SimpleNamespace:
        def wait(other: SimpleNamespace) -> None:
            self.notes.append((name, f"waits for {other.name}"))

        return SimpleNamespace(name=name, wait_stream=wait)

    def _made(self) -> SimpleNamespace:
        self.made += 1
        return self._stream(f"side {self.made}")

    @contextlib.contextmanager
    def _on(self, stream: SimpleNamespace) -> Iterator[None]:
        before, self.now = self.now, stream
        yield
        self.now = before

    @contextlib.contextmanager
    def _graph(self, graph: object, *, stream: Any, **_: object) -> Iterator[None]:
        before, self.now = self.now, stream
        try:
            yield
        finally:
            if self.breaks:  # as PyTorch does it: its end raises before the stream is put back
                raise RuntimeError("operation failed due to a previous error during capture")
        self.now = before


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Iterator[Streams]:
    cuda_graphs._side_stream.cache_clear()
    yield Streams(monkeypatch)
    cuda_graphs._side_stream.cache_clear()


def recording(streams: Streams) -> CudaRecording:
    return CudaRecording(make("bf16")._ops, streams.body, GPU)


def capture(made: CudaRecording) -> None:
    made.capture((0, 1), settle=lambda: None, restore=lambda: None)


def test_warm_up_and_capture_share_one_stream_over_all_captures(streams: Streams) -> None:
    """A library's workspace is of a stream: from a capture alone it would be of the graphs' pool."""
    for _ in range(2):
        capture(recording(streams))
    assert [name for what, name in streams.notes if what == "body"] == ["side 1"] * 4
    assert streams.notes[:3] == [
        ("side 1", "waits for own"),
        ("body", "side 1"),
        ("own", "waits for side 1"),
    ]
    assert streams.now.name == "own"


def test_a_warm_up_counts_for_no_recording(streams: Streams) -> None:
    ops = make("bf16")._ops
    first, second = (CudaRecording(ops, lambda: ops._count("norm kernels"), GPU) for _ in range(2))
    capture(first)
    capture(second)
    assert first.paths == second.paths == {"norm kernels": 1}


def test_a_capture_that_breaks_leaves_the_stream_of_before(streams: Streams) -> None:
    made, streams.breaks = recording(streams), True
    with pytest.raises(RuntimeError, match="during capture"):
        capture(made)
    assert streams.now.name == "own"
    assert made._graph is None
    made.run()
    assert streams.notes[-1] == ("body", "own")


def test_a_pool_is_not_taken_again_once_its_graphs_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PyTorch refuses to capture in a pool that no graph holds any more."""
    handles = iter([(0, 1), (0, 2)])
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    graphs = CudaGraphs(GPU)
    first = graphs.pool
    graphs.clear()
    assert (first, graphs.pool) == ((0, 1), (0, 2))
    assert CudaGraphs(torch.device("cpu")).pool is None


@pytest.mark.parametrize("weight_format", FORMATS)
def test_no_pass_that_a_graph_holds_reads_or_makes_a_value_on_the_host(
    weight_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.model.cuda.CudaRecording", Ruled)
    launched: list[object] = []
    library: Any = SimpleNamespace(
        device=torch.device("cpu"),
        function=lambda source, entry: entry,
        launch=lambda entry, **_: launched.append(entry),
    )
    for switches in ({}, {"COMMIT_IN_VERIFY": "0", "NVFP4_SKINNY": "0", "FUSED_HEAD": "0"}):
        changes = {f"QWEN38_{name}": value for name, value in switches.items()}
        backend = CudaBackend(
            CONFIG,
            synthetic_weights(CONFIG, weight_format, seed=5),
            capacity=64,
            knobs=KnobSet.resolve(environ={}, changes=changes),
            device="cpu",
            library=library,
            make_ops=PlainOps,
        )
        backend.reset(speculate=True)
        backend.prefill([3, 1, 4, 1, 5])
        backend.draft_steps(9, 3, 2)
        backend.verify([9, 2, 6, 5], [-1, 0, 0, 2])
        backend.commit([0, 2, 3])
        backend.verify([3, 5])
        backend.commit(1)
        assert backend.committed_state()["length"] == 9
    assert launched or weight_format == "bf16"


def test_no_pass_of_a_block_drafter_does(
    loaded: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.model.cuda.CudaRecording", Ruled)
    backend = BLOCK.make(loaded.config, loaded.weights, 96)
    backend.attach_block(make_drafter(tmp_path, loaded.config))
    backend.reset(speculate=True)
    backend.prefill([3, 1, 4, 1, 5])
    assert len(backend.draft_block(9, 8).tokens) == 7


def test_a_four_bit_head_larger_than_every_layer_expands_too() -> None:
    config = replace(CONFIG, hidden_size=128, vocab_size=1024, mtp_layers=0)
    weights = synthetic_weights(config, "nvfp4", seed=5)
    head = synthetic_weights(replace(config, intermediate_size=1024), "nvfp4", seed=5).layers[0].up
    expanded: list[str] = []
    library: Any = SimpleNamespace(
        device=torch.device("cpu"),
        function=lambda source, entry: entry,
        launch=lambda entry, **_: expanded.append(entry) if "expand" in entry else None,
    )
    backend = CudaBackend(
        config,
        replace(weights, head=head),
        capacity=64,
        knobs=KnobSet.resolve(environ={}, changes={"QWEN38_FUSED_HEAD": "0"}),
        device="cpu",
        library=library,
        make_ops=PlainOps,
    )
    backend.prefill([3])
    assert backend.verify([4]).logits.shape == (1, 1024)
    assert len(expanded) == 2


def test_a_prompt_chunk_never_asks_for_a_plan_of_its_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """cuDNN, which PyTorch prefers on some GPUs, compiles one for every length that it meets."""
    attend, allowed = prefill.scaled_dot_product_attention, []

    def noted(*operands: Any, **options: Any) -> torch.Tensor:
        allowed.append(torch.backends.cuda.cudnn_sdp_enabled())
        # PyTorch makes a bias of causal attention as a tensor of its size, on the host.
        assert options["attn_mask"].untyped_storage().nbytes() <= 8
        return attend(*operands, **options)

    monkeypatch.setattr(prefill, "scaled_dot_product_attention", noted)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    make("bf16").prefill(list(range(1, 40)))
    assert set(allowed) == {False}
    assert torch.backends.cuda.cudnn_sdp_enabled() == before


def test_the_rules_notice_what_breaks_them() -> None:
    value = torch.ones(3)
    with CaptureRules():
        for broken in (
            lambda: value.sum().item(),
            lambda: value + torch.tensor([1.0, 2.0, 3.0]),
            lambda: value[value > 0],
            lambda: bool((value > 0).all()),
        ):
            with pytest.raises(RuntimeError, match="aten::"):
                broken()
        assert (value + 1).sum().shape == ()


def test_a_closed_backend_holds_no_buffer(loaded: Loaded, tmp_path: Path) -> None:
    backend = BLOCK.make(loaded.config, loaded.weights, 96)
    backend.attach_block(make_drafter(tmp_path, loaded.config))
    placed = backend._forward.weights
    held = [weakref.ref(t) for t in (backend._arena.delta.states, placed.embed, placed.rope)]
    del placed
    backend.close()
    backend.close()
    gc.collect()
    assert [each() for each in held] == [None, None, None]


def test_a_backend_whose_gpu_is_broken_still_lets_its_buffers_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(device: torch.device) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", broken)
    backend = make("bf16")
    backend._captures = True
    held = weakref.ref(backend._arena.delta.states)
    backend.close()
    gc.collect()
    assert held() is None
