# SPDX-License-Identifier: MIT OR Apache-2.0
"""Guards that every test runs under: its own home, few threads, no display, nothing left running."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

THREADS = "2"
LINGER_S = 2.0  # how long a thread may take to end after its test

# Qt, OpenMP and BLAS read these once, when they load: they must be set before any test imports them.
os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_variable] = THREADS
for _variable in [name for name in os.environ if name.startswith("QWEN38_")]:
    del os.environ[_variable]

# The same examples on every machine and every run: a red test can be rerun.
settings.register_profile("rondo", deadline=None, derandomize=True, database=None)
settings.load_profile("rondo")


@pytest.fixture(scope="session")
def library_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache folder for the whole run, so that native code is compiled once.

    RONDO_TEST_CACHE names a folder that outlives the run.
    """
    kept = os.environ.get("RONDO_TEST_CACHE")
    return Path(kept) if kept else tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_home(
    tmp_path_factory: pytest.TempPathFactory, library_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A fresh home for every test: nothing of the user's is read, nothing is left behind."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    for variable, folder in (
        ("XDG_CONFIG_HOME", home / ".config"),
        ("XDG_DATA_HOME", home / ".local" / "share"),
        ("XDG_STATE_HOME", home / ".local" / "state"),
        ("XDG_CACHE_HOME", library_cache),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        monkeypatch.setenv(variable, str(folder))
    return home


@pytest.fixture(autouse=True)
def no_leaked_threads() -> Iterator[None]:
    """Fails a test that leaves a non-daemon thread running."""
    before = set(threading.enumerate())
    yield
    left = leaked_threads(before, LINGER_S)
    assert not left, f"threads left running: {', '.join(thread.name for thread in left)}"


def leaked_threads(before: set[threading.Thread], linger_s: float) -> list[threading.Thread]:
    """Non-daemon threads that are not in `before` and did not end within `linger_s` seconds."""
    deadline_s = time.monotonic() + linger_s
    new = [t for t in threading.enumerate() if t not in before and not t.daemon]
    for thread in new:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return [thread for thread in new if thread.is_alive()]


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
            monkeypatch.setattr(module, name, _poisoned(getattr(module, name)))
    for name in ("new_empty", "new_empty_strided"):
        monkeypatch.setattr(torch.Tensor, name, _poisoned(getattr(torch.Tensor, name)))
    return poison


def _poisoned(make: Callable[..., object]) -> Callable[..., object]:
    def made(*args: object, **kwargs: object) -> object:
        return poison(make(*args, **kwargs))

    return made


def poison(values: object) -> object:
    """Fill an array or tensor with NaN, or with the largest value of an integer type."""
    import torch

    if isinstance(values, torch.Tensor):
        if values.dtype.is_floating_point or values.dtype.is_complex:
            return values.fill_(float("nan"))
        return values.fill_(True if values.dtype == torch.bool else torch.iinfo(values.dtype).max)
    assert isinstance(values, np.ndarray)
    if values.dtype.kind in "fc":
        values.fill(np.nan)
    elif values.dtype.kind in "iu":
        values.fill(np.iinfo(values.dtype).max)
    elif values.dtype.kind == "b":
        values.fill(True)
    return values
