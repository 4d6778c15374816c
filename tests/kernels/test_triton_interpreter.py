# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs the tests of the Triton kernels in a process whose kernels are interpreted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from kernels.cubin_gate import MANIFESTS, read_manifest

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "interpreted"


@pytest.mark.skipif(find_spec("triton") is None, reason="no Triton on this system")
@pytest.mark.timeout(900)
def test_the_triton_kernels_hold_in_the_interpreter(own_home: Path) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FOLDER)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout
    (launched,) = re.findall(r"^launched: (.*)$", done.stdout, re.MULTILINE)
    assert sorted(kernels() - set(launched.split())) == []


def kernels() -> set[str]:
    """Every Triton kernel of the targets' manifests, as "module.kernel"."""
    found = set()
    for manifest in MANIFESTS.glob("*.toml"):
        for module in read_manifest(manifest).modules:
            if module.source.endswith(".py"):
                name = "kernels." + module.source.removesuffix(".py").replace("/", ".")
                variants = import_module(name).GATE.variants
                found |= {f"{name}.{variant.kernel.__name__}" for variant in variants}
    assert found
    return found
