# SPDX-License-Identifier: MIT OR Apache-2.0
"""A read-only store of token ids that lookup searches: two mapped arrays and a note of what made them.

tokens.npy  int32 [N]: the documents' ids, a separator (1 << 30) behind each
sa.npy      int32 [N]: positions in the order of the 8 tokens that start there
meta.json   {format, max_order, separator, tokenizer_sha256, tokens, documents}
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import RondoError
from engine.numbers import grouped
from engine.path_status import is_folder, make_folder, path_status

FORMAT = 1
MAX_ORDER = 8  # tokens that the suffix array is sorted by
SEPARATOR = 1 << 30
MOST_SAMPLES = 64
MOST_TOKENS = (1 << 31) - 1
_SPOTS = 1024  # entries of the suffix array that are looked at when a store is opened
_MAKE_AGAIN = "Build it again with `rondo corpus build`."


class CorpusError(RondoError):
    """A corpus or suffix store that cannot be used as it stands."""

    title = "This corpus cannot be used"


class SuffixIndex:
    """Continuations of n-grams in an array of token ids, through its suffix array.

    tokens: int32 [N]; order: int32 [N], positions sorted by the 8 tokens that start there. Both may be mapped
    files. Whatever they hold, every token that comes out is one of the vocabulary.
    """

    def __init__(self, tokens: np.ndarray, order: np.ndarray, vocab_size: int) -> None:
        # Memory views index and slice several times faster than arrays, and never outside their bounds.
        self._tokens = memoryview(np.asarray(tokens))
        self._order = memoryview(np.asarray(order))
        self._vocab_size = vocab_size

    def __len__(self) -> int:
        return len(self._tokens)

    def continuations(self, gram: Sequence[int], length: int) -> list[tuple[int, ...]]:
        """What followed `gram` (1 to 8 tokens), up to `length` tokens each, never past a separator.

        At most 64, spread evenly over all places in the order of the suffix array; empty where it never stood.
        """
        tokens, order, size = self._tokens, self._order, len(gram)
        wanted = list(gram)

        def key(position: int) -> list[int]:
            return tokens[position : position + size].tolist()

        first = bisect_left(order, wanted, key=key)
        end = bisect_right(order, wanted, lo=first, key=key)
        found = end - first
        picked = min(found, MOST_SAMPLES)
        lines = []
        for each in range(picked):
            start = order[first + each * found // picked] + size
            line = self._readable(tokens[start : start + length].tolist())
            if line:
                lines.append(line)
        return lines

    def _readable(self, line: list[int]) -> tuple[int, ...]:
        """`line` up to the separator, or whatever else is no token."""
        limit = self._vocab_size
        if line and (max(line) >= limit or min(line) < 0):
            line = line[: next(at for at, token in enumerate(line) if not 0 <= token < limit)]
        return tuple(line)


def open_corpus(path: str | Path, *, tokenizer_sha256: str, vocab_size: int) -> SuffixIndex:
    """The corpus in folder `path`, mapped and not read.

    Raises CorpusError: missing, damaged, cut short, made by a newer version or with another tokenizer.
    """
    folder = Path(path).expanduser()
    meta = read_meta(folder)
    check_meta(meta, folder, tokenizer_sha256)
    tokens = _array(folder / "tokens.npy")
    order = _array(folder / "sa.npy")
    if not len(tokens) == len(order) == meta.get("tokens"):
        raise _damaged(
            folder,
            f"tokens.npy has {grouped(len(tokens))} tokens, sa.npy {grouped(len(order))} entries and "
            f"meta.json names {meta.get('tokens')}",
        )
    if not in_order(tokens, order):
        raise _damaged(folder, "sa.npy does not sort tokens.npy")
    return SuffixIndex(tokens, order, vocab_size)


def in_order(tokens: np.ndarray, order: np.ndarray) -> bool:
    """Whether pairs of neighbours all over the suffix array are positions, and sorted."""
    count = len(order)
    if count < 2:
        return not count or order[0] == 0
    at = np.unique(np.linspace(0, count - 2, min(_SPOTS, count - 1)).astype(np.int64))
    pairs = np.stack([order[at], order[at + 1]], axis=1).astype(np.int64)
    if pairs.min() < 0 or pairs.max() >= count:
        return False
    steps = [tokens[first : first + MAX_ORDER].tolist() for first in pairs.ravel()]
    return all(left <= right for left, right in zip(steps[::2], steps[1::2], strict=True))


def suffix_order(tokens: np.ndarray) -> np.ndarray:
    """The suffix array of int32 [N]: int32 [N] positions in the order of the 8 tokens that start there.

    Equal ones stay in the order of the text; a text that ends is before one that goes on. Ranks of 1, 2, 4 and
    then 8 tokens (prefix doubling); takes about 50 bytes a token while it works.
    """
    count = len(tokens)
    rank = np.unique(tokens, return_inverse=True)[1].astype(np.int64) + 1
    order = np.argsort(rank, kind="stable")
    for step in (1, 2, 4):
        key = rank * (count + 1)
        key[: max(0, count - step)] += rank[step:]
        order = np.argsort(key, kind="stable")
        ordered = key[order]
        rank = np.empty(count, np.int64)
        rank[order] = np.cumsum(np.concatenate(([1], ordered[1:] != ordered[:-1])))[:count]
    return order.astype(np.int32)


def build_corpus(
    out: str | Path, documents: Sequence[Sequence[int]], *, tokenizer_sha256: str
) -> dict[str, Any]:
    """Write a corpus of these documents (token ids) into the folder `out` and return its meta.json.

    meta.json is written last: without it the folder is no corpus. Raises CorpusError when there is no token,
    there are too many, or the folder cannot be written or already holds something.
    """
    tokens = joined(documents)
    if not len(tokens):
        raise CorpusError("There is no token to build from.", next_step="Give files with text.")
    if len(tokens) > MOST_TOKENS:
        raise CorpusError(f"{grouped(len(tokens))} tokens are more than a corpus holds.")
    meta = {
        "format": FORMAT,
        "max_order": MAX_ORDER,
        "separator": SEPARATOR,
        "tokenizer_sha256": tokenizer_sha256,
        "tokens": len(tokens),
        "documents": sum(1 for document in documents if len(document)),
    }
    folder = Path(out).expanduser()
    refuse_occupied(folder)
    try:
        make_folder(folder)
        np.save(folder / "tokens.npy", tokens)
        np.save(folder / "sa.npy", suffix_order(tokens))
        (folder / "meta.json").write_text(json.dumps(meta, indent=2) + "\n", "utf-8")
    except OSError as error:
        raise CorpusError(
            f"{str(folder)!r} cannot be written: {error.strerror or error}.",
            kept="What was written so far stays there; it is not a corpus.",
            next_step="Check the path, the permissions and the disk.",
        ) from error
    return meta


def refuse_occupied(folder: Path) -> None:
    """CorpusError unless `folder` is missing or an empty folder that can be listed."""
    try:
        exists = path_status(folder) is not None
        occupied = exists and (not is_folder(folder) or any(folder.iterdir()))
    except OSError as error:
        raise _unreadable(folder, error) from error
    if occupied:
        raise CorpusError(
            f"{str(folder)!r} already exists.",
            kept="Nothing was written.",
            next_step="Name a new folder, or remove this one first.",
        )


def joined(documents: Sequence[Sequence[int]]) -> np.ndarray:
    """int32: the ids of all documents, a separator behind each; documents without a token are left out."""
    parts = []
    for document in documents:
        if len(document):
            parts += [np.asarray(document, np.int32), np.asarray([SEPARATOR], np.int32)]
    return np.concatenate(parts) if parts else np.empty(0, np.int32)


def tokenizer_sha256(model: Path) -> str:
    """Names the tokenizer of a model folder: SHA-256 of its tokenizer.json. Raises CorpusError."""
    try:
        return hashlib.sha256((model / "tokenizer.json").read_bytes()).hexdigest()
    except OSError as error:
        raise _unreadable(model / "tokenizer.json", error) from error


def read_meta(folder: Path) -> dict[str, Any]:
    """meta.json of a store; CorpusError where there is none or it is no JSON object."""
    path = folder / "meta.json"
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise CorpusError(
            f"{str(folder)!r} holds no corpus: meta.json is missing.",
            next_step="Choose a folder that `rondo corpus build` made.",
        ) from None
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        meta = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _damaged(folder, f"meta.json is not JSON: {error}") from error
    if not isinstance(meta, dict):
        raise _damaged(folder, "meta.json holds no object")
    return meta


def check_meta(meta: dict[str, Any], folder: Path, tokenizer: str) -> None:
    """CorpusError unless this version reads the format and the tokens are those of `tokenizer`."""
    version = meta.get("format")
    if isinstance(version, int) and version > FORMAT:
        raise CorpusError(
            f"{str(folder)!r} has format {version}; this version reads up to {FORMAT}.",
            next_step="Use a newer Rondo, or build it again with this one.",
        )
    fixed = {"format": FORMAT, "max_order": MAX_ORDER, "separator": SEPARATOR}
    for name, value in fixed.items():
        if meta.get(name) != value:
            raise _damaged(folder, f"meta.json has {name} {meta.get(name)!r} instead of {value}")
    if meta.get("tokenizer_sha256") != tokenizer:
        raise CorpusError(
            f"{str(folder)!r} was made with another tokenizer than this model's.",
            next_step="Use the store of this model, or build one with its tokenizer.",
        )


def _array(path: Path) -> np.ndarray:
    """A mapped int32 vector."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise _damaged(path.parent, f"{path.name} is missing") from None
    except PermissionError as error:
        raise _unreadable(path, error) from error
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        raise _damaged(path.parent, f"{path.name} is cut short or no array ({error})") from error
    if not isinstance(array, np.ndarray):
        raise _damaged(path.parent, f"{path.name} is an archive of arrays")
    if array.dtype != np.int32 or array.ndim != 1:
        raise _damaged(
            path.parent, f"{path.name} is not a row of int32 but {array.dtype} {array.shape}"
        )
    return array


def _damaged(folder: Path, what: str) -> CorpusError:
    return CorpusError(f"{str(folder)!r} is damaged: {what}.", next_step=_MAKE_AGAIN)


def _unreadable(path: Path, error: OSError) -> CorpusError:
    return CorpusError(
        f"{str(path)!r} cannot be read: {error.strerror or error}.",
        next_step="Check the path and the permissions.",
    )
