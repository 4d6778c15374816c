# SPDX-License-Identifier: MIT OR Apache-2.0
"""Guards that every test runs under: its own home, few threads, no display, nothing left running."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from guards import leaked_threads, poison, poisoned
from hypothesis import settings

THREADS = "2"
LINGER_S = 2.0  # how long a thread may take to end after its test

# Qt, OpenMP and BLAS read these once, when they load: they must be set before any test imports them.
os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_variable] = THREADS
for _variable in [name for name in os.environ if name.startswith("QWEN38_")]:
    del os.environ[_variable]

# A run behind `nohup` or `&` is told to ignore these, and every process that a test starts would be, too.
for _name, _handler in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
    if hasattr(signal, _name) and signal.getsignal(getattr(signal, _name)) is signal.SIG_IGN:
        signal.signal(getattr(signal, _name), _handler)

# The same examples on every machine and every run: a red test can be rerun.
settings.register_profile("rondo", deadline=None, derandomize=True, database=None)
settings.load_profile("rondo")


@pytest.fixture(scope="session", autouse=True)
def library_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One cache folder for the whole run, so that native code is compiled once.

    RONDO_TEST_CACHE names a folder that outlives the run. What fixtures of a module or a session do, before any
    test has its own home, uses this cache as well, and a home of the run.
    """
    kept = os.environ.get("RONDO_TEST_CACHE")
    cache = Path(kept) if kept else tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        use_home(patch, tmp_path_factory.mktemp("home"), cache)
        yield cache


@pytest.fixture(autouse=True)
def own_home(
    tmp_path_factory: pytest.TempPathFactory, library_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A fresh home for every test: nothing of the user's is read, nothing is left behind."""
    home = tmp_path_factory.mktemp("home")
    use_home(monkeypatch, home, library_cache)
    return home


def use_home(patch: pytest.MonkeyPatch, home: Path, cache: Path) -> None:
    """Let the programs that are run take `home` for the user's and `cache` for what was compiled."""
    patch.setenv("HOME", str(home))
    for variable, folder in (
        ("XDG_CONFIG_HOME", home / ".config"),
        ("XDG_DATA_HOME", home / ".local" / "share"),
        ("XDG_STATE_HOME", home / ".local" / "state"),
        ("XDG_CACHE_HOME", cache),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        patch.setenv(variable, str(folder))


@pytest.fixture(autouse=True)
def no_leaked_threads() -> Iterator[None]:
    """Fails a test that leaves a non-daemon thread running."""
    before = set(threading.enumerate())
    yield
    left = leaked_threads(before, LINGER_S)
    assert not left, f"threads left running: {', '.join(thread.name for thread in left)}"


@pytest.fixture
def nan_poison(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], object]:
    """Makes fresh memory worthless: `empty` of numpy and torch gives NaN (integers: their extreme).

    An operation that leaves part of its output unwritten then shows it. The fixture's value poisons a given
    array or tensor in place and returns it.
    """
    import torch

    for module, names in (
        (np, ("empty", "empty_like")),
        (torch, ("empty", "empty_like", "empty_strided")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, poisoned(getattr(module, name)))
    for name in ("new_empty", "new_empty_strided"):
        monkeypatch.setattr(torch.Tensor, name, poisoned(getattr(torch.Tensor, name)))
    return poison
