# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs the tests of the Triton kernels in a process whose kernels are interpreted."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "interpreted"


def lacking() -> str:
    """Why kernels cannot be interpreted here; empty when they can."""
    if find_spec("triton") is None:
        return "no Triton on this system"
    release = tuple(int(part) for part in version("triton").split(".")[:2])
    # Triton 3.6 takes a loaded loop bound for a Python number, which NumPy refuses; 3.9 does not.
    return "" if release >= (3, 9) else "this Triton's interpreter fails on loaded loop bounds"


@pytest.mark.skipif(bool(lacking()), reason=lacking() or "all there")
@pytest.mark.timeout(900)
def test_the_triton_kernels_hold_in_the_interpreter(own_home: Path) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FOLDER)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout
