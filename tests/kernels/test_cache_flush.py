# SPDX-License-Identifier: MIT OR Apache-2.0
"""Reading what lay in the caches out of them: how much that takes on machines with several last caches."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels import probe
from kernels.build import load_library
from kernels.probe import CacheFlush, last_level_cache_bytes, last_level_caches
from kernels.tape import Pool, Tape


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 32 processors, each eight of which share 16 MiB."""
    for index, (level, size, mask) in enumerate(
        [("1", "32K", "00000001"), ("2", "1024K", "00000001"), ("3", "16M", "00000000,000000ff")]
    ):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, text in (("level", level), ("size", size), ("shared_cpu_map", mask)):
            (folder / name).write_text(text + "\n")
    monkeypatch.setattr(probe, "_CACHES", tmp_path)
    monkeypatch.setattr(probe.os, "cpu_count", lambda: 32)
    return tmp_path


@pytest.mark.usefixtures("caches")
def test_every_last_cache_that_the_threads_may_use_is_flushed() -> None:
    assert last_level_cache_bytes() == 16 << 20
    assert last_level_caches() == 4
    for threads, caches in ((1, 1), (2, 2), (6, 4)):
        with Pool(load_library(), threads) as pool:
            flush = CacheFlush(pool)
            assert flush.nbytes == caches * 4 * 16 << 20
            tape = Tape(pool)
            flush.append(tape)
            tape.run()
            assert tape.models[0].bytes_read == flush.nbytes
            assert flush._data[::4096].eq(1).all()  # touched: untouched pages would share one


def test_a_machine_that_says_nothing_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_CACHES", tmp_path)
    assert last_level_caches() == 1
    with Pool(load_library(), 1) as pool:
        assert CacheFlush(pool).nbytes == 64 << 20
