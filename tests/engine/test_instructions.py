# SPDX-License-Identifier: MIT OR Apache-2.0
"""A level of instructions that the processor lacks is refused before weights are read or made."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from checkpoints import MOE, make_checkpoint

from engine import Engine
from engine.api import CompareRequest
from engine.cli import USAGE, main
from engine.commands.doctor import _switches
from engine.errors import UsageError
from engine.knobs import KnobSet
from engine.load import checkpoint, synthetic
from engine.measure import bench
from engine.measure.ab_engine import EngineSides
from engine.model import instructions
from engine.model.instructions import ISA_NAMES
from kernels.build import ISA_LEVELS

LACKING = {"QWEN38_CPU_ISA": "amx"}
SENTENCE = "QWEN38_CPU_ISA=amx: this processor cannot run AMX BF16."


@pytest.fixture(autouse=True)
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor with AVX2, on which to read or draw a weight fails the test."""

    def fails(*_: object, **__: object) -> None:
        raise AssertionError("weights were read or made")

    monkeypatch.setattr(instructions, "machine_isas", lambda: ["avx2", "portable"])
    monkeypatch.setattr(checkpoint, "TensorReader", fails)
    monkeypatch.setattr(synthetic, "synthetic_weights", fails)
    monkeypatch.setattr(bench, "synthetic_weights", fails)


@pytest.mark.parametrize("changes", [{}, MOE])
def test_a_model_is_not_read_for_a_level_that_the_processor_lacks(
    changes: dict, tmp_path: Path
) -> None:
    make_checkpoint(tmp_path, **changes)
    for device in ("cpu", "auto"):
        with pytest.raises(UsageError, match=f"^{SENTENCE}") as caught:
            Engine.open(tmp_path, knobs=LACKING, device=device)
        assert (
            caught.value.next_step
            == "Leave it empty for avx2, or use one of avx2, portable, reference."
        )
    for values in ({}, {"QWEN38_CPU_ISA": "portable"}, {"QWEN38_CPU_ISA": "reference"}):
        with pytest.raises(AssertionError, match="weights were read"):
            Engine.open(tmp_path, knobs=values, device="cpu")
    with pytest.raises(AssertionError, match="weights were read"):
        Engine.open(tmp_path, knobs=LACKING, compute="float32")


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "--prompt", "Why?"],
        ["bench", "--shape", "demo", "--no-roof"],
        ["bench", "--shape", "demo", "--no-roof", "--suite", "plan"],
        ["bench", "--shape", "demo", "--suite", "verify", "--write-tables"],
        ["bench", "--shape", "demo", "--suite", "policies", "--accept", "0.5"],
        ["bench", "--suite", "policies"],
    ],
)
def test_a_command_refuses_it_first(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QWEN38_CPU_ISA", "amx")
    assert main(arguments) == USAGE
    assert f"rondo: {SENTENCE}\n" in capsys.readouterr().err
    # A level that no processor has is refused with the other switches' values.
    monkeypatch.setenv("QWEN38_CPU_ISA", "sse9")
    assert main(arguments) == USAGE
    assert "QWEN38_CPU_ISA='sse9' is not accepted" in capsys.readouterr().err


@pytest.mark.parametrize("side", ["base", "candidate"])
def test_an_ab_refuses_it_before_the_model_goes(side: str) -> None:
    card = SimpleNamespace(backend="native")
    engine = SimpleNamespace(card=card, knobs=KnobSet.resolve(environ={}), offers=frozenset())
    with pytest.raises(UsageError, match=f"^{SENTENCE}"):
        EngineSides(engine, CompareRequest(**{side: LACKING}))


def test_the_doctor_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QWEN38_CPU_ISA", "amx")
    (found,) = _switches()
    assert (found.status, found.found) == ("missing", SENTENCE)


def test_every_level_has_a_name() -> None:
    assert set(ISA_NAMES) == {level.name for level in ISA_LEVELS}
