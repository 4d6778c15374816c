# SPDX-License-Identifier: MIT OR Apache-2.0
"""How a run that did not end by itself is told to the next one, and what keeps the window free at a start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.last_run import take_trace

ROOT = Path(__file__).resolve().parents[2]

KEPT = """
import os, signal, sys, time
from pathlib import Path
from app.last_run import RunFile
run = RunFile(Path(sys.argv[1]))
run.note("writing")
if sys.argv[2] == "end":
    run.close()
elif sys.argv[2] == "wait":
    print("ready", flush=True)
    time.sleep(60)
else:
    os.kill(os.getpid(), getattr(signal, sys.argv[2]))
"""


def _start(code: str, *arguments: str, **more) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        **more,
    )


def _run(folder: Path, how: str) -> None:
    with _start(KEPT, str(folder), how) as process:
        process.wait(30)


def test_a_run_that_ends_leaves_no_trace(tmp_path: Path) -> None:
    _run(tmp_path, "end")
    assert list(tmp_path.iterdir()) == []
    assert take_trace(tmp_path) is None


def test_a_crash_is_told_once_with_its_stacks(tmp_path: Path) -> None:
    _run(tmp_path, "SIGSEGV")
    report = take_trace(tmp_path)
    assert report.cause == "It crashed while the engine's state was: writing."
    assert "Segmentation fault" in report.details
    assert take_trace(tmp_path) is None


def test_a_kill_is_told_without_stacks(tmp_path: Path) -> None:
    _run(tmp_path, "SIGKILL")
    report = take_trace(tmp_path)
    assert "ended from outside while the engine's state was: writing" in report.cause
    assert report.details == ""


def test_a_run_that_lasts_is_left_alone(tmp_path: Path) -> None:
    with _start(KEPT, str(tmp_path), "wait") as process:
        assert process.stdout.readline() == "ready\n"
        assert take_trace(tmp_path) is None
        assert len(list(tmp_path.iterdir())) == 1
        process.kill()
    assert take_trace(tmp_path) is not None


def test_a_number_given_to_another_process_is_no_run(tmp_path: Path) -> None:
    trace = tmp_path / f"run-{os.getppid()}.log"
    trace.write_text("ready\n", encoding="utf-8")
    os.utime(trace, (1.0, 1.0))
    assert take_trace(tmp_path) is not None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_close_the_window(tmp_path: Path, number: signal.Signals) -> None:
    env = {
        **os.environ,
        "QT_QPA_PLATFORM": "offscreen",
        "XDG_DATA_HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path),
    }
    code = "from app.__main__ import main; raise SystemExit(main(['--fake', 'steady']))"
    with _start(code, env=env) as process:
        end = time.monotonic() + 30
        while not list(tmp_path.rglob("run-*.log")):
            assert time.monotonic() < end
            time.sleep(0.05)
        time.sleep(1.0)
        process.send_signal(number)
        try:
            assert process.wait(15) == 0
        finally:
            process.kill()
    assert list(tmp_path.rglob("run-*.log")) == []


def test_an_ignored_hangup_stays_ignored() -> None:
    code = """
import signal
from types import SimpleNamespace
from app.main import _end_on_signals
signal.signal(signal.SIGHUP, signal.SIG_IGN)
_end_on_signals(SimpleNamespace(close=None))
signal.raise_signal(signal.SIGHUP)
assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
"""
    with _start(code) as process:
        assert process.wait(30) == 0


def test_libraries_are_linked_without_an_import(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from app.interpreter import link_libraries
link_libraries().join()
assert "libtorch_python" in Path("/proc/self/maps").read_text()
assert "torch" not in sys.modules
import torch
assert torch.ones(2).sum().item() == 2
"""
    if not sys.platform.startswith("linux"):
        pytest.skip("only done on Linux")
    with _start(code) as process:
        assert process.wait(60) == 0


def test_garbage_is_collected_again_after_the_first_load() -> None:
    code = """
import gc
from app.interpreter import hold_still, loaded_once
hold_still()
assert not gc.isenabled()
loaded_once()
assert gc.isenabled()
frozen = gc.get_freeze_count()
assert frozen > 0
loaded_once()
assert gc.get_freeze_count() == frozen
"""
    with _start(code) as process:
        assert process.wait(30) == 0
