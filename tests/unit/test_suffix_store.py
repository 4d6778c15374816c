# SPDX-License-Identifier: MIT OR Apache-2.0
"""The suffix store: round trips, two processes, permissions, the cap, full and damaged disks."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engine.spec import suffix_files
from engine.spec.corpus import SEPARATOR, CorpusError
from engine.spec.lookup_memory import Memory
from engine.spec.suffix_store import StoreOptions, SuffixStore

SHA = "ab" * 32
EAGER = StoreOptions(rebuild_tokens=1)
END = SEPARATOR


class Opened:
    """Opens stores and waits for their background work at the end of a test."""

    def __init__(self) -> None:
        self.stores: list[SuffixStore] = []
        self.troubles: list[str] = []

    def __call__(
        self, folder: Path, options: StoreOptions = EAGER, *, sha: str = SHA
    ) -> SuffixStore:
        store = SuffixStore(
            folder,
            tokenizer_sha256=sha,
            vocab_size=1000,
            options=options,
            on_trouble=self.troubles.append,
        )
        self.stores.append(store)
        store.wait()
        return store


@pytest.fixture
def opened() -> Iterator[Opened]:
    opened = Opened()
    yield opened
    for store in opened.stores:
        store.wait()


def finish(store: SuffixStore, *answers: list[int]) -> None:
    for answer in answers:
        store.finish(answer)
        store.wait()


def on_disk(folder: Path) -> list[int]:
    return np.fromfile(folder / "tokens.bin", "<i4").tolist()


def note(folder: Path) -> dict[str, object]:
    return json.loads((folder / "meta.json").read_text())


def test_an_answer_is_found_at_once_and_after_opening_again(tmp_path: Path, opened: Opened) -> None:
    folder = tmp_path / "store"
    store = opened(folder)
    assert store.continuations([1, 2], 9) == []
    finish(store, [1, 2, 3, 4], [7, 1, 2, 5])
    assert on_disk(folder) == [1, 2, 3, 4, END, 7, 1, 2, 5, END]
    assert store.continuations([1, 2], 9) == [(3, 4), (5,)]
    again = opened(folder, StoreOptions(read_only=True))
    assert again.continuations([1, 2], 1) == [(3,), (5,)]
    assert note(folder) == {
        "format": 1, "max_order": 8, "separator": END, "tokenizer_sha256": SHA, "generation": 0,
        "indexed": 10,
    }  # fmt: skip
    assert opened.troubles == []


def test_a_store_that_is_not_in_use_neither_finds_nor_keeps(tmp_path: Path, opened: Opened) -> None:
    store = opened(tmp_path / "s")
    finish(store, [1, 2, 3])
    memory = Memory(suffix_store=store)
    memory.begin(remember=False)
    memory.finish([1, 2, 4])
    assert store.continuations([1, 2], 9) == []
    memory.begin(remember=True)
    assert store.continuations([1, 2], 9) == [(3,)]
    assert on_disk(tmp_path / "s") == [1, 2, 3, END]


def test_tokens_are_sorted_in_once_enough_of_them_are_new(tmp_path: Path, opened: Opened) -> None:
    store = opened(tmp_path / "s", StoreOptions(rebuild_tokens=8))
    finish(store, [1, 2, 3])
    assert store.continuations([1, 2], 9) == []
    finish(store, [1, 2, 4])
    assert store.continuations([1, 2], 9) == [(3,), (4,)]
    finish(store, [1, 2, 5])
    assert len(store.continuations([1, 2], 9)) == 2
    assert len(opened(tmp_path / "s").continuations([1, 2], 9)) == 3  # sorted when opened


def test_a_store_that_is_only_read_is_left_as_it_is(tmp_path: Path, opened: Opened) -> None:
    folder = tmp_path / "s"
    finish(opened(folder, StoreOptions(rebuild_tokens=1000)), [1, 2, 3])
    before = {each.name: each.read_bytes() for each in folder.iterdir()}
    store = opened(folder, StoreOptions(read_only=True))
    assert store.continuations([1, 2], 9) == [(3,)]  # sorted in memory
    finish(store, [1, 2, 4])
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == before
    with pytest.raises(CorpusError, match="missing"):
        opened(tmp_path / "none", StoreOptions(read_only=True))
    assert not (tmp_path / "none").exists()


def test_folder_and_files_are_for_their_owner_alone(tmp_path: Path, opened: Opened) -> None:
    folder = tmp_path / "deep" / "store"
    previous = os.umask(0o000)
    try:
        finish(opened(folder), [1, 2, 3])
    finally:
        os.umask(previous)
    assert folder.stat().st_mode & 0o777 == 0o700
    modes = {each.name: each.stat().st_mode & 0o777 for each in folder.iterdir()}
    assert modes == dict.fromkeys(
        ("tokens.bin", "sa.npy", "meta.json", "lock", "rebuild.lock"), 0o600
    )
    folder.chmod(0o755)
    (folder / "tokens.bin").chmod(0o644)
    opened(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "tokens.bin").stat().st_mode & 0o777 == 0o600


def test_the_oldest_half_goes_when_the_store_is_full(tmp_path: Path, opened: Opened) -> None:
    folder = tmp_path / "s"
    options = StoreOptions(most_tokens=100, rebuild_tokens=1)
    store, other = opened(folder, options), opened(folder, options)
    answers = [[each, *range(500, 508)] for each in range(40)]  # 10 tokens each
    finish(store, *answers[:9])
    finish(other, answers[9])
    assert note(folder)["generation"] == 1  # 90 were there, 10 more would fill it
    assert on_disk(folder)[0] == 5  # a separator was the first of the newest 50: documents 5 to 9
    assert len(on_disk(folder)) == 50
    finish(store, *answers[10:])
    assert len(on_disk(folder)) <= 100
    assert on_disk(folder)[-10:] == [39, *range(500, 508), END]
    for each in (store, other):
        finish(each, [700 + (each is other), 701])
    assert other.continuations([39], 2) == store.continuations([39], 2) == [(500, 501)]
    assert store.continuations([0], 2) == []
    assert opened.troubles == []


def test_of_a_text_longer_than_the_store_its_end_is_kept(tmp_path: Path, opened: Opened) -> None:
    store = opened(tmp_path / "s", StoreOptions(most_tokens=100, rebuild_tokens=1))
    for _ in range(5):
        finish(store, list(range(900)))
        assert len(on_disk(tmp_path / "s")) <= 100
    assert store.continuations([897], 9)[0] == (898, 899)


APPENDER = """
import sys
from engine.spec.lookup_memory import Memory
from engine.spec.suffix_store import StoreOptions, SuffixStore
first = int(sys.argv[2])
troubles = []
store = SuffixStore(sys.argv[1], tokenizer_sha256=sys.argv[3], vocab_size=1000,
                    options=StoreOptions(rebuild_tokens=100, most_tokens=int(sys.argv[4])),
                    on_trouble=troubles.append)
for each in range(150):
    store.finish([first, *range(each, each + 1 + each % 7)])
store.wait()
sys.exit(bool(troubles))
"""


def test_two_processes_append_at_once(tmp_path: Path, opened: Opened) -> None:
    folder = tmp_path / "s"
    command = [sys.executable, "-c", APPENDER, str(folder)]
    running = [subprocess.Popen([*command, first, SHA, "9999"]) for first in ("901", "902")]
    assert [each.wait(120) for each in running] == [0, 0]
    documents: dict[int, list[list[int]]] = {901: [], 902: []}
    document: list[int] = []
    for token in on_disk(folder):
        if token == END:
            documents[document[0]].append(document[1:])
            document = []
        else:
            document.append(token)
    expected = [list(range(each, each + 1 + each % 7)) for each in range(150)]
    assert documents == {901: expected, 902: expected}
    store = opened(folder)
    finish(store, [903])
    assert sorted(store.continuations([901, 149], 9)) == [(150, 151)]
    assert sorted(store.continuations([146, 147], 1)) == [(148,)] * 6  # 144, 145, 146


def test_two_processes_append_while_the_oldest_half_goes(tmp_path: Path, opened: Opened) -> None:
    """Documents stay whole, nothing is dropped that is new, and a third process finds only what was written."""
    folder = tmp_path / "s"
    store = opened(folder, EAGER)
    command = [sys.executable, "-c", APPENDER, str(folder)]
    running = [subprocess.Popen([*command, first, SHA, "400"]) for first in ("901", "902")]
    found: set[tuple[int, ...]] = set()
    while any(each.poll() is None for each in running):
        found.update(opened(folder, StoreOptions(read_only=True)).continuations([901], 9))
        time.sleep(0.05)
    assert [each.wait(120) for each in running] == [0, 0]
    assert note(folder)["generation"] > 3
    tokens = on_disk(folder)
    ends = [at for at, token in enumerate(tokens) if token == END]
    documents = [tokens[at + 1 : end] for at, end in zip([-1, *ends], ends, strict=False)]
    assert ends[-1] + 1 == len(tokens) < 400
    assert documents
    for first in {document[0] for document in documents}:
        steps = [document[1] for document in documents if document[0] == first]
        assert steps == list(range(steps[0], 150))
    for first, each, *rest in documents:
        assert first in (901, 902)
        assert rest == list(range(each + 1, each + 1 + each % 7))
    assert all(line == tuple(range(line[0], line[0] + len(line))) for line in found)
    finish(store, [903, 5])
    assert on_disk(folder)[-3:] == [903, 5, END]


def test_a_reader_meets_a_file_that_shrinks_after_every_look_at_its_length(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "s"
    finish(opened(folder), *([each, each + 1] for each in (1, 3, 5, 7, 9)))
    (folder / "sa.npy").unlink()
    count = SuffixStore._count

    def shrinking(store: SuffixStore) -> int:
        counted = count(store)
        rest = np.array(on_disk(folder)[3:] or [9, 10, END], "<i4")
        suffix_files.replace(folder / "tokens.bin", rest.tobytes())
        return counted

    monkeypatch.setattr(SuffixStore, "_count", shrinking)
    reader = opened(folder, StoreOptions(read_only=True))
    assert reader.continuations([9], 9) == [(10,)]
    assert reader.continuations([1], 9) == []
    assert opened.troubles == []


def test_another_process_that_holds_the_lock_costs_the_answer_nothing(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.spec.suffix_store._LOCK_WAIT_S", 0.02)
    store = opened(tmp_path / "s")
    with suffix_files.locked(tmp_path / "s" / "lock", 1.0):
        store.finish([1, 2])
    assert len(opened.troubles) == 1
    finish(store, [3, 4])
    assert on_disk(tmp_path / "s") == [3, 4, END]


def test_a_full_disk_is_told_once_and_leaves_whole_documents(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "s"
    store = opened(folder)
    finish(store, [1, 2, 3])
    write = os.pwrite

    def full(file: int, data: bytes, at: int) -> int:
        if at > 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data[:8], at)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        finish(store, [4, 5, 6, 7, 8], [9, 9])
    assert len(opened.troubles) == 1
    assert "No space left" in opened.troubles[0]
    assert on_disk(folder) == [1, 2, 3, END]
    assert store.continuations([1], 9) == [(2, 3)]
    finish(store, [4, 5])
    assert on_disk(folder) == [1, 2, 3, END, 4, 5, END]


def test_a_folder_that_cannot_be_written_is_read(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "s"
    finish(opened(folder), [1, 2, 3])

    def refused(*_: object, **__: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(
        suffix_files, "create", refused
    )  # the tests may run as a user who may do anything
    store = opened(folder)
    assert store.continuations([1], 9) == [(2, 3)]
    finish(store, [4], [5])
    assert len(opened.troubles) == 1
    assert "Permission denied" in opened.troubles[0]
    assert on_disk(folder) == [1, 2, 3, END]
    nowhere = opened(tmp_path / "new")
    assert nowhere.continuations([1], 9) == []
    finish(nowhere, [4])


def test_what_a_dead_writer_left_does_not_spoil_the_next_document(
    tmp_path: Path, opened: Opened
) -> None:
    folder = tmp_path / "s"
    finish(opened(folder), [1, 2])
    with (folder / "tokens.bin").open("ab") as file:
        file.write(np.array([3, 4], "<i4").tobytes() + b"\x05\x00")
    finish(opened(folder), [6])
    assert on_disk(folder) == [1, 2, END, 3, 4, END, 6, END]


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "sa.npy").unlink(),
        lambda folder: (folder / "sa.npy").write_bytes(b""),
        lambda folder: np.save(folder / "sa.npy", np.arange(4, dtype=np.int32)),
        lambda folder: np.save(folder / "sa.npy", np.arange(8, dtype=np.int64)),
        lambda folder: np.save(folder / "sa.npy", np.full(8, -1, np.int32)),
    ],
)
def test_a_damaged_suffix_array_is_made_again(
    tmp_path: Path, opened: Opened, damage: object
) -> None:
    folder = tmp_path / "s"
    finish(opened(folder), [3, 2, 1], [1, 2, 3])
    damage(folder)  # type: ignore[operator]
    store = opened(folder)
    assert store.continuations([2], 9) == [(1,), (3,)]
    assert np.load(folder / "sa.npy").tolist() == [4, 2, 1, 5, 0, 6, 7, 3]


def test_lost_tokens_leave_an_empty_store(tmp_path: Path, opened: Opened) -> None:
    folder = tmp_path / "s"
    finish(opened(folder), [3, 2, 1])
    (folder / "tokens.bin").unlink()
    store = opened(folder)
    assert store.continuations([3], 9) == []
    finish(store, [5, 6])
    assert store.continuations([5], 9) == [(6,)]


@pytest.mark.parametrize(
    ("text", "named"),
    [("", "not JSON"), ("[]", "no object"), ('{"format": 9}', "format 9"), ("{}", "format None")],
)
def test_a_damaged_note_is_an_error_and_nothing_is_lost(
    tmp_path: Path, opened: Opened, text: str, named: str
) -> None:
    folder = tmp_path / "s"
    finish(opened(folder), [3, 2, 1])
    (folder / "meta.json").write_text(text)
    with pytest.raises(CorpusError) as caught:
        opened(folder)
    assert named in caught.value.cause
    assert "SUFFIX_STORE" in caught.value.next_step
    assert on_disk(folder) == [3, 2, 1, END]


def test_another_tokenizer_and_a_folder_of_something_else_are_refused(
    tmp_path: Path, opened: Opened
) -> None:
    finish(opened(tmp_path / "s"), [3, 2, 1])
    with pytest.raises(CorpusError, match="another tokenizer"):
        opened(tmp_path / "s", sha="cd" * 32)
    (tmp_path / "mine").mkdir(mode=0o755)
    (tmp_path / "mine" / "letter.txt").write_text("mine")
    with pytest.raises(CorpusError, match=r"letter\.txt"):
        opened(tmp_path / "mine")
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o755
    assert [each.name for each in (tmp_path / "mine").iterdir()] == ["letter.txt"]
    (tmp_path / "file").write_text("")
    with pytest.raises(CorpusError, match="is a file"):
        opened(tmp_path / "file")
