# SPDX-License-Identifier: MIT OR Apache-2.0
"""The GPU backend through its Triton kernels, run by Triton's interpreter in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    places = os.pathsep.join((str(TESTS.parent), str(TESTS)))
    run = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("cuda_interpreted.py"))],
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": places, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_a_tree_has_the_bits_of_single_steps(found: dict[str, Any]) -> None:
    assert found["rows"]
    assert found["state"] == []


def test_kernels_follow_pytorch(found: dict[str, Any]) -> None:
    """Other roundings alone: a wrong kernel is off by more than a deviation of the logits."""
    assert found["off"] < 0.15
    assert found["state_off"] < 0.05


def test_other_forms_of_the_recurrence_follow_too(found: dict[str, Any]) -> None:
    stack, solve = found["forms"]["stack"], found["forms"]["solve"]
    assert max(stack["off"], solve["off"]) < 0.15
    assert stack["paths"].get("delta tree kernels", 0) > 0
    assert "exact tree walks" not in stack["paths"]
    assert solve["paths"].get("delta verify by a solve", 0) > 0


def test_a_block_draft_follows_pytorch(found: dict[str, Any]) -> None:
    assert len(found["block_off"]) == 6
    assert max(found["block_off"].values()) < 0.05


def test_the_kernels_were_used(found: dict[str, Any]) -> None:
    paths = found["paths"]
    for name in (
        "norm kernels",
        "add-norm kernels",
        "attention preparation kernels",
        "narrow attention kernels",
        "verify preparation kernels",
        "one-row preparation kernels",
        "delta chain kernels",
        "delta tree kernels",
        "delta one-row kernels",
        "exact tree walks",
        "delta commit kernels",
        "narrow NVFP4 kernels",
        "one-row head kernels",
    ):
        assert paths.get(name, 0) > 0, name
    assert not [name for name in paths if name.endswith("by PyTorch")]
