# SPDX-License-Identifier: MIT OR Apache-2.0
"""Ctrl+C at any time: exit code 130, one sentence, no traceback."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from engine import cli
from engine.commands import tune
from engine.errors import Cancelled, RondoError
from engine.interrupt import INTERRUPTED, end_on_interrupt

ROOT = Path(__file__).parents[2]
# Presses Ctrl+C so many times as a module is looked for, then starts as the entry does.
PRESS = """
import os, signal, sys
name, presses = sys.argv.pop(1), int(sys.argv.pop(1))
class Press:
    def find_spec(self, wanted, path=None, target=None):
        if wanted == name:
            for _ in range(presses):
                os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Press())
"""
MODULE = 'import runpy; runpy.run_module("engine", run_name="__main__", alter_sys=True)'
SCRIPT = "from app.__main__ import main; sys.exit(main())"


def press(entry: str, module: str, presses: int, *command: str, **environ: str) -> tuple[int, str]:
    """(exit code, stderr) of a command that is interrupted when it reads `module`."""
    done = subprocess.run(
        [sys.executable, "-c", PRESS + entry, module, str(presses), *command],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("entry", [MODULE, SCRIPT], ids=["module", "script"])
@pytest.mark.parametrize("module", ["engine.cli", "engine.commands.tune", "torch.export"])
def test_while_modules_are_read(entry: str, module: str) -> None:
    assert press(entry, module, 1, "tune") == (130, "rondo: interrupted.\n")


def test_while_the_window_is_read() -> None:
    said = press(SCRIPT, "PySide6", 1, QT_QPA_PLATFORM="offscreen")
    assert said == (130, "rondo: interrupted.\n")


def test_while_a_model_is_opened() -> None:
    said = press(MODULE, "engine.engine", 1, "generate", "--prompt", "Why?", "--threads", "1")
    assert said == (130, "rondo: Opening the model was cancelled.\n")


def test_while_a_command_reads_its_modules(tmp_path: Path) -> None:
    path = tmp_path / "tiles.json"
    command = ("tune", "--threads", "1", "--out", str(path))
    code, said = press(MODULE, "engine.measure.tune", 1, *command)
    assert code == 130
    assert said.splitlines()[-1] == "rondo: Tuning was cancelled. No table was written."
    assert "Traceback" not in said
    assert press(MODULE, "engine.measure.tune", 2, *command) == (
        130,
        "rondo: Tuning was cancelled. No table was written.\n",
    )
    assert not path.exists()


# Presses Ctrl+C once, half a second into a native call that no signal ends: waiting for a lock of its own.
IN_A_CALL = """
import ctypes, os, signal, sys, threading
from engine import cli
from importlib import import_module
def run(arguments, cancel):
    def press():
        os.kill(os.getpid(), signal.SIGINT)
    threading.Timer(0.5, press).start()
    lock = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(lock)
import_module(f"engine.commands.{sys.argv[1]}").run = run
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("command", ["doctor", "probe", "knobs"])
def test_a_command_that_holds_nothing_ends_at_once(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_A_CALL, command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", f"rondo: {cli._STOPPED}\n")


def test_such_a_command_leaves_no_watch_behind(capsys: pytest.CaptureFixture[str]) -> None:
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    assert cli.main(["knobs", "--json"]) == cli.OK
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == (threads, files)
    assert signal.set_wakeup_fd(-1) == -1


def run_with(monkeypatch: pytest.MonkeyPatch, *, presses: int, raising: Exception | None) -> int:
    """Exit code of a command that prints, is interrupted and then ends, or fails."""

    def run(arguments: argparse.Namespace, cancel: threading.Event) -> int:
        print("so far")
        for _ in range(presses):
            signal.raise_signal(signal.SIGINT)
        if raising is not None:
            raise raising
        return cli.OK

    monkeypatch.setattr(tune, "run", run)
    return cli.main(["tune"])


@pytest.mark.parametrize(
    ("presses", "raising", "said"),
    [
        (1, None, "rondo: interrupted; what was done until then stands.\n"),
        (1, Cancelled("It was ended.", kept="Nothing changed."), "rondo: It was ended. Nothing changed.\n"),
        (1, ImportError("partly read"), f"rondo: {cli._STOPPED}\n"),
        (1, RondoError("The compiler failed."), f"rondo: {cli._STOPPED}\n"),
        (2, None, f"rondo: {cli._STOPPED}\n"),
    ],
)  # fmt: skip
def test_whatever_comes_of_it(
    presses: int,
    raising: Exception | None,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_with(monkeypatch, presses=presses, raising=raising) == INTERRUPTED
    assert capsys.readouterr() == ("so far\n", said)


def test_an_error_without_an_interrupt_is_told_or_raised(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = RondoError("The compiler failed.")
    assert run_with(monkeypatch, presses=0, raising=failed) == cli.FAILED
    assert "rondo: The compiler failed." in capsys.readouterr().err
    with pytest.raises(ImportError, match="partly read"):
        run_with(monkeypatch, presses=0, raising=ImportError("partly read"))


def test_a_process_that_ignores_interrupts_goes_on_ignoring_them() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        end_on_interrupt()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
