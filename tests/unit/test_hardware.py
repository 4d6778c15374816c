# SPDX-License-Identifier: MIT OR Apache-2.0
"""Memory and cores with and without psutil; what the GPU's commands need of a Python besides PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from source_tree import ROOT

from engine import hardware

linux = pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="not a Linux system")


@linux
def test_linux_tells_what_psutil_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    cores, process = hardware.physical_core_count(), psutil.Process()
    own = hardware.OwnProcess().resident_bytes()
    assert own == pytest.approx(process.memory_info().rss, rel=0.2)
    monkeypatch.setattr(hardware, "psutil", None)
    memory = psutil.virtual_memory()
    assert hardware.total_memory_bytes() == memory.total
    assert hardware.free_memory_bytes() == pytest.approx(memory.available, rel=0.2)
    assert hardware.physical_core_count() == cores
    own = hardware.OwnProcess().resident_bytes()
    assert own == pytest.approx(process.memory_info().rss, rel=0.2)


def test_what_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hardware, "psutil", None)
    monkeypatch.setattr(hardware, "PROC", tmp_path)
    (tmp_path / "meminfo").write_text("MemTotal:  100 kB\n")
    (tmp_path / "cpuinfo").write_text("processor : 0\nBogoMIPS : 2000\n")
    assert hardware.total_memory_bytes() == 102400
    assert hardware.physical_core_count() is None
    with pytest.raises(OSError, match="no MemAvailable"):
        hardware.free_memory_bytes()


BARE = """
import sys
sys.modules.update(dict.fromkeys(
    "PySide6 pyqtgraph psutil safetensors tokenizers jinja2 ninja transformers".split()))
from engine.cli import main
from engine.measure import gpu_proof
from kernels import cuda_bench
for command in (
    "check --device cuda", "tune --device cuda", "bench --device cuda --shape qwen3.8-27b:8 --suite verify",
    "bench --suite plan --no-native --json --shape qwen3.8-27b",
):
    print(main(command.split()), file=sys.stderr)
print(gpu_proof.main(), cuda_bench.main([]), file=sys.stderr)
"""


def test_the_gpu_checks_commands_need_little(tmp_path: Path) -> None:
    """Neither the window's packages nor those that read checkpoints: without a GPU they come to saying so."""
    done = subprocess.run(
        [sys.executable, "-c", BARE],
        env=os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    codes = [line for line in done.stderr.splitlines() if line.replace(" ", "").isdigit()]
    assert codes == ["1", "1", "1", "0", "1 1"]
    assert done.stderr.count("sees no GPU") == 5
    assert '"predicted' in done.stdout
