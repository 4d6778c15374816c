# SPDX-License-Identifier: MIT OR Apache-2.0
"""ops/gpu_check.sh: stages, their limits and the table, with a stand-in for the Python of a GPU machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from source_tree import ROOT

SCRIPT = ROOT / "ops" / "gpu_check.sh"
ANSWERS = """
case "$*" in
  -) if grep -q nvidia-smi; then
       if [ -n "${NO_TORCH:-}" ]; then echo "ModuleNotFoundError: No module named 'torch'" >&2; exit 1; fi
       if [ -n "${NO_GPU:-}" ]; then echo "PyTorch sees no GPU" >&2; exit 1; fi
       echo '{"gpu": {"name": "a GPU", "multiprocessors": 48, "l2_bytes": 24000000}}'
     else echo '{"target": "sm_121a"}'; fi; exit ;;
  "- "*) exec "$REAL" "$@" ;;
  *cubin_gate*) echo "not available: no cuobjdump on this machine" >&2; exit 1 ;;
  *"engine check"*) echo '{"checks": [{"status": "pass"}, {"status": "fail", "kernel": "head",
     "reason": "44x640: 3 of 9 outside the bound"}]}'; exit "${CHECK_EXIT:-0}" ;;
  *cuda_bench*) echo '{"roof_gbps": 200.0, "rates": [
     {"kernel": "head", "outputs": 64, "inputs": 64, "rows": 1, "us": 2.0, "read_gbps": 150.0, "tile": ""},
     {"kernel": "head", "outputs": 64, "inputs": 64, "rows": 1, "us": 1.0, "read_gbps": 180.0, "tile": ""}]}' ;;
  *gpu_proof*) echo '{"failed": 1, "proofs": [{"name": "a tree", "ok": true, "reason": ""},
     {"name": "9 rows, captured, and single steps", "ok": false, "reason": "rows [8] differ"}]}'
     echo "rondo: 1 statement does not hold" >&2; exit 3 ;;
  *"engine agree"*GRAPH*) echo "rondo: a switch is not known" >&2; exit 2 ;;
  *"engine agree"*) if [ -n "${LACKS:-}" ]; then
       echo "ModuleNotFoundError: No module named '$LACKS'" >&2; exit 1
     fi
     echo '{"prompts": 6, "identical": 5, "near_ties": 1, "divergences": 0}' ;;
  *"shape qwen3.8-27b:8"*) if [ -n "${ROUNDS:-}" ]; then echo "$ROUNDS"; exit 1; fi
     echo '{"rows": []}' ;;
  *"--suite plan"*) echo '{}' ;;
  *"engine bench"*) echo '{"rows": [{"shape": "qwen3.8-27b", "weight_format": "NVFP4", "suite": "verify",
     "rows": 16, "ms_median": 80.5, "read_gbps": 190.0, "roof_gbps": 200.0}]}' ;;
esac
"""

pytestmark = pytest.mark.skipif(
    not (shutil.which("bash") and shutil.which("timeout")),
    reason="the script needs bash and timeout",
)


LIMITS = re.compile(r"^stage (?P<name>[\w-]+) (?P<limit>\d+) ", re.MULTILINE)


def run(tmp_path: Path, **environ: str) -> tuple[int, dict[str, list[str]], str]:
    """(exit code, stage -> [status, note], everything printed)."""
    python = tmp_path / "python"
    python.write_text(f"#!/usr/bin/env bash\n{ANSWERS}")
    python.chmod(0o755)
    out = tmp_path / "out"
    done = subprocess.run(
        ["bash", str(SCRIPT)],
        env=os.environ | {"PYTHON": str(python), "REAL": sys.executable, "OUT": str(out)} | environ,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    rows = [line.split("\t") for line in (out / "stages.tsv").read_text().splitlines()]
    return done.returncode, {row[0]: [row[1], row[3]] for row in rows}, done.stdout


def test_a_folder_and_a_python_are_meant_from_where_the_caller_stands(tmp_path: Path) -> None:
    run(tmp_path, NO_GPU="1")
    done = subprocess.run(
        ["bash", str(SCRIPT)],
        env=os.environ
        | {"PYTHON": "./python", "REAL": sys.executable, "OUT": "here/out", "NO_GPU": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1
    assert (tmp_path / "here" / "out" / "stages.tsv").read_text().endswith("sees no GPU\n")
    assert "No such file" not in done.stderr


def test_a_python_that_is_none_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", str(SCRIPT)],
        env=os.environ | {"PYTHON": "/gone/python", "OUT": str(tmp_path / "out")},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        "gpu_check: there is no Python called /gone/python; set PYTHON to one with PyTorch"
    ]


def test_every_stage_says_how_it_went(tmp_path: Path) -> None:
    code, stages, printed = run(tmp_path)
    assert code == 1
    for name in ("environment", "build", "check", "cold", "plan"):
        assert stages[name] == ["ok", ""]
    assert stages["gate"] == ["not available", "why: no cuobjdump on this machine"]
    if not shutil.which("compute-sanitizer"):
        assert stages["memcheck"] == ["not available", "why: no compute-sanitizer here"]
    assert stages["graphs"] == ["FAIL", "1 statement does not hold"]
    assert stages["agree"] == stages["rounds"] == stages["rounds-27b"] == ["ok", ""]
    assert stages["agree-eager"] == ["not available", "why: a switch is not known"]
    assert "commits: 1 of 2 hold to the bit" in printed
    assert "FAIL 9 rows, captured, and single steps: rows [8] differ" in printed
    assert "agree: 5 of 6 answers identical, 1 near ties, 0 divergences" in printed
    assert "verify     16    80.500 ms    190 GB/s  95 %" in printed
    assert "a GPU, 48 multiprocessors, L2 24 MB" in printed
    assert "checks: 1 of 2 hold" in printed
    assert "FAIL head: 44x640" in printed
    assert "1.0 us    180 GB/s   90 %" in printed


def test_one_file_holds_all_figures(tmp_path: Path) -> None:
    run(tmp_path)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    first = summary["stages"][0]
    assert first.pop("s").isdigit()
    assert first == {"stage": "environment", "status": "ok", "note": ""}
    assert summary["cold"]["roof_gbps"] == 200.0
    assert summary["rounds-27b"]["rows"][0]["ms_median"] == 80.5
    assert summary["gate"] == {}


def test_a_package_that_this_python_lacks_is_no_fault_of_the_engine(tmp_path: Path) -> None:
    _, stages, printed = run(tmp_path, LACKS="tokenizers.models")
    assert stages["agree"] == ["not available", "why: this Python has no tokenizers"]
    assert "agree:" not in printed
    _, stages, _ = run(tmp_path, LACKS="kernels.gone")
    assert stages["agree"][0] == "FAIL"


@pytest.mark.parametrize("answer", ['{"error": {"cause": "short"}}', '{"rows": [', ""])
def test_a_stage_without_figures_leaves_the_table_whole(answer: str, tmp_path: Path) -> None:
    _, stages, printed = run(tmp_path, ROUNDS=answer or " ")
    assert stages["rounds"][0] == "FAIL"
    assert "rounds-27b: qwen3.8-27b" in printed


def test_the_check_ends_in_ten_minutes_however_slow_its_stages_are() -> None:
    text = SCRIPT.read_text()
    limits = {found["name"]: int(found["limit"]) for found in LIMITS.finditer(text)}
    budget, grace = (
        int(re.search(pattern, text)[1]) for pattern in (r"BUDGET_S=(\d+)", r"timeout -k (\d+)")
    )
    assert budget + grace < 590
    # What proves most gets its whole time even after builds that take theirs.
    assert sum(limits[name] for name in ("environment", "build", "check", "graphs")) < budget
    assert list(limits)[-1] == "plan"


def test_a_failed_check_fails_the_run(tmp_path: Path) -> None:
    code, stages, _ = run(tmp_path, CHECK_EXIT="3")
    assert code == 1
    assert stages["check"][0] == "FAIL"
    assert stages["plan"][0] == "ok"


def test_without_a_gpu_nothing_else_is_tried(tmp_path: Path) -> None:
    code, stages, _ = run(tmp_path, NO_GPU="1")
    assert code == 1
    assert stages == {"environment": ["FAIL", "PyTorch sees no GPU"]}


def test_a_python_without_pytorch_proves_nothing(tmp_path: Path) -> None:
    """Every stage would be left out for a lack of this Python, and none would fail."""
    code, stages, _ = run(tmp_path, NO_TORCH="1")
    assert code == 1
    assert stages == {"environment": ["not available", "why: this Python has no torch"]}


def test_an_unknown_option_is_explained(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", str(SCRIPT), "--fast"],
        env=os.environ | {"OUT": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "OUT" in done.stderr


def test_the_script_can_be_executed() -> None:
    assert os.access(SCRIPT, os.X_OK)
