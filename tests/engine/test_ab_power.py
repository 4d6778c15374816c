# SPDX-License-Identifier: MIT OR Apache-2.0
"""The program that plants a delay in an A/B: it lands on the candidate alone, and is found."""

from __future__ import annotations

import threading

import pytest

from engine.api import CompareRequest
from engine.engine import Engine
from engine.measure.workloads import workloads_of
from engine.paths import demo_model
from ops.ab_power import Delay, DelayedSides, main

SHORT = ("--tokens", "8", "--pairs", "6", "--repeats", "1", "--itself", "1", "--runs", "1")


def test_a_delay_of_three_rounds_is_called_worse(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHORT, "--planted", "300"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "uninterrupted" in lines[0]
    itself, planted = lines[-2:]
    assert itself.startswith("| 0.00 % | 1 |")
    assert "| 1 | 1 worse | +" in planted


def test_only_the_candidate_is_delayed() -> None:
    request = CompareRequest(workload="prompt", prompt="Why?", tokens=8)
    [work] = workloads_of(request)
    with Engine.open(demo_model(), threads=1, context_tokens=256) as engine:
        sides = DelayedSides(engine, request)
        sides.delay = Delay(bits=8)
        verify = engine._backend.verify
        sides.run("base", work, pair=1, order=0, repeat=0, cancel=threading.Event())
        assert not sides.delay.taken_ms
        other = sides.run("candidate", work, pair=1, order=1, repeat=0, cancel=threading.Event())
        assert len(sides.delay.taken_ms) == other.block.rounds
        assert engine._backend.verify == verify
