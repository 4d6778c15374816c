# SPDX-License-Identifier: MIT OR Apache-2.0
"""A persistent store of token ids of finished answers, which lookup searches in later requests.

    tokens.bin  int32 little-endian, only ever appended to: documents, a separator (1 << 30) behind each
    sa.npy      int32, the suffix array of the first `indexed` tokens
    meta.json   {format, max_order, separator, tokenizer_sha256, generation, indexed}
    lock, rebuild.lock

Whoever changes a file holds `lock`; a file is replaced, never shortened by a token, so that what another
process has mapped stays as it is. The generation rises when old tokens are dropped: an older suffix array is
void then. Folder and files are for their owner alone (0700, 0600): they hold what was written in conversations.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.path_status import is_folder, make_folder, path_status
from engine.spec import suffix_files
from engine.spec.corpus import (
    FORMAT,
    MAX_ORDER,
    SEPARATOR,
    CorpusError,
    SuffixIndex,
    check_meta,
    in_order,
    joined,
    read_meta,
    suffix_order,
)

_SMALL = 1_000_000  # tokens that are sorted within about a second
_GROWTH = 16  # a larger store is sorted again only once it grew by this part of what is above
_LOCK_WAIT_S = 2.0
_FILES = ("tokens.bin", "sa.npy", "meta.json", "lock", "rebuild.lock")
_TOKEN = np.dtype("<i4")
_END = np.array([SEPARATOR], _TOKEN).tobytes()


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """read_only: search, never write.

    most_tokens: beyond it the oldest half is dropped. rebuild_tokens: so many new tokens are sorted in again.
    """

    read_only: bool = False
    most_tokens: int = 48_000_000
    rebuild_tokens: int = 100_000


class SuffixStore:
    """The store in one folder, open in this process.

    `continuations` never waits. `finish` appends; it is called between requests. What goes wrong with the disk
    then is told once, through `on_trouble(sentence)`, possibly from another thread; answers go on without it.
    While `in_use` is off nothing is found and nothing appended: a store that has seen the text of a measurement
    drafts it.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        tokenizer_sha256: str,
        vocab_size: int,
        options: StoreOptions | None = None,
        on_trouble: Callable[[str], None] | None = None,
    ) -> None:
        """Open the store in folder `path`, and make it there unless it is only read.

        Raises CorpusError: damaged, of a newer format, of another tokenizer, a folder of something else, or
        one that cannot be read. A folder that cannot be written is trouble, not an error.
        """
        self._folder = Path(path).expanduser()
        self._tokenizer = tokenizer_sha256
        self._vocab_size = vocab_size
        self._options = options or StoreOptions()
        self._on_trouble = on_trouble
        self._told = False
        self.in_use = True
        self._index: SuffixIndex | None = None
        self._sorted = 0  # tokens of the present file that the index covers
        self._seen = (0, 0)  # generation and length of the suffix array on disk that was last taken
        self._sorting: threading.Thread | None = None
        self._writes = not self._options.read_only
        if self._writes:
            try:
                self._make()
            except OSError as error:
                self._writes = False
                self._tell(error)
                if not (self._folder / "meta.json").exists():
                    return
        meta = self._meta()
        self._take_index(meta)
        self._sort_if(meta, 1)

    def continuations(self, gram: Sequence[int], length: int) -> list[tuple[int, ...]]:
        """As SuffixIndex.continuations; what was appended since the last sorting is not found yet."""
        index = self._index
        return index.continuations(gram, length) if index and self.in_use else []

    def finish(self, answer: Sequence[int]) -> None:
        """Append a finished answer as a document; of one longer than a quarter of the store the end is kept."""
        if not (self._writes and self.in_use):
            return
        most = self._options.most_tokens // 4 - 1
        added = joined([answer[-most:]])
        if not len(added):
            return
        try:
            with self._locked():
                meta = self._meta()
                if self._count() + len(added) >= self._options.most_tokens:
                    meta = self._drop_oldest(meta)
                self._append(added.astype(_TOKEN).tobytes())
            if (meta["generation"], meta["indexed"]) != self._seen:
                self._take_index(meta)
            self._sort_if(meta, self._options.rebuild_tokens)
        except (OSError, CorpusError) as error:
            self._tell(error)

    def wait(self) -> None:
        """Return once nothing is being sorted in the background."""
        if self._sorting:
            self._sorting.join()

    def _locked(self) -> Any:
        return suffix_files.locked(self._folder / "lock", _LOCK_WAIT_S)

    def _make(self) -> None:
        """The folder and its files, where they are missing; both for their owner alone."""
        folder = self._folder
        if path_status(folder) is not None and not is_folder(folder):
            raise CorpusError(
                f"{str(folder)!r} is a file, not the folder of a suffix store.",
                next_step="Name a folder for QWEN38_SUFFIX_STORE.",
            )
        make_folder(folder, mode=0o700)
        known = {*_FILES, *(f"{name}.partial" for name in _FILES)}
        strange = next((each.name for each in folder.iterdir() if each.name not in known), None)
        if strange is not None:
            raise CorpusError(
                f"{str(folder)!r} is no suffix store: it holds {strange!r}.",
                kept="Nothing was written there.",
                next_step="Name a new folder for QWEN38_SUFFIX_STORE.",
            )
        os.chmod(folder, 0o700)
        with self._locked():
            os.close(suffix_files.create(folder / "tokens.bin", keep=True))
            if not (folder / "meta.json").exists():
                self._write_meta({"generation": self._count() and 1, "indexed": 0})

    def _meta(self) -> dict[str, Any]:
        try:
            meta = read_meta(self._folder)
            check_meta(meta, self._folder, self._tokenizer)
            for name in ("generation", "indexed"):
                if type(meta.get(name)) is not int or meta[name] < 0:
                    raise CorpusError(f"{str(self._folder)!r} is damaged: meta.json has no {name}.")
        except CorpusError as error:
            raise CorpusError(
                error.cause,
                kept="The store was left as it is.",
                next_step="Name another folder for QWEN38_SUFFIX_STORE, or remove this one.",
            ) from error
        return meta

    def _write_meta(self, counts: dict[str, int]) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "format": FORMAT,
            "max_order": MAX_ORDER,
            "separator": SEPARATOR,
            "tokenizer_sha256": self._tokenizer,
            **counts,
        }
        suffix_files.replace(self._folder / "meta.json", json.dumps(meta, indent=2).encode())
        return meta

    def _count(self) -> int:
        """Whole tokens in the file; a process that died while it wrote may have left part of one."""
        try:
            return (self._folder / "tokens.bin").stat().st_size // _TOKEN.itemsize
        except FileNotFoundError:
            return 0

    def _mapped(self, count: int | None = None) -> np.ndarray:
        """The first `count` tokens, or all whole ones, of the one file that is opened here.

        Counted on the open file, since another process may replace the one of that name at any time. Empty
        where there is no file; raises ValueError where that holds fewer than `count`.
        """
        try:
            with open(self._folder / "tokens.bin", "rb") as file:
                if count is None:
                    count = os.fstat(file.fileno()).st_size // _TOKEN.itemsize
                if count:
                    return np.memmap(file, _TOKEN, "r", shape=(count,))
        except FileNotFoundError:
            pass
        return np.empty(0, _TOKEN)

    def _append(self, data: bytes) -> None:
        tokens = self._mapped()
        if len(tokens) and tokens[-1] != SEPARATOR:
            data = _END + data  # the end of a document that was cut short
        suffix_files.append(self._folder / "tokens.bin", data, tokens.nbytes)

    def _drop_oldest(self, meta: dict[str, Any]) -> dict[str, Any]:
        """Keep the newest half, from the start of a document on."""
        tokens = self._mapped()
        kept = tokens[-(self._options.most_tokens // 2) :]
        ends = np.flatnonzero(kept == SEPARATOR)
        if len(kept) < len(tokens) and len(ends):
            kept = kept[ends[0] + 1 :]
        # In this order a crash in between leaves a store without suffix array, not one with a wrong one.
        meta = self._write_meta({"generation": meta["generation"] + 1, "indexed": 0})
        suffix_files.replace(self._folder / "tokens.bin", kept.tobytes())
        return meta

    def _take_index(self, meta: dict[str, Any]) -> None:
        """Map the suffix array on disk; without one that fits, what is mapped goes on answering."""
        self._seen = meta["generation"], meta["indexed"]
        self._sorted = 0
        if not meta["indexed"] or self._count() < meta["indexed"]:
            return
        try:
            order = np.load(self._folder / "sa.npy", mmap_mode="r", allow_pickle=False)
            tokens = self._mapped(meta["indexed"])
        except (OSError, ValueError, EOFError, SyntaxError):
            return
        fits = isinstance(order, np.ndarray) and order.dtype == np.int32
        if fits and order.shape == tokens.shape and in_order(tokens, order):
            self._index = SuffixIndex(tokens, order, self._vocab_size)
            self._sorted = len(tokens)

    def _sort_if(self, meta: dict[str, Any], least: int) -> None:
        """Sort in the background when at least `least` tokens are new."""
        new = self._count() - self._sorted
        if new < max(least, (self._sorted - _SMALL) // _GROWTH):
            return
        if self._sorting and self._sorting.is_alive():
            return
        # A daemon: sorting tens of millions of tokens takes a while, and the program may end before.
        self._sorting = threading.Thread(
            target=self._sort, args=(meta["generation"],), name="suffix-store", daemon=True
        )
        self._sorting.start()

    def _sort(self, generation: int) -> None:
        try:
            if not self._writes:
                tokens = self._mapped()
                self._index = SuffixIndex(tokens, suffix_order(tokens), self._vocab_size)
                self._sorted = len(tokens)
                return
            with suffix_files.locked(self._folder / "rebuild.lock", 0.0):
                self._sort_on_disk(generation)
        except BlockingIOError:
            return  # another process is at it, and its suffix array will be taken
        except (OSError, ValueError, CorpusError, MemoryError) as error:
            self._tell(error)

    def _sort_on_disk(self, generation: int) -> None:
        with self._locked():
            if self._meta()["generation"] != generation:
                return
            tokens = self._mapped()
        order = suffix_order(tokens)
        partial = self._folder / "sa.npy.partial"
        with os.fdopen(suffix_files.create(partial), "wb") as file:
            np.save(file, order)
        with self._locked():
            if self._meta()["generation"] != generation:
                return
            os.replace(partial, self._folder / "sa.npy")
            meta = self._write_meta({"generation": generation, "indexed": len(tokens)})
        self._take_index(meta)

    def _tell(self, error: Exception) -> None:
        if self._told or self._on_trouble is None:
            return
        self._told = True
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        self._on_trouble(
            f"The suffix store {str(self._folder)!r} is left as it is: {reason}. Answers go on without it."
        )
