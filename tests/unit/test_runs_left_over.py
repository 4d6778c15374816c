# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a crash or a disk leaves of a run, and who removes it; files that take the place of others."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path

import pytest

from engine.measure.runs import RunStore, RunStoreError
from engine.replace_file import replace_text

BENCH = {"rows": [], "seconds": 1.0}
ROWS = [{"suite": "decode", "rows": 1}]


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "runs")


def save(store: RunStore) -> str:
    return store.save_bench(BENCH, ROWS, {"shape": "demo"})


def names(store: RunStore) -> set[str]:
    return {path.name for path in store.folder.iterdir()}


def leave(store: RunStore, name: str, age_s: float) -> None:
    folder = store.folder / name
    folder.mkdir(parents=True)
    (folder / "bench_runs.csv").write_text("half a row", "utf-8")
    then = time.time() - age_s
    os.utime(folder, (then, then))


def test_a_deleted_run_leaves_no_file_behind(store: RunStore) -> None:
    run_id = save(store)
    store.label(run_id, "mine")
    (store.folder / run_id / ".label.txt.1-abcdef").write_text("a crashed label", "utf-8")
    store.delete(run_id)
    assert names(store) == set()


@pytest.mark.parametrize("act", ["store", "delete"])
def test_what_a_crash_left_is_never_listed_and_goes_with_the_next_run(
    store: RunStore, act: str
) -> None:
    kept = save(store)
    leave(store, ".writing-old", 7200.0)
    leave(store, ".writing-now", 5.0)  # another process is at it
    leave(store, f".deleted-{kept}-000000", 0.0)
    (store.folder / "notes").mkdir()  # not ours
    assert [summary.run_id for summary in store.list()] == [kept]
    if act == "store":
        added = save(store)
        assert names(store) == {kept, added, ".writing-now", "notes"}
    else:
        store.delete(kept)
        assert names(store) == {".writing-now", "notes"}


def test_files_that_cannot_be_removed_are_named_and_gone_the_next_time(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = save(store), save(store)

    def busy(path: Path, **_: object) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    with monkeypatch.context() as stuck:
        stuck.setattr(shutil, "rmtree", busy)
        with pytest.raises(
            RunStoreError, match="out of the list, but files of it are left in"
        ) as told:
            store.delete(first)
    [left] = names(store) - {second}
    assert left in told.value.cause
    assert [summary.run_id for summary in store.list()] == [second]
    store.delete(second)
    assert names(store) == set()


def test_two_processes_that_delete_at_once_remove_both(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = save(store), save(store)
    other, rename = RunStore(store.folder), os.rename

    def meanwhile(source: Path, target: Path) -> None:
        rename(source, target)
        if source.name == first:
            other.delete(second)  # and with it what the first one put aside

    with monkeypatch.context() as both:
        both.setattr(os, "rename", meanwhile)
        store.delete(first)
    assert names(store) == set()


def test_a_run_that_cannot_be_moved_away_stays(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = save(store)

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as stuck:
        stuck.setattr(os, "rename", refuse)
        with pytest.raises(RunStoreError, match="cannot be deleted") as told:
            store.delete(run_id)
    assert told.value.kept == "It stays in the list."
    assert [summary.run_id for summary in store.list()] == [run_id]


def test_text_takes_the_place_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "deep" / "a.txt"
    replace_text(path, "first\n")
    replace_text(path, "größer \udcff\n")
    assert path.read_bytes() == "größer ?\n".encode()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_text(path, "third")
    assert path.read_text("utf-8") == "größer ?\n"
    assert list(path.parent.iterdir()) == [path]
