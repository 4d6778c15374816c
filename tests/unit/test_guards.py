# SPDX-License-Identifier: MIT OR Apache-2.0
"""The guards of conftest.py hold: a test has its own home, few threads, and worthless fresh memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from guards import leaked_threads

HOMES: set[str] = set()


@pytest.mark.parametrize("turn", [1, 2])
def test_every_test_has_an_empty_home(turn: int, own_home: Path) -> None:
    assert Path.home() == own_home
    assert str(own_home) not in HOMES
    HOMES.add(str(own_home))
    assert len(HOMES) == turn
    for variable in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        folder = Path(os.environ[variable])
        assert folder.is_relative_to(own_home)
        assert not list(folder.iterdir())
        (folder / "left behind").touch()


@pytest.fixture(scope="module")
def folders_of_a_module() -> dict[str, Path]:
    return {name: Path(os.environ[name]) for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")}


def test_a_fixture_of_a_module_sees_neither_the_users_home_nor_cache(
    folders_of_a_module: dict[str, Path],
    library_cache: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Native code that such a fixture needs would be compiled once more, and left behind."""
    assert folders_of_a_module["XDG_CACHE_HOME"] == library_cache
    for name in ("HOME", "XDG_CONFIG_HOME"):
        assert folders_of_a_module[name].is_relative_to(tmp_path_factory.getbasetemp())


def test_no_switch_is_inherited_and_no_display_is_used() -> None:
    assert not [name for name in os.environ if name.startswith("QWEN38_")]
    assert os.environ["QT_QPA_PLATFORM"]
    assert torch.get_num_threads() <= 2


def test_a_leaked_thread_is_found() -> None:
    before, release = set(threading.enumerate()), threading.Event()
    thread = threading.Thread(target=release.wait, name="left over")
    thread.start()
    assert leaked_threads(before, 0.01) == [thread]
    release.set()
    assert leaked_threads(before, 5.0) == []


def test_fresh_memory_is_worthless(nan_poison: Callable[[object], object]) -> None:
    fresh = (
        torch.empty(3),
        torch.empty_like(torch.zeros(2), dtype=torch.bfloat16),
        torch.zeros(1).new_empty(4),
        torch.from_numpy(np.empty((2, 2), np.float32)),
        torch.from_numpy(np.empty_like(np.zeros(3))),
    )
    assert all(bool(torch.isnan(values).all()) for values in fresh)
    assert torch.empty(2, dtype=torch.int32).tolist() == [2**31 - 1] * 2
    assert np.empty(2, np.uint8).tolist() == [255, 255]
    kept = torch.zeros(2)
    assert nan_poison(kept) is kept
    assert bool(torch.isnan(kept).all())
