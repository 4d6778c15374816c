# SPDX-License-Identifier: MIT OR Apache-2.0
"""A load or a command whose memory runs out midway: what it says, and that nothing is left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkpoints import make_checkpoint

import engine.load.reader as reader
from engine import Engine
from engine.cli import FAILED, main
from engine.errors import MemoryShortError
from engine.measure.roof import native_probes
from engine.model.arena import Arena
from engine.model.reference import ReferenceBackend
from kernels.tape import Pool

REFERENCE = {"QWEN38_CPU_ISA": "reference"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("memory") / "small-model"
    make_checkpoint(folder, max_position_embeddings=1024)
    return folder


def exhausted(*_: object, **__: object) -> torch.Tensor:
    return torch.zeros(1 << 60)


def test_a_tensor_without_memory_is_named(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    real, made = torch.empty, []

    def some(*sizes: int, **options: object) -> torch.Tensor:
        made.append(sizes)
        return real(*sizes, **options) if len(made) < 4 else exhausted()

    with monkeypatch.context() as full:
        full.setattr(reader.torch, "empty", some)
        with pytest.raises(MemoryShortError) as caught:
            Engine.open(model, threads=1, knobs=REFERENCE)
    assert "tensor model.language_model." in caught.value.cause
    assert "of model.safetensors (0.00 GB)" in caught.value.cause
    assert caught.value.kept == "What was read of it is freed."


def test_a_conversion_without_memory_names_the_weights(
    monkeypatch: pytest.MonkeyPatch, model: Path
) -> None:
    monkeypatch.setattr("engine.load.checkpoint.rounded", exhausted)
    with pytest.raises(MemoryShortError, match="memory for the weights of small-model;"):
        Engine.open(model, threads=1)


def test_buffers_without_memory_name_the_context_and_free_the_workers(
    monkeypatch: pytest.MonkeyPatch, model: Path
) -> None:
    pools: list[Pool] = []
    started = Pool.__init__

    def remember(self: Pool, *arguments: object) -> None:
        started(self, *arguments)
        pools.append(self)

    monkeypatch.setattr(Pool, "__init__", remember)
    monkeypatch.setattr(Arena, "build", exhausted)
    with pytest.raises(MemoryShortError) as caught:
        Engine.open(model, threads=1)
    assert "small-model and a context of 1\u202f024 tokens" in caught.value.cause
    assert "(last step: packing layer 4 of 4)" in caught.value.cause
    assert pools[0].handle is None


def test_the_command_says_it_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Path
) -> None:
    """In the load, and in what comes behind it."""
    arguments = [
        "generate",
        "--model",
        str(model),
        "--prompt",
        "x",
        "--knob",
        "QWEN38_CPU_ISA=reference",
    ]
    for method, what in (
        ("__init__", "a context of 1\u202f024 tokens"),
        ("prefill", "`rondo generate`"),
    ):
        with monkeypatch.context() as full:
            full.setattr(ReferenceBackend, method, exhausted)
            assert main(arguments) == FAILED
            told = capsys.readouterr()
            assert what in told.err
            assert "Close other programs" in told.err
            assert "Traceback" not in told.err
            assert main([*arguments, "--json"]) == FAILED
            told = json.loads(capsys.readouterr().out)["error"]
            assert told["title"] == "Not enough memory"
            assert told["kept"]


SCRIPT = """
import resource, sys
import engine.engine
from engine.cli import main
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (64 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits address space as Linux does")
def test_a_process_at_its_limit_ends_with_the_words(model: Path, tmp_path: Path) -> None:
    long = tmp_path / "long-model"
    make_checkpoint(long, max_position_embeddings=1 << 20)
    arguments = ["generate", "--model", str(long), "--prompt", "x", "--threads", "1"]
    arguments += ["--context", str(1 << 20), "--knob", "QWEN38_CPU_ISA=reference"]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == FAILED
    assert (
        "not enough memory for long-model and a context of 1\u202f048\u202f576 tokens"
        in done.stderr
    )
    assert "Traceback" not in done.stderr


def test_a_probe_without_memory_names_what_is_free(own_home: Path) -> None:
    with (
        pytest.raises(
            MemoryShortError, match=r"memory probe in the [\d.]+ GB that are free"
        ) as told,
        native_probes(1, 1 << 60),
    ):
        pass
    assert told.value.next_step == "Close other programs, or probe a smaller working set."


def test_a_probe_that_fails_otherwise_is_not_told_as_short(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no such operation")

    monkeypatch.setattr("kernels.probe.Probe.__init__", fail)
    with pytest.raises(RuntimeError, match="no such operation"), native_probes(1):
        pass
